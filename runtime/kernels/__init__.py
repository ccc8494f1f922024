"""Kernels: the local functions of a training step, forward and backward, that `Kernel` ops run."""
