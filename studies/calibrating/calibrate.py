"""`quadrille calibrate`: microbenchmarks on the ranks of a launch, fitted into a machine file.

Question: how fast are products, memory-bound work and messages here, alone and
all at once?  It sees microbenchmarks only, never a whole algorithm.

Ranks are grouped by host.  On each host all ranks measure together, then one
alone; between hosts, one rank of each takes part, in pairs and all at once.
Hosts of a laboratory share the cores of one machine: there the ranks of all of them
compute as those of one host do.
"""

import sys
from collections.abc import Sequence

from algorithms.formats import files
from algorithms.formats.machine import Machine, save_machine
from runtime import world
from studies.calibrating.measured_machine import make_machine
from studies.calibrating.measuring import measure
from studies.calibrating.wiring import parse_wiring


def calibrate(out: str, *, topology: str | None = None, quick: bool = False, command: Sequence[str] = ()) -> None:
    """Measure on every rank of the world and write the machine file at rank 0.

    Parameters
    ----------
    out : path of the machine file, or `-`
    topology : the wiring of several hosts, as `family:key=value,…`; its link speeds may be left out
    quick : a third of the products, for a first look

    Raises
    ------
    InputError : a path that cannot be written, or a wiring that is not of these hosts, before anything is measured
    """
    communicator = world.world()
    speaks = communicator.Get_rank() == 0
    if speaks and out != "-":
        files.check_writable(out)
    hosts = world.hosts(communicator)
    wiring = parse_wiring(topology, len(hosts)) if topology is not None else None
    measured = measure(communicator, hosts, quick=quick)
    if not speaks:
        return
    machine = make_machine(_name(out), measured, hosts, wiring, list(command))
    save_machine(machine, out)
    _report(machine, out)


def _name(out: str) -> str:
    return "host" if out == "-" else out.rpartition("/")[2].removesuffix(".toml")


def _report(machine: Machine, out: str) -> None:
    assert machine.fit is not None
    for warning in machine.fit.warnings:
        print(f"calibrate: {warning}", file=sys.stderr)
    worst = max(machine.fit.residuals.values(), default=0.0)
    rates = ", ".join(
        f"{dtype} {rate / 1e9:.1f} Gflop/s" for dtype, rate in machine.device.peak_flops_per_second.items()
    )
    where = "stdout" if out == "-" else out
    print(
        f"calibrate: best product a core {rates}; median residual of the fit up to {worst:.1%}; wrote {where}",
        file=sys.stderr,
    )
