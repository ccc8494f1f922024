"""`quadrille study better-network`: the predicted speed-up of a training job by better networks.

The fastest grid is searched on each network:

    bandwidth x2     twice the bandwidth of every cable between nodes; PCIe stays the same and may become the bottleneck
    latency / 2      half the latency of every cable between nodes
    domain of 72     nodes of 72 GPUs in one NVLink domain, with a NIC for each GPU, as in a rack of GB200 NVL72

The nodes of 72 GPUs are on one non-blocking switch.  They are compared with nodes of the machine's own size, with a NIC
for each GPU, on one such switch.  GPUs, their links and NICs are those of the machine, so that only the domain differs.

Source of the size: NVIDIA, "GB200 NVL72", nvidia.com: 72 GPUs in one NVLink domain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.algorithms.figure_style import legend_below, new_figure, styled
from quadrille.experiments.output.gain_bars import draw_gain_bars
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.sweep.best_grid import best_training_grid
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep_points import BestGrid, SweepPoint
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_study import (
    ALL_OVERLAPS,
    STEP_COLUMNS,
    Findings,
    Point,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    grid_text,
    step_cells,
    write_findings,
)
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import as_machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

DOMAIN = 72
AS_IT_IS, ONE_SWITCH, LARGE_DOMAIN = "as it is", "own nodes, one switch", f"domain of {DOMAIN}, one switch"
BANDWIDTH, LATENCY, BOTH = "bandwidth x2", "latency / 2", "bandwidth x2, latency / 2"
SETTINGS: dict[str, tuple[str, ...]] = {
    AS_IT_IS: (),
    BANDWIDTH: ("topology.bandwidth_bytes_per_second=x2",),
    LATENCY: ("topology.latency_seconds=x0.5",),
    BOTH: ("topology.bandwidth_bytes_per_second=x2", "topology.latency_seconds=x0.5"),
}
NETWORKS = (*SETTINGS, ONE_SWITCH, LARGE_DOMAIN)
QUESTION = "Which better network makes a training step faster, and by how much?"
"""Title of the figure."""
COLOURS = dict(zip(NETWORKS, ("#000000", "#0072b2", "#56b4e9", "#009e73", "#999999", "#d55e00"), strict=True))
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkQuestion:
    """The training job.

    Parameters
    ----------
    machine : name of the machine
    gpt : name of the model
    gpus : numbers of GPUs
    each : number of sequences per GPU of the global batch
    """

    machine: str = "h100-superpod"
    gpt: str = "20b"
    gpus: tuple[int, ...] = (72, 288)
    each: int = 2


QUICK = NetworkQuestion(gpt="gpt3-1.3b", gpus=(16,))


def main() -> None:
    """Run the study on the default machine, and write the answer to `results/`."""
    better_network(NetworkQuestion(), StudyOptions.into_folder("better-network", RESULTS))


def better_network(asked: NetworkQuestion, asking: StudyOptions) -> Findings:
    """Predict the training job on every network and number of GPUs, and print and write the results.

    Parameters
    ----------
    asked : training job
    asking : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a machine without NVSwitches; a file that cannot be written
    """
    asking.check()
    on_switch(asked.machine, asked.gpus[0], None)
    results: list[tuple[dict[str, str], SweepAnswer]] = []
    for network in NETWORKS:
        points = list(points_of(asked, network, asking))
        answers = answer_study_points(points, predictor_of(network, asked.machine), asking)
        results += [(point, answer) for (point, _), answer in zip(points, answers, strict=True)]
    flags = {
        "machine": asked.machine,
        "gpt": asked.gpt,
        "each": str(asked.each),
        "overlap": ALL_OVERLAPS,
        "scheme": "4d",
    }
    presentation = StudyPresentation(tables, answer, partial(figure, flags=flags))
    return write_findings("better-network", flags, results, presentation, asking)


def points_of(asked: NetworkQuestion, network: str, asking: StudyOptions) -> Iterator[Point]:
    """The points of one network: a search for the fastest grid on every number of GPUs."""
    for gpus in asked.gpus:
        settings = SETTINGS.get(network, ())
        batch = asked.each * gpus
        search = asking.search(asked.gpt, batch, gpus, asked.machine, settings=settings)
        yield {"network": network, "gpus": str(gpus)}, search


def predictor_of(network: str, machine: str) -> Callable[[SweepPoint], SweepAnswer]:
    """The function that predicts a point on a network: the named machine, or a machine with nodes of another size."""
    if network in SETTINGS:
        return predict_point
    return partial(predicted_on_switch, machine, DOMAIN if network == LARGE_DOMAIN else None)


def predicted_on_switch(name: str, domain: int | None, asked: SweepPoint) -> SweepAnswer:
    """The fastest step on a machine whose nodes are on one switch, see `on_switch`.

    Parameters
    ----------
    name : name of the machine
    domain : number of GPUs of an NVLink domain; None: as many as a node of the machine has
    asked : point of the sweep, whose machine is replaced
    """
    if not isinstance(asked, BestGrid):
        return predict_point(asked)
    try:
        return best_training_grid(replace(asked, machine=on_switch(name, asked.gpus, domain)))
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))


def on_switch(name: str, gpus: int, domain: int | None) -> Machine:
    """The GPUs of a named machine in nodes of another size, with all NICs on one switch.

    >>> on_switch("h100-superpod", 144, 72).topology["nodes"]
    2

    Parameters
    ----------
    name : name of the machine
    gpus : number of GPUs
    domain : number of GPUs of a node, which is one NVLink domain; None: as many as a node of the machine has

    Raises
    ------
    InputError : an unknown machine; a machine whose GPUs are not connected by NVSwitches
    """
    from quadrille.topologies.machines.machine_catalogue import machine

    named = machine(name)
    node = named.node
    inside = next((cable for cable in node.cables if cable.second.startswith("nvswitch:")), None)
    if inside is None:
        raise InputError(
            f"machine {name}: GPUs of a node are not joined by a switch; better-network takes one such as h100-superpod"
        )
    size = domain or node.gpus
    topology = {
        "family": "gpu-cluster",
        "nodes": -(-gpus // size),
        "node": "nvswitch",
        "gpus": gpus,
        "gpus_per_node": size,
        "nics_per_node": size,
        "gpu_bandwidth_bytes_per_second": node.nvlink_bandwidth,
        "gpu_latency_seconds": inside.latency,
        "nic_bandwidth_bytes_per_second": node.injection_bandwidth / node.gpus,
        "nic_latency_seconds": node.nic_latency,
    }
    return msgspec.structs.replace(as_machine(named, gpus), name=f"{name}, nodes of {size}", topology=topology)


def seconds_of(rows: Sequence[SweepRow]) -> dict[tuple[str, str], float]:
    """The predicted time of a step by network and number of GPUs [s]."""
    return {
        (row.point["network"], row.point["gpus"]): row.answer.seconds for row in rows if row.answer.seconds is not None
    }


def gain_over_base(rows: Sequence[SweepRow], network: str, gpus: str) -> float | None:
    """The relative speed-up of a step on a network over the network that it is compared with; None if one is missing.

    Parameters
    ----------
    rows : predicted rows
    network : name of the network, from `NETWORKS`
    gpus : number of GPUs, as in the rows' points
    """
    seconds = seconds_of(rows)
    base = seconds.get((ONE_SWITCH if network == LARGE_DOMAIN else AS_IT_IS, gpus))
    own = seconds.get((network, gpus))
    return base / own - 1 if base and own else None


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the networks by number of GPUs."""
    columns = ("GPUs", "network", *STEP_COLUMNS, "buys")
    counts = dict.fromkeys(row.point["gpus"] for row in rows)
    sections = [[_cells(rows, row) for row in rows if row.point["gpus"] == gpus] for gpus in counts]
    return [table("a training step on better networks, predicted", columns, *sections, names=3)]


def _cells(rows: Sequence[SweepRow], row: SweepRow) -> tuple[str, ...]:
    """The cells of a row, with the speed-up last."""
    network, gpus = row.point["network"], row.point["gpus"]
    gain = UNKNOWN if network == AS_IT_IS else percent(gain_over_base(rows, network, gpus))
    return (gpus, network, *step_cells(row.answer), gain)


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the speed-up of each network, and changes of the fastest grid."""
    gains = (_gain_sentence(rows, network) for network in NETWORKS if network != AS_IT_IS)
    return [*gains, _grid_sentence(rows)]


def _gain_sentence(rows: Sequence[SweepRow], network: str) -> str:
    """The sentence about the speed-up of one network."""
    gains = {
        gpus: gain
        for gpus in dict.fromkeys(row.point["gpus"] for row in rows)
        if (gain := gain_over_base(rows, network, gpus)) is not None
    }
    if not gains:
        return f"{network.capitalize()}: no figure."
    each = ", ".join(f"{percent(gain)} on {int(gpus):,}" for gpus, gain in gains.items())
    against = f" (against {ONE_SWITCH})" if network == LARGE_DOMAIN else ""
    return f"{network.capitalize()}{against} buys {each} GPUs."


def _grid_sentence(rows: Sequence[SweepRow]) -> str:
    """The sentence about the fastest grids that differ from those on the unchanged network."""
    own = {row.point["gpus"]: grid_text(row.answer) for row in rows if row.point["network"] == AS_IT_IS}
    changed = [
        f"{grid_text(row.answer)} with {row.point['network']} on {int(row.point['gpus']):,} GPUs"
        for row in rows
        if row.answer.seconds is not None and grid_text(row.answer) != own[row.point["gpus"]]
    ]
    usual = ", ".join(f"{grid} on {int(gpus):,} GPUs" for gpus, grid in own.items())
    return (
        f"The best grid is {usual}; it becomes {'; '.join(changed)}."
        if changed
        else f"The best grid is {usual}, on every network."
    )


@styled
def figure(rows: Sequence[SweepRow], flags: Mapping[str, str]) -> "Figure":
    """The bar chart of each network's speed-up by number of GPUs.

    Parameters
    ----------
    rows : predicted rows
    flags : flags that all points share, for the title
    """
    counts = list(dict.fromkeys(row.point["gpus"] for row in rows))
    job = f"a training step of {flags['gpt']} on {flags['machine']}, {flags['each']} sequences a GPU"
    against = f"compared with the network as it is, the domain of {DOMAIN} with {ONE_SWITCH}"
    drawing = new_figure(8, 4.8, question=QUESTION, setting=f"{job}, predicted; {against}")
    axis = drawing.subplots()
    gains = {
        network: [gain_over_base(rows, network, gpus) for gpus in counts] for network in NETWORKS if network != AS_IT_IS
    }
    draw_gain_bars(axis, [f"{int(count):,}" for count in counts], gains, COLOURS)
    axis.set(xlabel="GPUs", ylabel="faster by [%]")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
