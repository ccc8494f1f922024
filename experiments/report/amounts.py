"""Times and sizes of a report: the unit of a chart's axis, and the text of a table's cell."""

from quadrille.algorithms.units import GB, GIB, KIB, LEAST_SCIENTIFIC, MIB, format_bytes, format_percent, format_seconds
from quadrille.experiments.output.tables import UNKNOWN

GIGA, TERA = 1e9, 1e12


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


def flops_text(rate: float) -> str:
    """A rate of floating-point operations.

    >>> flops_text(1.95e13), flops_text(3.06e9)
    ('19.5 TFLOP/s', '3.06 GFLOP/s')
    """
    factor, unit = (TERA, "TFLOP/s") if rate >= TERA else (GIGA, "GFLOP/s")
    return f"{rate / factor:.4g} {unit}"


def keyed_amount_text(key: str, value: float) -> str:
    """A number as text, with the unit that the last words of its key tell.

    >>> keyed_amount_text("latency_seconds", 1.26e-3), keyed_amount_text("memory_bytes", 2**26)
    ('1.26 ms', '64 MiB')
    >>> keyed_amount_text("bandwidth", 1.555e12), keyed_amount_text("flops_per_second.float64", 1.95e13)
    ('1555 GB/s', '19.5 TFLOP/s')
    >>> keyed_amount_text("utilisation", 0.98), keyed_amount_text("alike", 16)
    ('98.0 %', '16')
    """
    if "flops_per_second" in key:
        return flops_text(value)
    if key.endswith(("bytes_per_second", "bandwidth")):
        return f"{value / GB:.4g} GB/s"
    if key.endswith(("seconds", "_s", "latency")):
        return format_seconds(value)
    if key.endswith("bytes"):
        return format_bytes(value)
    if key == "utilisation":
        return format_percent(value)
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < LEAST_SCIENTIFIC else f"{value:.6g}"
