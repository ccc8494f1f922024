"""Named machines: their wiring for any number of GPUs, and a source for every number.

The numbers are peaks and the wiring is the vendor's; a calibration on the
machine itself always beats them.  What is called an assumption is ours.
"""

from collections.abc import Iterable
from functools import partial

from quadrille.algorithms.errors import InputError
from quadrille.topologies.lazy_table import LazyTable
from quadrille.topologies.machines.named_machine import NamedMachine

__all__ = ["MACHINES", "NamedMachine", "machine"]


def _named(name: str, machines: Iterable[NamedMachine]) -> NamedMachine:
    return next(named for named in machines if named.name == name)


def _of_slingshot(name: str) -> NamedMachine:
    from quadrille.topologies.machines.slingshot import SLINGSHOT

    return _named(name, SLINGSHOT)


def _of_nvidia(name: str) -> NamedMachine:
    from quadrille.topologies.machines.nvidia import NVIDIA

    return _named(name, NVIDIA)


def _of_sites(name: str) -> NamedMachine:
    from quadrille.topologies.machines.sites import SITES

    return _named(name, SITES)


def _of_clouds(name: str) -> NamedMachine:
    from quadrille.topologies.machines.clouds import CLOUDS

    return _named(name, CLOUDS)


def _of_bench(name: str) -> NamedMachine:
    from quadrille.topologies.machines.bench import BENCH

    return _named(name, BENCH)


MACHINES: LazyTable[NamedMachine] = LazyTable(
    {
        **{name: partial(_of_slingshot, name) for name in ("perlmutter", "frontier", "alps")},
        **{
            name: partial(_of_nvidia, name)
            for name in ("selene", "h100-superpod", "h100-node", "h200-node", "b200-node")
        },
        **{
            name: partial(_of_sites, name)
            for name in ("summit", "longhorn", "jean-zay-v100", "jean-zay-a100", "abci-v100", "abci-a100")
        },
        **{name: partial(_of_clouds, name) for name in ("aws-p4d", "aws-p6-b200", "mi300x-node", "unnamed-4x8")},
        **{name: partial(_of_bench, name) for name in ("bench-1to1", "bench-2to1")},
    }
)


def machine(name: str) -> NamedMachine:
    """The machine of this name.

    >>> machine("perlmutter").peak_flops_per_second["bfloat16"]
    312000000000000.0
    >>> sorted(machine("frontier").peak_flops_per_second)
    ['bfloat16', 'float16', 'float32', 'float64']
    >>> machine("perlmutter").topology(6).node_count
    17

    Raises
    ------
    InputError : an unknown name; the message lists the known ones
    """
    if name not in MACHINES:
        raise InputError(f"machine {name!r:.60} is unknown; there are {', '.join(MACHINES)}, or give a machine file")
    return MACHINES[name]
