"""Domain adaptation and generalization from one set of digits to another, with all methods."""
