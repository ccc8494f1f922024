"""Matrices and checkpoints in files that all ranks read and write at once."""
