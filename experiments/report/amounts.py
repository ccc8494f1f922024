"""Amounts of a report: the unit of an axis of memory, and the text of a cell."""

from quadrille.algorithms.units import GB, GIB, KIB, LEAST_SCIENTIFIC, MIB, format_bytes, format_percent, format_seconds

GIGA, TERA = 1e9, 1e12


def memory_unit(size: float) -> tuple[float, str]:
    """The factor from bytes to the unit in which a size is well read, and the unit.

    >>> memory_unit(2**31), memory_unit(2**21), memory_unit(11)
    ((9.313225746154785e-10, 'GiB'), (9.5367431640625e-07, 'MiB'), (1.0, 'B'))
    """
    steps = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
    return next(((1 / step, unit) for step, unit in steps if size >= step), (1.0, "B"))


def compact(value: float) -> float:
    """A number with five significant digits, which no chart shows more of."""
    return float(f"{value:.5g}")


def flops_text(rate: float) -> str:
    """A rate of floating-point operations.

    >>> flops_text(1.95e13), flops_text(3.06e9)
    ('19.5 TFLOP/s', '3.06 GFLOP/s')
    """
    factor, unit = (TERA, "TFLOP/s") if rate >= TERA else (GIGA, "GFLOP/s")
    return f"{rate / factor:.4g} {unit}"


def amount_text(value: float, unit: str) -> str:
    """A number in a base unit as text; a unit without a format of its own is that of a plain number.

    >>> amount_text(1.26e-3, "s"), amount_text(2**26, "B"), amount_text(0.98, "share"), amount_text(16, "")
    ('1.26 ms', '64 MiB', '98.0 %', '16')
    >>> amount_text(1.555e12, "B/s"), amount_text(1.95e13, "FLOP/s"), amount_text(0.5, "")
    ('1555 GB/s', '19.5 TFLOP/s', '0.5')
    """
    if unit == "FLOP/s":
        return flops_text(value)
    if unit == "B/s":
        return f"{value / GB:.4g} GB/s"
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    if unit == "share":
        return format_percent(value)
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < LEAST_SCIENTIFIC else f"{value:.6g}"
