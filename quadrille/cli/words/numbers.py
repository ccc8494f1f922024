"""Values of flags as they are typed: one word of some, a whole number, a file or a name."""

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import MOST_DIGITS, parse_integer


def one_of(word: str, quantity: str, accepted: tuple[str, ...]) -> str:
    """`word`, if it is one of those accepted.

    Raises
    ------
    InputError : another word
    """
    if word not in accepted:
        raise InputError(f"{quantity} {word!r}: accepted are {', '.join(accepted)}")
    return word


def whole_number(text: str, flag: str, *, least: int = 1, most: int | None = None) -> int:
    """The whole number in `text`.

    >>> whole_number("12", "--repeats")
    12

    Raises
    ------
    InputError : none, one below `least` or above `most`
    """
    if len(text) > MOST_DIGITS:
        raise InputError(f"{flag} {text[:MOST_DIGITS]}… has {len(text)} digits: at most {MOST_DIGITS} are accepted")
    number = parse_integer(text)
    if number is None or number < least or (most is not None and number > most):
        range_words = f"from {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{flag} {text!r}: a whole number {range_words} is accepted")
    return number
