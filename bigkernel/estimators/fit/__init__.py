"""How a fit runs.

state : the sums of a fit, its columns and its solution, as immutable values
basis : columns of a kernel: values at m landmarks, or m random features
graph : rows connected through their nearest landmarks
precision : the rounding of sums, its effect on predictions, and the next precision
folds : sums without a fold, and the penalty that folds choose
deviations : standard deviations of predictions, and the effect of rounding on them
leverage : whether the penalty of generalised cross-validation can be trusted
method : what a method sums up and how it solves; the sweep and the solve that all methods share
calibration : probabilities from rows that were held out
fit : the whole fit, and what continues it
cg_problem : the normal equations as sweeps, and their preconditioners
conjugate_gradients : kernel ridge for more landmarks than m×m sums allow
"""
