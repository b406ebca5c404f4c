"""SSSL, exact and Nyström, from USPS to MNIST digits."""
