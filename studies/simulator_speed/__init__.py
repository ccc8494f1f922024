"""Study of the speed of the network simulator, compared with SimGrid.

Question: how long does a simulation take, how much memory does it need, and how do both grow with the number of GPUs?
Data: four workloads (ring collectives, random flows, training steps) on up to 131,072 GPUs.  Method: each case runs as
a process of its own, with and without the simulator's shortcuts; SimGrid simulates the same traffic.  Output: wall
times, memory, growth exponents and differences of the results, as tables and JSON.
"""
