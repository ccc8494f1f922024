"""Predicted beside measured: the comparison, its tables and figures, and what the difference is made of."""
