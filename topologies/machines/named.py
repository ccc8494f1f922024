"""Machines known by name: their networks for any number of GPUs, and a source for every number.

The numbers are peaks from data sheets, and the networks are those that the vendors
describe.  A calibration on the machine itself is always better.  A number whose
source begins with "assumption" is Quadrille's own.
"""

from collections.abc import Iterable

from quadrille.algorithms.errors import unknown_name
from quadrille.topologies.lazy_table import LazyTable, named_values
from quadrille.topologies.machines.named_machine import NamedMachine

__all__ = ["MACHINES", "NamedMachine", "known_machine", "machine"]


def _slingshot() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.slingshot import SLINGSHOT

    return SLINGSHOT


def _nvidia() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.nvidia import NVIDIA

    return NVIDIA


def _sites() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.sites import SITES

    return SITES


def _bench() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.bench import BENCH

    return BENCH


MACHINES: LazyTable[NamedMachine] = named_values(
    {
        _slingshot: ("perlmutter", "frontier", "alps"),
        _nvidia: ("selene", "h100-superpod", "h100-node", "h200-node", "b200-node"),
        _sites: (
            *("summit", "longhorn", "jean-zay-v100", "jean-zay-a100", "abci-v100", "abci-a100"),
            *("aws-p4d", "aws-p6-b200", "mi300x-node", "unnamed-4x8"),
        ),
        _bench: ("bench-1to1", "bench-2to1"),
    },
)
"""Machines by name."""


def known_machine(name: str) -> bool:
    """Whether a machine of this name is known; upper and lower case are the same.

    >>> known_machine("Perlmutter"), known_machine("perlmuter")
    (True, False)
    """
    return name.lower() in MACHINES


def machine(name: str) -> NamedMachine:
    """The machine of this name; upper and lower case are the same.

    >>> machine("Perlmutter").peak_flops_per_second["bfloat16"]
    312000000000000.0
    >>> sorted(machine("frontier").peak_flops_per_second)
    ['bfloat16', 'float16', 'float32', 'float64']
    >>> machine("perlmutter").topology(6).node_count
    17

    Raises
    ------
    InputError : an unknown name; the message suggests the nearest names, or lists all
    """
    if not known_machine(name):
        raise unknown_name("machine", name, MACHINES, "or give a machine file")
    return MACHINES[name.lower()]
