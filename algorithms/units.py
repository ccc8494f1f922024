"""Units: conversion of sizes, rates, times and flop rates from text and to text.

Quadrille computes in seconds, bytes, bytes/s, flop and flop/s.  Text has prefixes that are easily confused:

    kB, MB, GB, TB       powers of 1000 of a byte (B)
    KiB, MiB, GiB, TiB   powers of 1024 of a byte
    kb, Mb, Gb, Tb       powers of 1000 of a bit (b, bit), an eighth of the above; kbit, mbit, … too

200 Gb/s = 25 GB/s = 23.28 GiB/s.  The functions `parse_…` convert input text, the functions `format_…` convert numbers
for output.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from quadrille.algorithms.errors import InputError

BITS_PER_BYTE = 8
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_BIT = Fraction(1, BITS_PER_BYTE)
BYTES_OF_UNIT: dict[str, Fraction] = {"": Fraction(1), "B": Fraction(1), "b": _BIT, "bit": _BIT, "KB": Fraction(KB)}
for _letter, _thousands, _binary in (("k", KB, KIB), ("M", MB, MIB), ("G", GB, GIB), ("T", TB, TIB)):
    BYTES_OF_UNIT[f"{_letter}B"] = Fraction(_thousands)
    BYTES_OF_UNIT[f"{_letter.upper()}iB"] = Fraction(_binary)
    for _name in (f"{_letter}b", f"{_letter}bit", f"{_letter.lower()}bit"):  # 200mbit, as Linux's tc writes it
        BYTES_OF_UNIT[_name] = _thousands * _BIT

DECIMAL_AND_BINARY = {
    letter: (f"{'k' if decimal == 'K' else decimal}B", f"{decimal}iB")
    for letter, decimal in (
        ("k", "K"),
        ("K", "K"),
        ("M", "M"),
        ("G", "G"),
        ("T", "T"),
        ("m", "M"),
        ("g", "G"),
        ("t", "T"),
    )
}
"""The two units of bytes that a bare prefix may mean."""
SECONDS_OF_UNIT = {"": Fraction(1), "s": Fraction(1)} | {
    unit: Fraction(1, 10**digits) for unit, digits in (("ms", 3), ("us", 6), ("µs", 6), ("ns", 9), ("ps", 12))
}
LEAST_RATE, LARGEST_RATE = 1e-9, 1e36
"""Least and largest accepted rates [B/s, flop/s]; times that follow from them stay finite."""
LONGEST_SECONDS = 1e12
"""Longest accepted latency or time [s]."""
PREFIXES = {prefix: Fraction(10) ** digits for prefix, digits in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))}
PREFIXES |= {"P": Fraction(10) ** 15, "E": Fraction(10) ** 18}

_QUANTITY = re.compile(r"\s*([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*")
NOISE_SECONDS = 0.5e-9
"""Differences of times that are shorter come from rounding."""
ROUNDS_UP = 5e-5
"""Share of a unit that four significant digits round up."""
LEAST_SCIENTIFIC = 1e9
"""Least number that is printed with an exponent, so that no absurd quantity fills a line."""
_DECIMAL_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY_STEPS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of times that are shown together: its name, and how many of it are a second.

    >>> unit = TimeUnit("ms", 1e3)
    >>> unit.number(0.25), unit.text(0.0123456), unit.text(2.8e-14), TimeUnit("s", 1).text(86400)
    (250.0, '12.35 ms', '0 ms', '86400 s')
    """

    name: str
    per_second: float

    def number(self, seconds: float) -> float:
        """A time in this unit."""
        return self.per_second * seconds

    def text(self, seconds: float) -> str:
        """A time with four significant digits in this unit; less than half a nanosecond is 0, since it is rounding."""
        if abs(seconds) < NOISE_SECONDS:
            return f"0 {self.name}"
        number = self.number(seconds)
        if not abs(number) < LEAST_SCIENTIFIC:
            return f"{number:.4g} {self.name}"
        digits = 3 - math.floor(math.log10(abs(float(f"{number:.4g}"))))
        return f"{number:.{max(0, digits)}f} {self.name}"


SECOND, MILLISECOND, MICROSECOND = TimeUnit("s", 1.0), TimeUnit("ms", 1e3), TimeUnit("us", 1e6)
TIME_UNITS = (SECOND, MILLISECOND, MICROSECOND)
"""Units of the times of a table or of an axis, the longest first."""
_TIME_STEPS = (*((1 / unit.per_second, unit.name) for unit in TIME_UNITS), (1e-9, "ns"))


def parse_bytes(text: str) -> int:
    """Returns the integer number of bytes that `text` names.

    >>> parse_bytes("64MiB"), parse_bytes("1.5 GB"), parse_bytes("4096"), parse_bytes("8Gb")
    (67108864, 1500000000, 4096, 1000000000)

    Raises
    ------
    InputError : no number, an unknown unit, zero, or a fraction of a byte
    """
    size = _number_of_bytes(text, "size", "64MiB, 1.5GB or 4096")
    if size < 1 or size.denominator != 1:
        raise InputError(f"size {text!r} is {float(size):g} bytes: a size is a whole number of bytes from 1")
    return int(size)


def parse_rate(text: str) -> float:
    """Returns the bytes per second that `text` names; "/s" and "ps" are optional.

    >>> parse_rate("200Gb/s"), parse_rate("25 GB/s"), parse_rate("50e9")
    (25000000000.0, 25000000000.0, 50000000000.0)
    """
    rate = float(_number_of_bytes(re.sub(r"(/s|(?<=[Bbt])ps)\s*$", "", text), "rate", "200mbit, 25GB/s or 25e6"))
    if rate <= 0:
        raise InputError(f"rate {text!r} is not above zero: write for example 25GB/s or 200Gb/s")
    return rate


def parse_seconds(text: str) -> float:
    """Returns the seconds that `text` names.

    >>> parse_seconds("1.35us"), parse_seconds("600 ns"), parse_seconds("2e-3")
    (1.35e-06, 6e-07, 0.002)

    Raises
    ------
    InputError : no number, or an unknown unit
    """
    return float(_scaled(text, SECONDS_OF_UNIT, "time", "1.35us, 600ns or 1e-6"))


def parse_flops(text: str) -> float:
    """Returns the flop/s that `text` names.

    >>> parse_flops("312 TFLOP/s"), parse_flops("19.5TFLOPS"), parse_flops("1e12")
    (312000000000000.0, 19500000000000.0, 1000000000000.0)

    Raises
    ------
    InputError : no number, or an unknown unit
    """
    bare = re.sub(r"(?i)flop(s|/s)?\s*$", "", text)
    return float(_scaled(bare, PREFIXES, "speed", "312TFLOP/s or 312e12"))


UNIT_WORDS = (
    (r"flops_per_second", "FLOP/s"),
    (r"bytes_per_second|bandwidth$", "B/s"),
    (r"seconds_per_byte", "s/B"),
    (r"(^|[_.])(seconds|s)(_|$)|latency$", "s"),
    (r"(^|[_.])bytes(_|$)", "B"),
)
"""Words of a name, and the unit that they say; the first counts."""


def unit_by_name(name: str) -> str:
    """The base unit that the name of a quantity says; empty for a plain number.

    It is for names that no type declares: settings of machines, and keys and columns of foreign files.

    >>> [unit_by_name(name) for name in ("nic_latency", "busy_s", "bytes_sent_max", "bandwidth", "hosts")]
    ['s', 's', 'B', 'B/s', '']
    >>> unit_by_name("device.flops_per_second.float64"), unit_by_name("host.copy_seconds_per_byte")
    ('FLOP/s', 's/B')
    """
    return next((unit for words, unit in UNIT_WORDS if re.search(words, name)), "")


def parse_measure(text: str, name: str) -> float:
    """Returns the number that `text` names, in the base unit that the name says (`unit_by_name`).

    >>> parse_measure("1.35us", "nic_latency"), parse_measure("400Gbit/s", "bandwidth_bytes_per_second")
    (1.35e-06, 50000000000.0)
    >>> parse_measure("80GB", "memory_bytes"), parse_measure("8", "hosts")
    (80000000000.0, 8.0)

    Raises
    ------
    InputError : no number, a unit of another quantity, or a unit where the name has none
    """
    unit = unit_by_name(name)
    if unit == "B/s":
        return parse_rate(text)
    if unit == "s":
        return parse_seconds(text)
    if unit == "FLOP/s":
        return parse_flops(text)
    if unit == "B":
        return float(_number_of_bytes(text, "size", "80GB, 64MiB or 4096"))
    return float(_scaled(text, {"": Fraction(1)}, "number", "8 or 0.5"))


def time_unit(times: Iterable[float]) -> TimeUnit:
    """The unit of times [s] that are compared, such as those of a table or of an axis: it suits the longest of them.

    >>> [time_unit(times).name for times in ([3e-9, 0.02], [0.0, 75.0], [6e-7], [0.99996], [])]
    ['ms', 's', 'us', 's', 'ms']
    """
    longest = max(map(abs, times), default=0.0)
    if longest < NOISE_SECONDS:
        return MILLISECOND
    return next((unit for unit in TIME_UNITS if unit.number(longest) >= 1 - ROUNDS_UP), MICROSECOND)


def format_seconds(seconds: float) -> str:
    """A time with three significant digits, in the unit that keeps it readable.

    Less than half a nanosecond is 0, since it is rounding.

    >>> format_seconds(0.0123), format_seconds(3e-3), format_seconds(75), format_seconds(2.8e-14)
    ('12.3 ms', '3.00 ms', '75.0 s', '0 s')
    >>> format_seconds(123456789), format_seconds(1e306)
    ('123456789 s', '1.00e+306 s')
    """
    return _format_step(seconds if abs(seconds) >= NOISE_SECONDS else 0.0, _TIME_STEPS, zeros=True)


def format_bytes(size: float) -> str:
    """Returns a size in binary units.

    >>> format_bytes(67108864), format_bytes(1000), format_bytes(1536)
    ('64 MiB', '1000 B', '1.5 KiB')
    """
    return _format_step(size, _BINARY_STEPS)


def format_bytes_per_second(rate: float) -> str:
    """Returns a data rate in powers of 1000 of a byte per second.

    >>> format_bytes_per_second(25e9), format_bytes_per_second(6.25e6)
    ('25 GB/s', '6.25 MB/s')
    """
    return f"{_format_step(rate, _DECIMAL_STEPS, gap=True)}B/s"


def format_percent(fraction: float, *, digits: int = 1, signed: bool = False) -> str:
    """Returns a fraction as percent; a fraction that rounds to zero has no minus sign.

    >>> format_percent(0.0416), format_percent(0.5, digits=0), format_percent(0.03, signed=True), format_percent(1e300)
    ('4.2 %', '50 %', '+3.0 %', '1e+302 %')
    >>> format_percent(-1e-5), format_percent(-1e-5, signed=True), format_percent(-0.004, digits=0)
    ('0.0 %', '+0.0 %', '0 %')

    Parameters
    ----------
    digits : number of digits after the point
    signed : whether numbers above 0 have a sign too
    """
    value = 100 * fraction
    if abs(value) < LEAST_SCIENTIFIC and not round(value, digits):
        value = 0.0
    form = f".{digits}f" if abs(value) < LEAST_SCIENTIFIC else ".3g"
    return f"{value:{'+' if signed else ''}{form}} %"


def _number_of_bytes(text: str, quantity: str, such_as: str) -> Fraction:
    return _scaled(text, BYTES_OF_UNIT, quantity, such_as)


def _scaled(text: str, units: dict[str, Fraction], quantity: str, such_as: str) -> Fraction:
    """Returns the number with a unit that `text` is, in the base unit."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f"{quantity} {text!r} is not a number from 0 with a unit, such as {such_as}")
    number, unit = match.groups()
    factor = units.get(unit)
    if factor is None and units is BYTES_OF_UNIT and unit in DECIMAL_AND_BINARY:
        decimal, binary = DECIMAL_AND_BINARY[unit]
        per_second = "/s" if quantity == "rate" else ""
        raise InputError(
            f"{quantity} {text!r}: {unit} alone is {decimal} to some programs and {binary} to others, such as "
            f"nccl-tests: write {number}{decimal}{per_second} or {number}{binary}{per_second}"
        )
    if factor is None:
        accepted = ", ".join(name for name in units if name) or "no unit"
        raise InputError(f"{quantity} {text!r} has the unknown unit {unit!r}; accepted: {accepted}")
    if not math.isfinite(float(number) * float(factor)):
        noun = "bytes" if units is BYTES_OF_UNIT else "the quantity"
        raise InputError(f"{quantity} {text!r} is too large: a finite number of {noun} is needed")
    return Fraction(number) * factor


def _format_step(value: float, steps: tuple[tuple[float, str], ...], *, gap: bool = False, zeros: bool = False) -> str:
    """Returns `value` with three digits in the largest unit that does not exceed it.

    Numbers from `LEAST_SCIENTIFIC` of the largest unit on have an exponent.

    Parameters
    ----------
    gap : whether a space precedes a bare prefix
    zeros : whether zeros at the end are kept
    """
    if value == 0 or not math.isfinite(value):
        unit = next(unit for factor, unit in steps if factor == 1)
        return f"{value:g} {unit}" if unit or gap else f"{value:g}"
    factor, unit = next((step for step in steps if abs(value) >= step[0] * (1 - 5e-4)), steps[-1])
    scaled = value / factor
    if 999.5 <= abs(scaled) < LEAST_SCIENTIFIC:
        return f"{scaled:.0f} {unit}"
    digits = f"{scaled:{'#' if zeros else ''}.3g}".removesuffix(".")
    return f"{digits} {unit}"


MOST_DIGITS = 15
"""Largest number of digits accepted; no size has more, and Python refuses to parse thousands."""


def parse_integer(text: str) -> int | None:
    """Returns the non-negative integer that `text` is, of at most 15 digits, or None.

    >>> parse_integer("12"), parse_integer("-1"), parse_integer("1e3"), parse_integer("9" * 16)
    (12, None, None, None)
    """
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdigit() else None
