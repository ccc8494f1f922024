"""Experiments: what is asked for, on what, how it is run or predicted, and where results go."""
