"""Study of the predicted speed-up of a training job by better networks.

Question: how much faster is a training step with more bandwidth, less latency or larger NVLink domains?  Data: a GPT on
72 and 288 GPUs of a named machine.  Method: on each network the fastest grid is searched in simulation.  Output: the
speed-up by network and number of GPUs, as a table, sentences, JSON and a figure.
"""
