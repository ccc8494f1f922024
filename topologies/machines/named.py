"""Named machines: their wiring for any number of GPUs, and a source for every number.

The numbers are peaks and the wiring is the vendor's; a calibration on the
machine itself always beats them.  What is called an assumption is ours.
"""

from quadrille.algorithms.errors import InputError
from quadrille.topologies.machines.bench import BENCH
from quadrille.topologies.machines.clouds import CLOUDS
from quadrille.topologies.machines.named_machine import NamedMachine
from quadrille.topologies.machines.nvidia import NVIDIA
from quadrille.topologies.machines.sites import SITES
from quadrille.topologies.machines.slingshot import SLINGSHOT

__all__ = ["MACHINES", "NamedMachine", "machine"]

MACHINES: dict[str, NamedMachine] = {one.name: one for one in (*SLINGSHOT, *NVIDIA, *SITES, *CLOUDS, *BENCH)}


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
