"""Limits of a topology: checks of counts, cables and sizes before a network is built."""

from math import isfinite

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import LARGEST_RATE, LEAST_RATE, LONGEST_SECONDS

MAX_COUNT = 1 << 60
"""Largest count that an argument may have."""
MAX_NODES = 1 << 20
"""Largest number of nodes of a network."""
MAX_LINKS = 1 << 21
"""Largest number of links of a network, counted per direction: a network is built and shown in five seconds."""


def check_counts(family: str, **counts: int) -> None:
    """Check that counts are from 1 to `MAX_COUNT`.

    Raises
    ------
    InputError : naming the family, the count and its value
    """
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{family}: {name}={count} must be a whole number from 1")
        if count > MAX_COUNT:
            raise InputError(f"{family}: {name}={count} must be a whole number from 1 to {MAX_COUNT}")


def check_cable(family: str, bandwidth: float, latency: float, *, prefix: str = "") -> None:
    """Check the rates of a cable: bandwidth [B/s] finite and above 0, latency [s] finite and from 0.

    Raises
    ------
    InputError : naming the family, the quantity (with `prefix`) and its value
    """
    if not (isfinite(bandwidth) and bandwidth > 0):
        raise InputError(f"{family}: {prefix}bandwidth={bandwidth} must be a finite number of B/s above 0")
    if not LEAST_RATE <= bandwidth <= LARGEST_RATE:
        accepted = f"{LEAST_RATE:g} to {LARGEST_RATE:g} B/s"
        raise InputError(f"{family}: {prefix}bandwidth={bandwidth} is out of range: {accepted} are accepted")
    if not (isfinite(latency) and latency >= 0):
        raise InputError(f"{family}: {prefix}latency={latency} must be a finite number of seconds from 0")
    if latency > LONGEST_SECONDS:
        raise InputError(
            f"{family}: {prefix}latency={latency} is out of range: 0 to {LONGEST_SECONDS:g} s are accepted"
        )


def check_size(family: str, nodes: int, links: int) -> None:
    """Check, before anything is built, that a network has at most `MAX_NODES` nodes and `MAX_LINKS` links.

    Raises
    ------
    InputError : naming both numbers and what is accepted
    """
    if nodes > MAX_NODES or links > MAX_LINKS:
        raise InputError(
            f"{family}: {nodes} nodes and {links} links are too many; at most {MAX_NODES} and {MAX_LINKS} are built"
        )
