"""Multiplications as experiments, and as jobs on ranks."""
