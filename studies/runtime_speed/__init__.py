"""Study of the speed of Quadrille's matmul on one host, compared with other libraries.

Question: how long does Quadrille's matmul take, compared with mpi4py by hand, NumPy in one process, PyLops-MPI, heat
and ScaLAPACK?  Data: four matmuls in two dtypes on the MPI ranks of one host.  Method: all libraries run alternately on
the same evenly distributed matrices; results are verified.  Output: times and ratios with 95 % intervals, as tables and
JSON.
"""
