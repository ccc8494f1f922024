"""Microbenchmarks: plain rows of times, from which a machine file is made; nothing here predicts."""
