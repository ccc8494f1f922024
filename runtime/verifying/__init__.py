"""Verification of results: products by two methods, training against a serial run."""
