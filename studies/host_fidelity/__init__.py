"""Study of the error of predicted sharded matmuls on this host, from calibration alone.

Question: how accurate are predictions of matmuls on the MPI ranks of one host?  Data: matmuls drawn by a seed over
algorithms, grids, passes, dtypes and sizes.  Method: calibrate, predict all cases, then measure them.  Output: each
case's error, and the errors by number of ranks, raw and corrected for drift, as a table and JSON.
"""
