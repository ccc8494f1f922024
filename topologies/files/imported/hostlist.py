"""Slurm's lists of host names: `dgx[001-016,020],login1` stands for 18 names."""

import re
from itertools import product
from math import prod

from quadrille.algorithms.errors import InputError

MOST_NAMES = 1 << 18
LONGEST_LIST = 1 << 24
"""Most characters of a list."""
NAME = re.compile(r"[A-Za-z0-9._:/@+-]*")
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def host_names(text: str, most: int = MOST_NAMES) -> list[str]:
    """The names that a list stands for, in its order.

    >>> host_names("dgx[008-010,012],login1")
    ['dgx008', 'dgx009', 'dgx010', 'dgx012', 'login1']
    >>> host_names("rack[1-2]n[0-1]")
    ['rack1n0', 'rack1n1', 'rack2n0', 'rack2n1']

    Parameters
    ----------
    most : largest number of names

    Raises
    ------
    InputError : an empty name, a bracket that does not close, a range that runs backwards, or too many names
    """
    if len(text) > LONGEST_LIST:
        raise InputError(f"host list: {len(text)} characters are too many; at most {LONGEST_LIST} are accepted")
    names: list[str] = []
    for word in _words(text):
        choices = [_choices(part, text, most) for part in re.split(r"(\[[^\]]*\])", word) if part]
        if prod(map(len, choices)) + len(names) > most:
            raise InputError(f"host list {text!r:.60}: more than {most} names")
        names += map("".join, product(*choices))
    return names


def _words(text: str) -> list[str]:
    """The parts between the commas that are outside of brackets."""
    words, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            words.append(text[begin:place].strip())
            begin = place + 1
        if depth not in (0, 1):
            raise InputError(f"host list {text!r:.60}: brackets do not match at character {place + 1}")
    words.append(text[begin:].strip())
    if depth:
        raise InputError(f"host list {text!r:.60}: a bracket does not close; it may be truncated")
    if not all(words):
        raise InputError(f"host list {text!r:.60}: a name is empty; write names such as dgx[001-016,020]")
    return words


def _choices(part: str, text: str, most: int) -> list[str]:
    """The texts that one part of a word stands for: itself, or the numbers of its brackets."""
    if not part.startswith("["):
        if not NAME.fullmatch(part):
            raise InputError(f"host list {text!r:.60}: {part!r:.40} is not a name such as dgx[001-016,020]")
        return [part]
    numbers: list[str] = []
    for word in part[1:-1].split(","):
        match = RANGE.fullmatch(word.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"host list {text!r:.60}: {word!r:.40} is not a number or a range such as 001-016")
        first, last = int(match[1]), int(match[2] or match[1])
        if len(numbers) + last - first >= most:
            raise InputError(f"host list {text!r:.60}: more than {most} names")
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers
