"""The expected slowdown by the slowest of many devices, whose speeds differ from device to device.

The seconds of local work of a device are those of the median device times a factor, which is lognormal with median 1:

    factor = exp(sigma * z),    z normal with mean 0 and standard deviation 1

The factor belongs to the device, not to an op.  Every rank of a training step waits for all other ranks, in sums over
data at the latest, so a step takes as long as if all devices were as slow as the slowest device.  The expected factor
of the slowest of n devices grows with n:

    E[exp(sigma max z)] = integral of exp(sigma z) n phi(z) Phi(z)^(n - 1) dz

Source: David, Nagaraja, "Order Statistics", 3rd edition, 2003, section 3.1.
"""

from functools import cache
from math import erfc, exp, log, pi, sqrt

FIRST, LAST, STEPS = -9.0, 14.0, 4600
"""Limits of the integral and its number of steps; with sigma up to 2, what lies outside is below 1e-15."""


@cache
def slowest_factor(sigma: float, devices: int) -> float:
    """The expected factor on the seconds of the slowest device.

    >>> round(slowest_factor(0.02, 1), 4), round(slowest_factor(0.02, 1024), 4), round(slowest_factor(0.02, 32768), 4)
    (1.0002, 1.0671, 1.0862)

    Parameters
    ----------
    sigma : standard deviation of the logarithm of the seconds from device to device
    devices : number of devices
    """
    step = (LAST - FIRST) / STEPS
    return step * sum(
        exp(sigma * z) * _density_of_the_largest(z, devices)
        for z in (FIRST + step * number for number in range(STEPS + 1))
    )


def _density_of_the_largest(z: float, count: int) -> float:
    """The density of the largest of `count` normal variables with mean 0 and standard deviation 1."""
    at_most = 0.5 * erfc(-z / sqrt(2))
    return count * exp(-z * z / 2 + (count - 1) * log(at_most)) / sqrt(2 * pi)
