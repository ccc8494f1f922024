"""The few exceptions of Quadrille.

QuadrilleError
├── InputError      an input that cannot be: exit status 2, one line
├── RunError        a run that failed or did not verify: exit status 1, one line
│   └── Deadlock    ranks and ops that wait on each other
"""


class QuadrilleError(Exception):
    """A message for the user, one line, naming the quantity, its value and what would be accepted."""

    exit_status = 1


class InputError(QuadrilleError):
    """An input that cannot be."""

    exit_status = 2


class RunError(QuadrilleError):
    """A run that failed, or whose result did not verify."""


class Deadlock(RunError):  # noqa: N818 - the field's word
    """Ranks and ops that wait on each other."""
