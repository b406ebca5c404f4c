"""Labelled rows from elsewhere.

self_training : rounds of pseudo-labels of a target without labels
artl : a classifier for a target without labels
jda : components that align the distributions of two domains
dica : components that generalise over domains
importance : how much more likely a row is in the target than in the source
alignment : row maps that align the second moments of two domains
labelled_rows : any classifier, fitted to the labelled rows at the end of a pipeline
"""
