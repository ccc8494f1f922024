"""How far off is the NCCL model on the links, against published measurements of collectives?

Every row of kind collective or p2p is listed with its role: judged, learnt from
(`sites.py` has the rule), or skipped with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path

from quadrille.algorithms.collectives.choices import parse_choices
from quadrille.algorithms.collectives.nccl.communicator import NcclGroup
from quadrille.algorithms.collectives.nccl.plan import NcclPlan
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.experiments.network.bandwidths import bus_factor
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.question import CollectiveQuestion
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import percent
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.machine.network import network_of
from quadrille.studies.judged_rows import Role
from quadrille.studies.published_collectives import messages
from quadrille.studies.published_collectives.answers import CollectivesAnswer, JudgedCollective, learnt, show, summarise
from quadrille.studies.published_collectives.nccl_2_8 import plan_2_8
from quadrille.studies.published_collectives.rows import SCALES, TOO_ROUNDED, CollectiveRow, read_rows
from quadrille.studies.published_collectives.sites import LearntCollectives, calibration_rows, learn, machine_of
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.network import Network

FOLDER = Path(__file__).parent
ROWS = FOLDER / "published_results.csv"
RESULTS = FOLDER / "results"
SCHEMA = "quadrille/published-collectives/1"


def main() -> None:
    """Judge the project's own rows and keep the answer."""
    RESULTS.mkdir(exist_ok=True)
    kept, figure = str(RESULTS / "rows.json"), str(RESULTS / "figure.png")
    published_collectives(json=kept, figure=figure, command=["quadrille", "study", "published-collectives"])


def published_collectives(
    rows: str = "", *, json: str = "", figure: str = "", command: Sequence[str] = ()
) -> CollectivesAnswer:
    """Predict every row, judge the rows that can be judged, and print and write the results.

    Parameters
    ----------
    rows : CSV file of rows, by default the project's own; calibration always uses the project's own rows
    json, figure : files of the answer and the figure; json `-` is stdout
    """
    Destinations(json=json, plot=figure).check({"--rows": rows or str(ROWS)})
    published = read_rows(rows or ROWS)
    sites = learn_sites(read_rows(ROWS))
    judged = [judge(row, sites, twin) for row, twin in zip(published, finer_rows(published), strict=True)]
    answer = CollectivesAnswer(
        rows=judged,
        summary=summarise(judged),
        calibration=[learnt(site) for site in sites.values() if site.learnt_from],
        provenance=provenance(command),
    )
    if figure:
        from quadrille.studies.published_collectives.figure import draw

        draw(judged, figure)
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    return answer


def learn_sites(own: Sequence[CollectiveRow]) -> dict[str, LearntCollectives]:
    """Every machine that rows name, with what was learnt of it, by the name of our machine."""
    chosen = calibration_rows(own)
    return {name: learn(name, rows, lambda row, settings: _seconds(row, settings)[0]) for name, rows in chosen.items()}


NO_SIZE = "the source says only that the message is large: predicted at 8 GiB"
ROUNDING_OF_SECONDS = 0.01
"""What times and bandwidths of one run may differ by beside their rounding."""


def finer_rows(rows: Sequence[CollectiveRow]) -> list[CollectiveRow | None]:
    """For each row, the row that states the same measurement with less rounding; None if there is none."""
    best: dict[tuple[str, ...], CollectiveRow] = {}
    for row in rows:
        if (row.metric, row.unit) in SCALES and row.rounding < getattr(best.get(row.measurement), "rounding", inf):
            best[row.measurement] = row
    return [
        finer if (finer := best.get(row.measurement)) is not None and _same_run(row, finer) else None for row in rows
    ]


def _same_run(row: CollectiveRow, finer: CollectiveRow) -> bool:
    """Whether two rows of a measurement describe the same run: different metrics, equal seconds within rounding."""
    if (row.metric, row.unit) not in SCALES or row.metric == finer.metric or not row.value:
        return False
    allowed = row.rounding + finer.rounding + ROUNDING_OF_SECONDS
    return abs(_published_seconds(row) / _published_seconds(finer) - 1) <= allowed


def _published_seconds(row: CollectiveRow) -> float:
    """The seconds of a row, whatever its metric, by nccl-tests' formulas."""
    scale = SCALES[row.metric, row.unit][1]
    if row.metric == "time":
        return row.value * scale
    factor = bus_factor(row.collective, row.gpus) if row.metric == "busbw" and row.collective else 1.0
    return row.size * factor / (row.value * scale)


def judge(
    row: CollectiveRow, sites: dict[str, LearntCollectives], twin: CollectiveRow | None = None
) -> JudgedCollective:
    """The row with its prediction and role.

    Parameters
    ----------
    twin : row of the same measurement that is judged instead
    """
    reason = why_skipped(row)
    name = machine_of(row)
    if reason or name is None:
        return _entry(row, name, None, "", "skipped", reason)
    site = sites.get(name, LearntCollectives(name))
    try:
        predicted, model = _in_its_unit(row, name, site.settings)
    except InputError as error:
        return _entry(row, name, None, "", "skipped", str(error))
    for parameter, own in site.learnt_from:
        if row.id == own.id and row.measurement == own.measurement:
            return _entry(row, name, predicted, model, "calibration", f"sets {parameter} of {name}")
        if row.measurement == own.measurement:
            return _entry(
                row, name, predicted, model, "skipped", f"the same measurement as row {own.id}, which sets {parameter}"
            )
    if row.rounding > TOO_ROUNDED:
        reason = f"printed to {percent(row.rounding, signed=False)} only" if row.value else "printed as zero"
        return _entry(row, name, predicted, model, "skipped", reason)
    if twin is not None:
        return _entry(row, name, predicted, model, "skipped", f"the same measurement as row {twin.id}, judged there")
    if not gpu_path_modelled(row):
        return _entry(row, name, predicted, model, "skipped", messages.NOT_MODELLED)
    return _entry(row, name, predicted, model, "judged", "" if row.bytes else NO_SIZE)


def gpu_path_modelled(row: CollectiveRow) -> bool:
    """Whether what GPUs do for a row is in the model: NCCL's and RCCL's way, not MPI's."""
    return row.carrier in ("NCCL", "RCCL")


def _in_its_unit(row: CollectiveRow, name: str, settings: NcclSettings) -> tuple[float, str]:
    """What is predicted for a row, in its unit, and by what algorithm."""
    if row.kind == "p2p":
        machine, net = _network(name, 2 * MACHINES[name].gpus_per_node)
        return messages.predicted_message(row, machine, net, settings), "send and receive"
    seconds, model = _seconds(row, settings)
    metric, scale = SCALES[row.metric, row.unit]
    if metric == "time":
        return seconds / scale, model
    kind = row.collective
    assert kind is not None, row.id
    return row.size / seconds * (bus_factor(kind, row.gpus) if metric == "busbw" else 1.0) / scale, model


def why_skipped(row: CollectiveRow) -> str:
    """Why nothing is predicted for a row; empty where it is."""
    if row.kind == "collective" and not gpu_path_modelled(row):
        return "the GPU path of MPI collectives (staging through the host, its own algorithms) is not modelled"
    if (name := machine_of(row)) is None:
        return f"machine {row.machine!r} is not known"
    if (row.metric, row.unit) not in (messages.SCALES if row.kind == "p2p" else SCALES):
        return f"the metric {row.metric} in {row.unit} is not predicted"
    if row.gpus < 2:
        return "one GPU: nothing moves"
    if row.kind == "p2p":
        return ""
    if row.collective is None:
        return f"the algorithm {row.algorithm!r} names no collective"
    if row.collective == "all_to_all":
        return "NCCL's all-to-all, of sends and receives, is not modelled"
    per_node, held = MACHINES[name].gpus_per_node, row.held
    if held == "nvls" and row.gpus > per_node:
        return f"NVLS is one node's; {row.gpus} GPUs are several"
    return ""


def _entry(
    row: CollectiveRow, name: str | None, predicted: float | None, model: str, role: Role, reason: str
) -> JudgedCollective:
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
        gpu_path="modelled" if gpu_path_modelled(row) else "not modelled",
    )


def _seconds(row: CollectiveRow, settings: NcclSettings) -> tuple[float, str]:
    """What is predicted for a row [s], and by what algorithm of NCCL."""
    name, kind = machine_of(row), row.collective
    assert name is not None, row.id
    assert kind is not None, row.id
    if row.old:
        settings = replace(settings, planned=_planned(row.held, name), as_root=row.as_root)
    return _predicted(name, kind, row.size, row.gpus, row.held, settings)


@cache
def _planned(held: str, name: str) -> Callable[[CollectiveKind, float, NcclGroup], NcclPlan]:
    node = MACHINES[name].node
    behind_switch = "nvswitch" in node.parts
    return partial(plan_2_8, held=held, alike=behind_switch, alike_across=behind_switch and node.nics == 1)


@cache
def _predicted(
    name: str, kind: CollectiveKind, size: int, gpus: int, held: str, settings: NcclSettings
) -> tuple[float, str]:
    question = CollectiveQuestion(
        kind=kind,
        bytes=size,
        gpus=gpus,
        group=gpus,
        choices=parse_choices(f"nccl:{held}" if held else "nccl"),
        nccl=settings,
    )
    machine, net = _network(name, gpus)
    prediction = predict_collective(question, machine, net=net)
    return prediction.seconds, prediction.algorithm


@cache
def _network(name: str, gpus: int) -> tuple[Machine, Network]:
    machine = find_machine(name, (), gpus=gpus)
    return machine, network_of(machine)


if __name__ == "__main__":
    run_as_program(main)
