"""A grid of kernels, penalties and folds from one sweep."""
