"""Study of one GPU: its speed by operation, and the accuracy of predictions for ranks that share it.

Question: which share of its peak does a GPU reach, and do its measured rates predict runs of ranks on it?  Data: matrix
products, memory operations, layer functions and staged messages, measured on one GPU.  Method: a machine file is made
from the measurements; a matmul on 1, 2, 4 and 8 ranks is predicted from the file alone and then run.  Output: tables, a
JSON answer and the machine file (`study.py`), or a folder of files from the resumable `make gpu-all` (`session.py`).
"""
