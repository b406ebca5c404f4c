"""Linear, ridge and kernel ridge regression on white wine."""
