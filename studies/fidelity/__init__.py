"""Study of the error of predictions from calibration alone (fidelity).

Question: how accurate are predictions in shared memory, on emulated networks and on a GPU?  Data: matmuls and training
steps of a fixed matrix, or drawn by a seed, at five sites.  Method: each site is calibrated by microbenchmarks; all
trials are predicted before any is measured; disturbed measurements are repeated.  Output: errors by group, rank
correlation, gains of overlaps and coverage of the prediction intervals, as tables, JSON and a figure.
"""
