"""`python -m quadrille`: the command line."""

import gc
import sys

from quadrille.cli.main import program

if __name__ == "__main__":
    status = program()
    gc.freeze()  # or Python searches all objects for cycles once more before it ends
    sys.exit(status)
