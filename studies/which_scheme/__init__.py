"""Study of the predicted fastest tensor-parallel scheme by number of GPUs.

Question: which of the schemes 1-D, 2-D, 2.5-D, 3-D and 4D trains a GPT the fastest?  Data: a GPT on 8 to 4,096 GPUs of
a named machine, in strong and weak scaling.  Method: each scheme is simulated on its own fastest grid.  Output: times
and shares of peak by scheme and number of GPUs, as tables, sentences, JSON and a figure.
"""
