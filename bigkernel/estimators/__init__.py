"""Estimators in scikit-learn's manners, for rows of any size: NumPy, Dask and zarr arrays, corpora and Rows.

Each module imports only from those above it.

inputs : from what users pass to what a fit takes
fit : how a fit runs
callbacks : scikit-learn's callbacks, called with the progress of a fit
evaluation : predictions and scores that are written or summed chunk by chunk
base : what every estimator can do
linear : least squares and ridge on the rows themselves
ridge : kernel ridge regression and classification
logistic : softmax regression by gradients
sssl : simple semi-supervised learning on eigenfunctions
xnv : semi-supervised regression on two correlated views
transforms : row maps as transformers
adaptation : labelled rows from elsewhere
tables : tables with text, metrics, and models in parts
persistence : a model as a file
"""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
