"""Data, charts, pictures and report page shared by several experiments."""
