"""Shares of a device's peak rate: the only place where a rate of products is divided by a peak.

No device is faster than its peak.  A predicted share above 100 % is therefore an error of a count or of a time in
Quadrille, and no output shows it.
"""

from quadrille.algorithms.errors import QuadrilleError

ROUNDING = 1e-9


def peak_share(flops_per_second: float, peak: float | None) -> float | None:
    """The share of the peak that a predicted rate of products reaches, from 0 to 1; None if no peak is known.

    >>> peak_share(60e12, 312e12) == 60 / 312, peak_share(60e12, None)
    (True, None)

    Parameters
    ----------
    flops_per_second, peak : rate of the products, and peak rate of the same device [flop/s]

    Raises
    ------
    QuadrilleError : a rate above the peak
    """
    if not peak:
        return None
    share = flops_per_second / peak
    if share > 1 + ROUNDING:
        raise QuadrilleError(
            f"products at {flops_per_second:.4g} flop/s are {100 * share:.4g} % of the device's peak of {peak:.4g} "
            "flop/s: no device is faster than its peak, so this prediction is wrong; please report it"
        )
    return min(share, 1.0)


def measured_peak_share(flops_per_second: float, peak: float | None) -> float | None:
    """The share of the peak that a measured rate reaches; None if the machine gives no peak, or one that is too low.

    >>> measured_peak_share(6e10, 5e10), measured_peak_share(4e10, 5e10)
    (None, 0.8)
    """
    return peak_share(flops_per_second, peak) if peak and flops_per_second <= peak * (1 + ROUNDING) else None
