"""From sums to coefficients: small m×m problems, without access to rows."""
