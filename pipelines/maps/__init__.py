"""Predict grids from some of their cells."""
