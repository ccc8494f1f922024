"""Study of message-driven pipelines.

Question: when is a message-driven pipeline faster than 1F1B, GPipe and interleaved stages, and by how much?  Data:
training steps of a GPT on a pipeline of a named machine.  Method: one disturbance at a time (noise, a slow stage, a
slow link); every schedule is simulated exactly.  Output: step times and gains, as a table, sentences, JSON and a
figure.
"""
