"""Few labels among many rows: what unlabelled rows add, by several methods."""
