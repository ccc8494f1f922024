"""Times and sizes of a report: the unit of a chart's axis, and the text of a table's cell."""

from quadrille.algorithms.units import GIB, KIB, MIB, format_seconds
from quadrille.experiments.output.tables import UNKNOWN


def time_unit(seconds: float) -> tuple[float, str]:
    """The factor from seconds to the unit in which a time has at most a few digits before the point, and the unit.

    >>> time_unit(4.04), time_unit(0.012), time_unit(3e-6)
    ((1.0, 's'), (1000.0, 'ms'), (1000000.0, 'us'))
    """
    if seconds >= 1 or seconds <= 0:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")


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


def time_text(seconds: float | None) -> str:
    """A time as the terminal writes it.

    >>> time_text(7.7e-6), time_text(0.0), time_text(None)
    ('7.70 us', '0 s', '-')
    """
    return UNKNOWN if seconds is None else format_seconds(seconds)
