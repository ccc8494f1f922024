"""Parsers of single flag values: a word out of a list, a whole number, and a quantity in a range."""

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import MOST_DIGITS, parse_integer, parse_measure

MOST_JOBS = 1024
"""Most processes of `--jobs`, and most jobs of `--slurm`; a node has fewer cores."""


def one_of(word: str, quantity: str, accepted: tuple[str, ...]) -> str:
    """The word, if it is an accepted word.

    Parameters
    ----------
    word : value as typed
    quantity : name of the flag or quantity, for the message
    accepted : accepted words

    Raises
    ------
    InputError : another word
    """
    if word not in accepted:
        raise InputError(f"{quantity} {word!r}: accepted are {', '.join(accepted)}")
    return word


def whole_number(text: str, flag: str, *, least: int = 1, most: int | None = None) -> int:
    """The whole number in the text.

    Parameters
    ----------
    text : value as typed
    flag : name of the flag, for the message
    least, most : smallest and largest accepted number

    >>> whole_number("12", "--repeats")
    12

    Raises
    ------
    InputError : no whole number, or a number below `least` or above `most`
    """
    if len(text) > MOST_DIGITS:
        raise InputError(f"{flag} {text[:MOST_DIGITS]}… has {len(text)} digits: at most {MOST_DIGITS} are accepted")
    number = parse_integer(text)
    if number is None or number < least or (most is not None and number > most):
        range_words = f"from {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{flag} {text!r}: a whole number {range_words} is accepted")
    return number


def jobs_number(text: str) -> int:
    """The number of processes of `--jobs`.

    >>> jobs_number("8")
    8

    Raises
    ------
    InputError : no whole number, or one that is out of range
    """
    return whole_number(text, "--jobs", most=MOST_JOBS)


def measure(text: str, flag: str, name: str, least: float, most: float) -> float:
    """The quantity in the text, in the base unit.

    >>> measure("400Gbit/s", "--bandwidth", "bandwidth", 1.0, 1e15)
    50000000000.0

    Parameters
    ----------
    text : value as typed
    flag : name of the flag, for the message
    name : name of the quantity, as in `parse_measure`
    least, most : smallest and largest accepted quantity

    Raises
    ------
    InputError : no such quantity, or a quantity that is out of range
    """
    try:
        value = parse_measure(text, name)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None
    if not least <= value <= most:
        raise InputError(f"{flag} {text}: {least:g} to {most:g} is accepted")
    return value
