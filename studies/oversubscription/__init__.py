"""Study of the predicted cost of an oversubscribed fat tree.

Question: what do uplinks with a half or a quarter of the bandwidth cost a training step, and which layout forgives it?
Data: a dense model and a model with experts on 256 GPUs of a named machine, in racks.  Method: each layout is simulated
at each oversubscription, packed and scattered over racks.  Output: the cost by layout and placement, as a table,
sentences, JSON and a figure.
"""
