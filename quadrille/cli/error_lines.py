"""Faults in the words of the command line: the flag that a value came from, and what is accepted."""

import click

from quadrille.algorithms.errors import InputError, ParameterError

TAKES_A_COMMAND = "lab run"
"""The command that takes another command behind `--`, whose flags it does not know."""


def usage_line(error: click.UsageError) -> str:
    """The message about a wrong word, with the command that explains the right words."""
    path = error.ctx.command_path if error.ctx is not None else "quadrille"
    text = error.format_message()
    command = path.removeprefix("quadrille").strip()
    if command == TAKES_A_COMMAND and hasattr(error, "option_name"):
        text = f"{text.rstrip('.')}; what runs there, with its flags, goes behind --"
    return f"{command}: {text}".removeprefix(": ").rstrip(".") + f" (see {path} --help)"


def with_flag(error: Exception) -> Exception:
    """The error, with the name of the flag in its message instead of the library's parameter.

    >>> print(with_flag(ParameterError("micro_batch", "3: accepted are divisors of 8")))
    --micro-batch 3: accepted are divisors of 8
    """
    if not isinstance(error, ParameterError):
        return error
    named = InputError(f"--{error.parameter.replace('_', '-')} {error.fault}")
    named.__cause__ = error
    return named
