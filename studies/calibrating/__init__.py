"""Machine files made from microbenchmarks."""
