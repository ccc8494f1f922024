"""Ranks: under which mpirun they start, where they run, and how they end together."""
