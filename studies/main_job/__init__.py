"""Study of the main job: predictions of sharded matmuls from microbenchmarks of this machine, checked by runs.

Question: does a calibration alone predict the times of MPI ranks?  Data: seven sharded matmuls by five algorithms on 2,
4 and 8 ranks of this machine.  Method: calibrate, predict, run and verify each matmul, and compare the times.  Output:
a table of predicted and measured times by kind of op, and `results/comparisons.json`.
"""
