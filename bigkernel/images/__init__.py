"""Rows that are pictures of digits: poses, strokes, deformed and restyled copies."""
