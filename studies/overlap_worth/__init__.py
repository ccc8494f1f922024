"""Study of the predicted gain of each overlap of the 4D algorithm.

Question: how much time does each overlap of communication with computation save, and when none?  Data: training steps
of a GPT on a named machine.  Method: one setting of a base case is changed at a time; every overlap is simulated on the
case's grid.  Output: gains by case and overlap, as a table, sentences, JSON and a figure.
"""
