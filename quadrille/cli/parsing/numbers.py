"""Parsers of single flag values: a word out of a list, and a whole number."""

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import MOST_DIGITS, parse_integer


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
