"""What several experiments share: their data, charts, pictures and report page."""
