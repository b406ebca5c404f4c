"""Domain adaptation and generalization: from one set of digits to another, all methods."""
