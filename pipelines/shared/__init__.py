"""Data, charts, pictures and report page of several experiments."""
