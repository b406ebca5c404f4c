"""Few labels among many rows: what the rows without one are worth, by several methods."""
