"""Study of weak and strong scaling of one matmul, predicted on a named machine.

Question: which grid is the fastest on each number of GPUs, and which efficiency remains?  Data: a matmul and a machine
file.  Method: all grids are ranked by a closed form; the best that fit in memory are simulated.  Output: a table, CSV,
JSON and a figure of time and efficiency by number of GPUs.
"""
