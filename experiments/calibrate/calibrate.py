"""`quadrille calibrate`: microbenchmarks on the ranks of a launch, fitted into a machine file.

The microbenchmarks time products, memory-bound work and messages, on one rank alone and on all ranks at once.
Calibration never runs a whole algorithm, so that predictions of algorithms can be tested against measurements.

Ranks are grouped by host.  On each host all ranks measure together, then one rank alone.  Between hosts, one rank of
each host takes part: first of two hosts, then of all hosts.  The hosts of an emulated network share the cores of one
machine, so the ranks of all its hosts compute as the ranks of one host.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.measured_rows import MessagesRow
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.calibrate.calibration_benchmarks import measure, setting
from quadrille.experiments.calibrate.calibration_parts import CalibrationParts
from quadrille.experiments.calibrate.chunk_tuning import options_with_best_chunks, tune_messages
from quadrille.experiments.calibrate.measured_machine import make_machine
from quadrille.experiments.calibrate.network_sections import links_agree
from quadrille.experiments.calibrate.topology_option import default_star, parse_routing_option, parse_topology_option
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import percent
from quadrille.runtime.arrays.blas import NUMPY_BLAS, describe_blas, open_blas
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.message_options import default_message_options
from quadrille.runtime.host import world
from quadrille.runtime.host.progress_reports import CollectiveWork, own_reporter, reporting
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.topologies.machines.machine import Fit, Machine
from quadrille.topologies.machines.machine_file import save_machine


def calibrate(
    out: str,
    *,
    plot: str = "",
    topology: str | None = None,
    routing: str = "",
    blas: str = NUMPY_BLAS,
    command: Sequence[str] = (),
    sizes: CalibrationSizes = FULL,
) -> None:
    """Measure on every rank of the world and write the machine file at rank 0.

    Parameters
    ----------
    out : path of the machine file, or `-`
    plot : path of the figure of the measured rows and their fit; empty for none
    topology : topology of several hosts, as `family:key=value,…`; its link speeds may be omitted
    routing : routing rule; `shortest` by default
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
    if is_root:
        Destinations(plot=plot).check({} if out == "-" else {"--out": out})
        if out != "-":
            schema_files.check_writable(out)
    hosts = world.hosts(communicator)
    topology_option = parse_topology_option(topology, len(hosts)) if topology is not None else None
    routing_rule = parse_routing_option(routing, topology_option, len(hosts))
    agree = partial(links_agree, topology_option or default_star(len(hosts)), routing_rule)
    library = NumpyLibrary() if blas == NUMPY_BLAS else open_blas(blas, 1)
    # Between ranks of one host only a rank can fail, and the launcher sees that.
    reporter = own_reporter() if hosts[0].sharing else None
    parts = CalibrationParts(is_root)
    if left_out := sizes.left_out():
        parts.say(f"left out: {', '.join(left_out)}")
    with reporting(reporter, CollectiveWork("microbenchmarks")):
        message_rows: tuple[MessagesRow, ...] = ()
        if communicator.Get_size() > 1 and sizes.tunes_messages:
            with parts.part(f"chunk sizes and progress threads of messages, {setting(communicator.Get_size())}"):
                message_rows = tune_messages(communicator, hosts, sizes)
        message_options = communicator.bcast(options_with_best_chunks(message_rows, default_message_options(hosts[0])))
        measured = measure(communicator, hosts, message_options, agree=agree, blas=blas, sizes=sizes, parts=parts)
    if not is_root:
        return
    machine = make_machine(_name(out), measured, hosts, topology_option, routing_rule)
    origin = provenance(list(command), blas=describe_blas(library))
    machine = msgspec.structs.replace(machine, messages=message_rows, provenance=origin)
    save_machine(machine, out)
    if plot:
        from quadrille.experiments.calibrate.calibration_figure import draw_calibration

        draw_calibration(machine, plot)
    _report(machine, out, parts)


def _name(out: str) -> str:
    return "host" if out == "-" else out.rpartition("/")[2].removesuffix(".toml")


def _report(machine: Machine, out: str, parts: CalibrationParts) -> None:
    """Prints the warnings, the best rates, and the verdict of the calibration."""
    assert machine.fit is not None
    for warning in machine.fit.warnings:
        parts.say(warning)
    rates = ", ".join(
        f"{dtype} {rate / 1e9:.1f} Gflop/s" for dtype, rate in machine.device.peak_flops_per_second.items()
    )
    where = "stdout" if out == "-" else out
    parts.say(f"best product a core {rates}; {sum(parts.seconds.values()):.0f} s; wrote {where}")
    parts.say(f"verdict: {verdict(machine.fit)}")


def verdict(fit: Fit) -> str:
    """The verdict of a calibration: whether predictions can be trusted as far as the studies say.

    >>> verdict(Fit(residuals={"gemm float64 NN": 0.012}))
    'good: half of the products of each kind are within 1.2 % of the fit, and no warning was given'
    >>> verdict(Fit(residuals={"gemm float64 NN": 0.012}, warnings=("other load disturbed the calibration",)))
    'doubtful: the warning above; calibrate again when no other program runs'
    """
    if fit.warnings:
        named = "the warning" if len(fit.warnings) == 1 else f"the {len(fit.warnings)} warnings"
        return f"doubtful: {named} above; calibrate again when no other program runs"
    worst = max(fit.residuals.values(), default=0.0)
    return (
        f"good: half of the products of each kind are within {percent(worst, signed=False)} of the fit, "
        "and no warning was given"
    )
