"""Inputs of training steps, and the serial steps that verify them."""
