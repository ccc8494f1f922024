"""`python -m quadrille`: the command line."""

import gc
import sys

from quadrille.cli.main import main

if __name__ == "__main__":
    status = main()
    gc.freeze()  # or Python searches all objects for cycles once more before it ends
    sys.exit(status)
