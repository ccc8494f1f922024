"""`quadrille study published-collectives`: the error of the NCCL model against published measurements of collectives.

Each published row gets a prediction and a role: `judged`, `calibration` (the row sets a parameter of its machine by the
rule in `machine_calibration.py`), or `skipped` with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.nccl.communicator import NcclGroup
from quadrille.algorithms.collectives.nccl.tuner import NcclPlan
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import percent
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.machine.network import network_of
from quadrille.studies.judged_rows import Role
from quadrille.studies.published_collectives import p2p_messages
from quadrille.studies.published_collectives.collective_rows import LARGEST_ROUNDING, SCALES, CollectiveRow, read_rows
from quadrille.studies.published_collectives.machine_calibration import (
    CollectiveCalibration,
    calibrate,
    calibration_rows,
    machine_of,
)
from quadrille.studies.published_collectives.nccl_2_8 import plan_2_8
from quadrille.studies.published_collectives.report import (
    CollectivesAnswer,
    JudgedCollective,
    calibration_record,
    show,
    summarise,
)
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.network import Network

FOLDER = Path(__file__).parent
ROWS = FOLDER / "published_results.csv"
RESULTS = FOLDER / "results"
SCHEMA = "quadrille/published-collectives/1"


def main() -> None:
    """Run the study on the project's own rows, and write the answer and the figure to `results/`."""
    RESULTS.mkdir(exist_ok=True)
    json, figure = str(RESULTS / "rows.json"), str(RESULTS / "figure.png")
    published_collectives(json=json, figure=figure, command=["quadrille", "study", "published-collectives"])


def published_collectives(
    rows: str = "", *, json: str = "", figure: str = "", command: Sequence[str] = ()
) -> CollectivesAnswer:
    """Predict every row, judge the rows that can be judged, and print and write the results.

    Parameters
    ----------
    rows : CSV file of rows, by default the project's own; calibration always uses the project's own rows
    json : file of the answer, `-` for stdout; empty: not written
    figure : file of the figure; empty: not written
    command : command line, for the provenance
    """
    Destinations(json=json, plot=figure).check({"--rows": rows or str(ROWS)})
    published = read_rows(rows or ROWS)
    sites = calibrate_machines(read_rows(ROWS))
    judged = [judge(row, sites, duplicate) for row, duplicate in zip(published, finer_rows(published), strict=True)]
    answer = CollectivesAnswer(
        rows=judged,
        summary=summarise(judged),
        calibration=[calibration_record(site) for site in sites.values() if site.used_rows],
        provenance=provenance(command),
    )
    if figure:
        from quadrille.experiments.output.pictures import write_figure
        from quadrille.studies.published_collectives.figure import rows_figure

        write_figure(rows_figure(judged), figure)
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    return answer


def calibrate_machines(own: Sequence[CollectiveRow]) -> dict[str, CollectiveCalibration]:
    """The calibration of each machine of the rows, by the name of the machine.

    Parameters
    ----------
    own : all rows of the project's own file
    """
    chosen = calibration_rows(own)
    return {
        name: calibrate(name, rows, lambda row, settings: _seconds(row, settings)[0]) for name, rows in chosen.items()
    }


NO_SIZE = "the source says only that the message is large: predicted at 8 GiB"
ROUNDING_OF_SECONDS = 0.01
"""Largest relative difference, beyond their rounding, of a time and a bandwidth of the same run."""


def finer_rows(rows: Sequence[CollectiveRow]) -> list[CollectiveRow | None]:
    """For each row, the row that states the same measurement with less rounding; None if there is none."""
    best: dict[tuple[str, ...], CollectiveRow] = {}
    for row in rows:
        if (row.metric, row.unit) in SCALES and row.rounding < getattr(best.get(row.measurement_key), "rounding", inf):
            best[row.measurement_key] = row
    return [
        finer if (finer := best.get(row.measurement_key)) is not None and _same_run(row, finer) else None
        for row in rows
    ]


def _same_run(row: CollectiveRow, finer: CollectiveRow) -> bool:
    """Whether two rows of a measurement state the same run: different metrics, and times that agree within rounding."""
    if (row.metric, row.unit) not in SCALES or row.metric == finer.metric or not row.value:
        return False
    allowed = row.rounding + finer.rounding + ROUNDING_OF_SECONDS
    return abs(_published_seconds(row) / _published_seconds(finer) - 1) <= allowed


def _published_seconds(row: CollectiveRow) -> float:
    """The published time of a row [s], also of a bandwidth, by the formulas of nccl-tests."""
    scale = SCALES[row.metric, row.unit][1]
    if row.metric == "time":
        return row.value * scale
    factor = bus_factor(row.collective, row.gpus) if row.metric == "busbw" and row.collective else 1.0
    return row.size * factor / (row.value * scale)


def judge(
    row: CollectiveRow, sites: dict[str, CollectiveCalibration], duplicate: CollectiveRow | None = None
) -> JudgedCollective:
    """The row with its prediction and role.

    Parameters
    ----------
    row : published row
    sites : calibration of each machine by its name
    duplicate : row of the same measurement that is judged instead; None if there is none
    """
    reason = skip_reason(row)
    name = machine_of(row)
    if reason or name is None:
        return _entry(row, name, None, "", "skipped", reason)
    site = sites.get(name, CollectiveCalibration(name))
    try:
        predicted, model = _predicted_value(row, name, site.settings)
    except InputError as error:
        return _entry(row, name, None, "", "skipped", str(error))
    for parameter, own in site.used_rows:
        if row.id == own.id and row.measurement_key == own.measurement_key:
            return _entry(row, name, predicted, model, "calibration", f"sets {parameter} of {name}")
        if row.measurement_key == own.measurement_key:
            return _entry(
                row, name, predicted, model, "skipped", f"the same measurement as row {own.id}, which sets {parameter}"
            )
    if row.rounding > LARGEST_ROUNDING:
        reason = f"printed to {percent(row.rounding, signed=False)} only" if row.value else "printed as zero"
        return _entry(row, name, predicted, model, "skipped", reason)
    if duplicate is not None:
        return _entry(
            row, name, predicted, model, "skipped", f"the same measurement as row {duplicate.id}, judged there"
        )
    if not is_gpu_path_modelled(row):
        return _entry(row, name, predicted, model, "skipped", p2p_messages.NOT_MODELLED)
    return _entry(row, name, predicted, model, "judged", "" if row.bytes else NO_SIZE)


def is_gpu_path_modelled(row: CollectiveRow) -> bool:
    """Whether the work of the GPUs is modelled: that of NCCL and RCCL is, that of MPI is not."""
    return row.library in ("NCCL", "RCCL")


def _predicted_value(row: CollectiveRow, name: str, settings: NcclSettings) -> tuple[float, str]:
    """The prediction of a row in the row's unit, and the name of the modelled algorithm."""
    if row.kind == "p2p":
        machine, net = _network(name, 2 * MACHINES[name].gpus_per_node)
        return p2p_messages.predicted_message(row, machine, net, settings), "send and receive"
    seconds, model = _seconds(row, settings)
    metric, scale = SCALES[row.metric, row.unit]
    if metric == "time":
        return seconds / scale, model
    kind = row.collective
    assert kind is not None, row.id
    return row.size / seconds * (bus_factor(kind, row.gpus) if metric == "busbw" else 1.0) / scale, model


def skip_reason(row: CollectiveRow) -> str:
    """The reason why nothing is predicted for a row; empty if a prediction is possible."""
    if row.kind == "collective" and not is_gpu_path_modelled(row):
        return "the GPU path of MPI collectives (staging through the host, its own algorithms) is not modelled"
    if (name := machine_of(row)) is None:
        return f"machine {row.machine!r} is not known"
    if (row.metric, row.unit) not in (p2p_messages.SCALES if row.kind == "p2p" else SCALES):
        return f"the metric {row.metric} in {row.unit} is not predicted"
    if row.gpus < 2:
        return "one GPU: nothing moves"
    if row.kind == "p2p":
        return ""
    if row.collective is None:
        return f"the algorithm {row.algorithm!r} names no collective"
    if row.collective == "all_to_all":
        return "NCCL's all-to-all, of sends and receives, is not modelled"
    per_node, forced_algorithm = MACHINES[name].gpus_per_node, row.forced_algorithm
    if forced_algorithm == "nvls" and row.gpus > per_node:
        return f"NVLS is one node's; {row.gpus} GPUs are several"
    return ""


def _entry(
    row: CollectiveRow, name: str | None, predicted: float | None, model: str, role: Role, reason: str
) -> JudgedCollective:
    """The row of the answer; `name` is the named machine."""
    error = predicted / row.value - 1 if predicted is not None and row.value else None
    return JudgedCollective(
        id=row.id,
        machine=row.machine,
        metric=row.metric,
        unit=row.unit,
        published=row.value,
        predicted=predicted,
        relative_error=error,
        role=role,
        reason=reason,
        source=row.source,
        model=f"{name}: {model}" if model else name,
        gpus=row.gpus,
        message_bytes=row.bytes,
        algorithm=row.algorithm,
        gpu_path="modelled" if is_gpu_path_modelled(row) else "not modelled",
    )


def _seconds(row: CollectiveRow, settings: NcclSettings) -> tuple[float, str]:
    """The predicted time of a row [s], and the name of NCCL's algorithm."""
    name, kind = machine_of(row), row.collective
    assert name is not None, row.id
    assert kind is not None, row.id
    if row.is_nccl_2_8_era:
        settings = replace(settings, planned=_plan_function(row.forced_algorithm, name), as_root=row.is_root_time)
    return _cached_prediction(name, kind, row.size, row.gpus, row.forced_algorithm, settings)


@cache
def _plan_function(forced_algorithm: str, name: str) -> Callable[[CollectiveKind, float, NcclGroup], NcclPlan]:
    """The function that plans a collective as NCCL 2.8 does on the nodes of a named machine."""
    node = MACHINES[name].node
    behind_switch = "nvswitch" in node.parts
    return partial(
        plan_2_8,
        forced_algorithm=forced_algorithm,
        same_channels=behind_switch,
        same_channels_across_nodes=behind_switch and node.nics == 1,
    )


@cache
def _cached_prediction(
    name: str, kind: CollectiveKind, size: int, gpus: int, forced_algorithm: str, settings: NcclSettings
) -> tuple[float, str]:
    """The predicted time of a collective on a named machine [s], and the name of NCCL's algorithm."""
    question = CollectiveQuestion(
        kind=kind,
        bytes=size,
        gpus=gpus,
        group=gpus,
        choices=parse_choices(f"nccl:{forced_algorithm}" if forced_algorithm else "nccl"),
        nccl=settings,
    )
    machine, net = _network(name, gpus)
    prediction = predict_collective(question, machine, net=net)
    return prediction.seconds, prediction.algorithm


@cache
def _network(name: str, gpus: int) -> tuple[Machine, Network]:
    """A named machine with `gpus` GPUs, and its network."""
    machine = find_machine(name, (), gpus=gpus)
    return machine, network_of(machine)


if __name__ == "__main__":
    run_as_program(main)
