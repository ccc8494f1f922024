"""Exceptions of Quadrille.

QuadrilleError
├── InputError      invalid input: exit status 2, one line
│   └── ParameterError  an invalid value of one parameter
├── RunError        a failed or unverified run: exit status 1, one line
│   └── Deadlock    ranks and ops that wait for each other

KeyboardInterrupt
└── Interruption    Ctrl-C or TERM during work of which something is kept: exit status 130, one line
"""

from collections.abc import Iterable


class QuadrilleError(Exception):
    """Base of all exceptions; the message is one line that names the quantity, its value and what is accepted."""

    exit_status = 1


class InputError(QuadrilleError):
    """Invalid input."""

    exit_status = 2


class ParameterError(InputError):
    """An invalid value of one parameter; the command line names the parameter's flag instead.

    >>> print(ParameterError("gpus", "1024: perlmutter has 512"))
    gpus 1024: perlmutter has 512

    Parameters
    ----------
    parameter : name of the parameter, with underscores
    fault : the value, and what is accepted
    """

    def __init__(self, parameter: str, fault: str) -> None:
        super().__init__(f"{parameter} {fault}")
        self.parameter, self.fault = parameter, fault


class RunError(QuadrilleError):
    """A run that failed, or whose result was not verified."""


class Deadlock(RunError):  # noqa: N818 - the field's word
    """Ranks and ops that wait for each other."""


class Interruption(KeyboardInterrupt):
    """The end of work by Ctrl-C or TERM; the message says what is kept, and how to go on."""


def shortened(text: str, most_word: int = 200, most: int = 1200) -> str:
    """An error message whose words, and which itself, have at most so many characters.

    >>> shortened("size " + "9" * 1000, most_word=4), shortened("a b c d", most=4)
    ('size 999…', 'a b…')

    Parameters
    ----------
    most_word, most : most characters of a word, and of the message
    """
    words = (word if len(word) <= most_word else word[: most_word - 1] + "…" for word in text.split(" "))
    line = " ".join(words)
    return line if len(line) <= most else line[: most - 1] + "…"


def nearest_names(word: str, names: Iterable[str], count: int = 2) -> list[str]:
    """The names that are spelled most like a word, the nearest first; upper and lower case are the same.

    >>> nearest_names("perlmuter", ["frontier", "perlmutter"]), nearest_names("abc", ["perlmutter"])
    (['perlmutter'], [])
    """
    from difflib import get_close_matches  # needed only for a message

    by_lower_case = {name.lower(): name for name in names}
    return [by_lower_case[near] for near in get_close_matches(word.lower(), by_lower_case, n=count)]


def nearest_hint(word: str, names: Iterable[str], count: int = 2) -> str:
    """The end of a message that suggests the nearest names; empty if none is near.

    >>> nearest_hint("perlmuter", ["frontier", "perlmutter"]), nearest_hint("abc", ["perlmutter"])
    ('; did you mean perlmutter?', '')
    """
    near = nearest_names(word, names, count)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def unknown_name(kind: str, word: str, names: Iterable[str], more: str = "") -> InputError:
    """The error for a word that is none of the known names; its message suggests the nearest names, or lists all.

    >>> print(unknown_name("machine", "perlmuter", ["frontier", "perlmutter"]))
    machine 'perlmuter' is unknown; did you mean perlmutter?
    >>> print(unknown_name("machine", "abc", ["frontier", "perlmutter"], "or give a machine file"))
    machine 'abc' is unknown; there are frontier, perlmutter, or give a machine file

    Parameters
    ----------
    kind : what the names are names of
    more : what else is accepted
    """
    names = list(names)
    if hint := nearest_hint(word, names):
        return InputError(f"{kind} {word!r:.60} is unknown{hint}")
    return InputError(f"{kind} {word!r:.60} is unknown; there are {', '.join([*names, *([more] if more else [])])}")
