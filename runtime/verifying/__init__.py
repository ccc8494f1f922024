"""Whether what a run computed is right: products by two methods, training against a serial run."""
