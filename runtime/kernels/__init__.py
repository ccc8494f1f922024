"""Local functions of a training step, forward and backward: what a `Kernel` op carries out."""
