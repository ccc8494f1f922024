"""Study of the NCCL model's error against published measurements of collectives.

Question: how accurate are predictions of collectives on named machines?  Data: published times and bandwidths of
collectives and of messages between GPUs (`published_results.csv`).  Method: at most three rows of each machine
calibrate it; every other row that the model covers is predicted and judged.  Output: the error of each row and its
spread by source, machine and message size, as tables, JSON and a figure.
"""
