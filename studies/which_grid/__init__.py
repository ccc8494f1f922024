"""Study of the predicted fastest grid of a training job on several machines.

Question: which grid is the fastest on each machine, and why?  Data: a GPT on 32 GPUs of five named machines.  Method:
the grids that a closed form ranks first are simulated, and the fastest one again in other orders of its axes.  Output:
times and exposed communication by grid and order, as a table, sentences, JSON and a figure.
"""
