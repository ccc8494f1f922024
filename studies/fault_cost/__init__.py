"""Study of the predicted cost of faults in synchronous training.

Question: what do a slow GPU, a slow or flapping NIC and a lost rail cost a training step?  Data: a dense model on GPUs
of a cluster with rails.  Method: each layout is simulated with each fault.  Output: the cost by fault and layout, as a
table, sentences, JSON and a figure.
"""
