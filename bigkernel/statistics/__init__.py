"""Sums over rows: additive moments, cells of domains, predictions, scores of a grid."""
