"""The hash chain and its signed heads."""
