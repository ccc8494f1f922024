"""Benchmarks of the figures that the project must reach on this host.

Question: does the project reach its thresholds of accuracy, overhead and speed?  Data: matmuls by every algorithm, the
cases of the host fidelity study, the main job and the test suite.  Method: each figure is measured in one run of
`quadrille bench`.  Output: a table of the figures with their thresholds, and JSON.
"""
