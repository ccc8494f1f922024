"""Study of the predicted gain of a training step by twice as much of one resource.

Question: is twice the network, the NVLink, the memory or the peak worth most?  Data: two models on two machines.
Method: on each machine with each resource doubled, the fastest layout is searched.  Output: the gain by resource, model
and machine, as a table, sentences, JSON and a figure.
"""
