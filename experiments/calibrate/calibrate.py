"""`quadrille calibrate`: microbenchmarks on the ranks of a launch, fitted into a machine file.

Question: how fast are products, memory-bound work and messages here, alone and
all at once?  It sees microbenchmarks only, never a whole algorithm.

Ranks are grouped by host.  On each host all ranks measure together, then one
alone; between hosts, one rank of each takes part, of the first two and of all at once.
Hosts of a laboratory share the cores of one machine: there the ranks of all of them
compute as those of one host do.
"""

import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from quadrille.algorithms.formats import files
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.calibrate.chunk_tuning import tune_messages, with_best_chunks
from quadrille.experiments.calibrate.measured_machine import make_machine
from quadrille.experiments.calibrate.measuring import measure
from quadrille.experiments.calibrate.sections import links_agree
from quadrille.experiments.calibrate.topology_option import default_star, parse_routing_option, parse_topology_option
from quadrille.runtime.arrays.blas import NUMPY_BLAS, describe_blas, open_blas
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.message_options import default_message_options
from quadrille.runtime.host import world
from quadrille.runtime.host.progress_reports import CollectiveWork, own_reporter, reporting
from quadrille.runtime.measuring.sizes import FULL, CalibrationSizes
from quadrille.topologies.machines.machine import Machine, save_machine


def calibrate(
    out: str,
    *,
    topology: str | None = None,
    routing: str = "",
    quick: bool = False,
    blas: str = NUMPY_BLAS,
    command: Sequence[str] = (),
    sizes: CalibrationSizes = FULL,
) -> None:
    """Measure on every rank of the world and write the machine file at rank 0.

    Parameters
    ----------
    out : path of the machine file, or `-`
    topology : the wiring of several hosts, as `family:key=value,…`; its link speeds may be left out
    routing : the ways between them; shortest where nothing is said
    quick : a third of the products, for a first look
    blas : whose products are measured

    Raises
    ------
    InputError : before anything is measured: a path that cannot be written, a wiring that is not of these hosts, a
        routing that it does not have, or a BLAS that is not here
    """
    communicator = world.world()
    is_root = communicator.Get_rank() == 0
    if is_root and out != "-":
        files.check_writable(out)
    hosts = world.hosts(communicator)
    wiring = parse_topology_option(topology, len(hosts)) if topology is not None else None
    ways = parse_routing_option(routing, wiring, len(hosts))
    agree = partial(links_agree, wiring or default_star(len(hosts)), ways)
    multiplied_by = NumpyLibrary() if blas == NUMPY_BLAS else open_blas(blas, 1)
    # nothing breaks between ranks of one host but a rank, and the launcher sees that
    watcher = own_reporter() if hosts[0].sharing else None
    with reporting(watcher, CollectiveWork("microbenchmarks")):
        tried = tune_messages(communicator, hosts, sizes) if communicator.Get_size() > 1 else ()
        message_options = communicator.bcast(with_best_chunks(tried, default_message_options(hosts[0])))
        measured = measure(communicator, hosts, message_options, agree=agree, quick=quick, blas=blas, sizes=sizes)
    if not is_root:
        return
    machine = make_machine(_name(out), measured, hosts, wiring, ways)
    made = provenance(list(command), blas=describe_blas(multiplied_by))
    machine = msgspec.structs.replace(machine, messages=tried, provenance=made)
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
