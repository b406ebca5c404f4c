"""Rows of three domains and three classes, with numbers, and marks of missing labels in the last domain."""

import numpy as np

rng = np.random.default_rng(31)
N, D, M = 150, 4, 12  # rows, features, landmarks
DOMAIN, LABELS = rng.permutation(np.resize([2, 5, 11], N)), rng.permutation(np.resize([0, 1, 2], N))
X = rng.normal(size=(N, D)) + 0.1 * DOMAIN[:, None] + 1.5 * np.eye(D)[LABELS]
Y = np.column_stack([np.sin(X[:, 0]) + 3, X[:, 1] * X[:, 2]])
y = Y[:, 0]
CODES = np.where(DOMAIN == 11, -1, LABELS)  # the last domain is the target
PARTLY = np.where(DOMAIN == 11, np.nan, y)
WEIGHT = rng.uniform(0.2, 2, N)
