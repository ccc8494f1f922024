"""Seconds of a schedule by formulas, without a simulation: what many grids are ranked by."""
