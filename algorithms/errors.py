"""Exceptions of Quadrille.

QuadrilleError
├── InputError      invalid input: exit status 2, one line
├── RunError        a failed or unverified run: exit status 1, one line
│   └── Deadlock    ranks and ops that wait for each other
"""


class QuadrilleError(Exception):
    """Base of all exceptions; the message is one line that names the quantity, its value and what is accepted."""

    exit_status = 1


class InputError(QuadrilleError):
    """Invalid input."""

    exit_status = 2


class RunError(QuadrilleError):
    """A run that failed, or whose result was not verified."""


class Deadlock(RunError):  # noqa: N818 - the field's word
    """Ranks and ops that wait for each other."""
