"""Row maps as scikit-learn transformers.

rows : scale, unit norm, standardize, principal components, points on a sphere, side by side
images : a common pose by moments, oriented strokes
nystroem : whitened Nyström features
random_fourier : random Fourier features
"""
