"""From sums to coefficients: small m×m problems, without access to rows.

residuals : dense m×m matrices in place, and diagnostics of solves
conjugate_gradients : preconditioners, one step, and their cost
importance : the ratio of two densities
metric : which features a kernel should see
whitening : coordinates in which methods are plain ridge
dica : domain-invariant components
pseudo_labels : labels that a model gives to rows of a target
ridge : ridge regression for one penalty or many
anchor_graph : similarity of rows through their nearest landmarks
accuracy : the error of predictions, by a second solve from perturbed sums
exact : kernel ridge regression on every row
logistic : softmax regression, and calibration of probabilities
gcv : generalised cross-validation
posterior : predictive variance
variogram : the covariance of a field from its values at places
qr_ridge : ridge from the R factor of rows
linear : ridge regression on rows themselves
penalty_grid : every candidate of a grid
eigenfunctions : semi-supervised ridge on leading eigenvectors, and principal axes
xnv : correlated views
adaptation : components or a classifier for which two domains are similar
"""
