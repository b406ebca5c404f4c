"""From sums to coefficients: small m×m problems; no row is seen."""
