"""Study of the error of predicted training steps against published training runs.

Question: how accurate are predictions of whole training steps, their memory, and papers' claims about their schemes?
Data: published runs of Megatron-LM, DeepSpeed and PyTorch FSDP on named machines, and abstracts of three papers.
Method: at most two rows of a machine calibrate it; steps are composed of simulated layer times, and every other row
that is modelled is judged.  Output: the error of each row and its spread by source and machine, and each claim with its
prediction, as tables and JSON.
"""
