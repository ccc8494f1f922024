"""Structure-aware fuzzing of the command line: files of every reader and flags, changed at random, run in a child process.

python -m tests.fuzzing --seconds 600              fresh inputs; prints the seed, and every fault with its number
python -m tests.fuzzing --seed 5 --only 1234       one input again: the command, its file and what it printed
"""
