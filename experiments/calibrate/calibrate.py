"""`quadrille calibrate`: microbenchmarks on the ranks of a launch, fitted into a machine file.

The microbenchmarks time products, memory-bound work and messages, on one rank alone and on all ranks at once.
Calibration never runs a whole algorithm, so that predictions of algorithms can be tested against measurements.

Ranks are grouped by host.  On each host all ranks measure together, then one rank alone.  Between hosts, one rank of
each host takes part: first of two hosts, then of all hosts.  The hosts of an emulated network share the cores of one
machine, so the ranks of all its hosts compute as the ranks of one host.
"""

import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.calibrate.calibration_benchmarks import measure
from quadrille.experiments.calibrate.chunk_tuning import options_with_best_chunks, tune_messages
from quadrille.experiments.calibrate.measured_machine import make_machine
from quadrille.experiments.calibrate.network_sections import links_agree
from quadrille.experiments.calibrate.topology_option import default_star, parse_routing_option, parse_topology_option
from quadrille.runtime.arrays.blas import NUMPY_BLAS, describe_blas, open_blas
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.message_options import default_message_options
from quadrille.runtime.host import world
from quadrille.runtime.host.progress_reports import CollectiveWork, own_reporter, reporting
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import save_machine


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
    topology : topology of several hosts, as `family:key=value,…`; its link speeds may be omitted
    routing : routing rule; `shortest` by default
    quick : whether to measure only a third of the products
    blas : BLAS whose products are measured, a name or a path
    command : words of the command line, for provenance
    sizes : sizes of the benchmarks

    Raises
    ------
    InputError : before any measurement: a path that cannot be written, a topology with another number of hosts, a
        routing rule that the topology lacks, or a BLAS that is not installed
    """
    communicator = world.world()
    is_root = communicator.Get_rank() == 0
    if is_root and out != "-":
        schema_files.check_writable(out)
    hosts = world.hosts(communicator)
    topology_option = parse_topology_option(topology, len(hosts)) if topology is not None else None
    routing_rule = parse_routing_option(routing, topology_option, len(hosts))
    agree = partial(links_agree, topology_option or default_star(len(hosts)), routing_rule)
    library = NumpyLibrary() if blas == NUMPY_BLAS else open_blas(blas, 1)
    # Between ranks of one host only a rank can fail, and the launcher sees that.
    reporter = own_reporter() if hosts[0].sharing else None
    with reporting(reporter, CollectiveWork("microbenchmarks")):
        message_rows = tune_messages(communicator, hosts, sizes) if communicator.Get_size() > 1 else ()
        message_options = communicator.bcast(options_with_best_chunks(message_rows, default_message_options(hosts[0])))
        measured = measure(communicator, hosts, message_options, agree=agree, quick=quick, blas=blas, sizes=sizes)
    if not is_root:
        return
    machine = make_machine(_name(out), measured, hosts, topology_option, routing_rule)
    origin = provenance(list(command), blas=describe_blas(library))
    machine = msgspec.structs.replace(machine, messages=message_rows, provenance=origin)
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
