"""`quadrille import machine`: a machine file from measured collectives, and how far it is from rows not fitted."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.schema_files import STDOUT
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.units import format_bytes_per_second, format_seconds
from quadrille.experiments.calibrate.fitted_collectives import (
    FittedMachine,
    FittedNumber,
    MeasuredCall,
    by_kind,
    fit_collectives,
    measured_calls,
    residuals,
    with_gpus,
)
from quadrille.experiments.check.check import layout_of
from quadrille.experiments.import_.file_kinds import read_measured
from quadrille.experiments.output.tables import UNKNOWN, percent, print_tables, table
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Machine, Source
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.machines.machine_file import save_machine

NODES_OF_GPU = {
    "A100": "a100-node",
    "H100": "h100-node",
    "H200": "h200-node",
    "B200": "b200-node",
    "B300": "b300-node",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "MI300X": "mi300x-node",
    "MI325X": "mi325x-node",
    "MI355X": "mi355x-node",
}
"""Named machine whose node has a GPU, by a word in the GPU's name."""
MEASURED = "-measured"
"""End of the name of a machine from measurements."""
MOST_GPUS = 8192
"""Most GPUs of a log: each step of the fit simulates all rows."""
MOST_CALLS = 2000
"""Most kinds and sizes that are fitted and judged."""
OTHERS = "rates of computing, of memory and of hosts are the base's"


@dataclass(frozen=True, slots=True)
class AskedLogs:
    """Logs, and what the user says of them.

    Parameters
    ----------
    ranks, nodes : numbers of all logs; None for those of the files
    kind : collective of rows that do not tell it
    """

    paths: Sequence[str]
    ranks: int | None = None
    nodes: int | None = None
    kind: CollectiveKind | None = None


def base_of_devices(paths: Sequence[str]) -> str:
    """The named machine with the GPUs that the logs name.

    Raises
    ------
    InputError : no GPU of a named machine, or several
    """
    devices = {device for path in paths for device in read_measured(path).devices}
    words = {word for device in devices for word in re.findall(r"[A-Z0-9]+", device.upper())}
    names = {name for word, name in NODES_OF_GPU.items() if word in words}
    if len(names) != 1:
        devices_text = ", ".join(sorted(devices)) or "no GPU"
        raise InputError(f"{paths[0]}: names {devices_text:.80}: --machine NAME|FILE says which machine is the base")
    return names.pop()


def machine_from_logs(base: Machine, asked: AskedLogs, command: Sequence[str] = ()) -> FittedMachine:
    """The machine with numbers fitted to the rows of logs, with their sources.

    Raises
    ------
    InputError : a log that cannot be read, or whose ranks do not fit the machine
    """
    smallest = with_gpus(base, 1)
    per_node = network_of(smallest).per_node
    calls: list[MeasuredCall] = []
    for path in asked.paths:
        log = read_measured(path)
        try:
            layout = layout_of(log, per_node, asked.ranks, asked.nodes)
            if layout.gpus > MOST_GPUS:
                raise InputError(f"{layout.gpus} GPUs: at most {MOST_GPUS} are accepted")
            calls += measured_calls(log.of_kind(asked.kind) if asked.kind else log, layout)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    if len(calls) > MOST_CALLS:
        raise InputError(f"{len(calls)} kinds and sizes of collectives: at most {MOST_CALLS} are accepted")
    most, own = max(call.gpus for call in calls), base.topology.get("gpus")
    if base.topology.get("family") in MACHINES and isinstance(own, int):
        base = with_gpus(base, max(own, most))
    fit = fit_collectives(base, calls)
    machine = _with_sources(fit, asked.paths)
    name = base.name.removesuffix(MEASURED) + MEASURED
    return FittedMachine(
        msgspec.structs.replace(machine, name=name, provenance=provenance(command)),
        fit.numbers,
        (*fit.untold, OTHERS),
        fit.fitted,
        fit.judged,
    )


def save_fit(fit: FittedMachine, into: str) -> None:
    """Writes the machine; the file of its topology is named from the folder of the machine file."""
    machine, file = fit.machine, fit.machine.topology.get("file")
    if isinstance(file, str) and into != STDOUT:
        file = os.path.relpath(file, Path(into).parent)
        machine = msgspec.structs.replace(machine, topology={**machine.topology, "file": file})
    save_machine(machine, into)


def _with_sources(fit: FittedMachine, paths: Sequence[str]) -> Machine:
    """The machine, with the logs as sources of the fitted numbers."""
    names = ", ".join(path.rpartition("/")[2] for path in paths)
    judged = residuals(fit.machine, fit.judged)
    error = f"; rows that were not fitted are {percent(judged.median, signed=False)} off (median)" if judged else ""
    fitted = {
        number.path.partition(".")[2]: Source(
            number.path.partition(".")[2],
            number.value,
            f"fitted to {number.rows} rows of {names:.200}, of which 90 % imply {number.least:.4g} to "
            f"{number.largest:.4g}{error}",
        )
        for number in fit.numbers
    }
    aliases = {f"nic_{name}": name for name in fitted}
    kept = [source for source in fit.machine.sources if aliases.get(source.quantity, source.quantity) not in fitted]
    return msgspec.structs.replace(fit.machine, sources=(*kept, *fitted.values()))


# Printing


def print_fit(base: Machine, fit: FittedMachine) -> None:
    """Prints the fitted numbers, the residuals by kind, and what the rows do not tell."""
    print_tables(
        table(
            f"numbers of {base.name} that were fitted",
            ("number", "before", "fitted", "90 % of the rows imply", "rows"),
            [_number_cells(number) for number in fit.numbers],
        ),
        table(
            "error of the predicted time: median, 90th percentile",
            ("collective", "ranks", "nodes", "sizes", "fitted rows", "other rows", "before"),
            list(_residual_cells(base, fit)),
            names=4,
        ),
    )
    print(f"not told: {'; '.join(fit.untold)}")


def _number_cells(number: FittedNumber) -> list[str]:
    def shown(value: float) -> str:
        if number.path.endswith("_seconds"):
            return format_seconds(value)
        return f"{value:.3f}" if number.path.endswith("_share") else format_bytes_per_second(value)

    interval = f"{shown(number.least)} to {shown(number.largest)}"
    return [number.path, shown(number.before), shown(number.value), interval, str(number.rows)]


def _residual_cells(base: Machine, fit: FittedMachine) -> list[list[str]]:
    fitted, judged = dict(by_kind(fit.fitted)), dict(by_kind(fit.judged))
    cells = []
    for key in sorted({*fitted, *judged}):
        kind, ranks, nodes, sizes = key
        shown = _shown_rows(base, fit, fitted.get(key, []), judged.get(key, []))
        cells.append([hyphenated(kind), str(ranks), str(nodes), sizes, *shown])
    return [*cells, ["all", "", "", "", *_shown_rows(base, fit, fit.fitted, fit.judged)]]


def _shown_rows(
    base: Machine, fit: FittedMachine, fitted: Sequence[MeasuredCall], others: Sequence[MeasuredCall]
) -> list[str]:
    columns = ((fit.machine, fitted), (fit.machine, others), (base, others))
    return [_shown_residuals(machine, calls) for machine, calls in columns]


def _shown_residuals(machine: Machine, calls: Sequence[MeasuredCall]) -> str:
    sizes = residuals(machine, calls)
    if sizes is None:
        return UNKNOWN
    return f"{percent(sizes.median, signed=False)}, {percent(sizes.high, signed=False)} ({sizes.rows})"
