"""`quadrille study better-network`: what a better network would buy for a training job, each with its own best grid.

    bandwidth x2     of every cable of the network between nodes; PCIe stays, and may then be narrower
    latency / 2      of the same
    domain of 72     nodes of 72 GPUs with one NVLink domain and a NIC for each GPU, as a rack of GB200 NVL72 has them

The domain's nodes are on one switch that blocks nothing, and so is what they are compared
with: nodes of the machine's own size, a NIC for each GPU, on one switch.  GPUs, their links
and NICs are the machine's own, so that the domain's size alone is what differs.

Source of the size: NVIDIA, "GB200 NVL72", nvidia.com: 72 GPUs in one NVLink domain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.sweep.answers import predicted_at
from quadrille.experiments.sweep.best_step import best_step
from quadrille.experiments.sweep.outcomes import SweepAnswer, SweepRow
from quadrille.experiments.sweep.points import BestGrid, SweepPoint
from quadrille.experiments.sweep.training_study import (
    ALL_OVERLAPS,
    STEP_COLUMNS,
    Asking,
    Findings,
    Point,
    Shown,
    asked_at,
    conclude,
    grid_words,
    step_cells,
)
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import as_machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

DOMAIN = 72
PLAIN, ONE_SWITCH, LARGE_DOMAIN = "as it is", "own nodes, one switch", f"domain of {DOMAIN}, one switch"
BANDWIDTH, LATENCY, BOTH = "bandwidth x2", "latency / 2", "bandwidth x2, latency / 2"
SETTINGS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    BANDWIDTH: ("topology.bandwidth_bytes_per_second=x2",),
    LATENCY: ("topology.latency_seconds=x0.5",),
    BOTH: ("topology.bandwidth_bytes_per_second=x2", "topology.latency_seconds=x0.5"),
}
NETWORKS = (*SETTINGS, ONE_SWITCH, LARGE_DOMAIN)
COLOURS = dict(zip(NETWORKS, ("#000000", "#0072b2", "#56b4e9", "#009e73", "#999999", "#d55e00"), strict=True))
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkQuestion:
    """What is trained; `each` are the sequences of a GPU."""

    machine: str = "h100-superpod"
    gpt: str = "20b"
    gpus: tuple[int, ...] = (72, 288)
    each: int = 2


QUICK = NetworkQuestion(gpt="gpt3-1.3b", gpus=(16,))


def main() -> None:
    """Ask about the default machine and keep the answer."""
    better_network(NetworkQuestion(), Asking.into_folder("better-network", RESULTS))


def better_network(asked: NetworkQuestion, asking: Asking) -> Findings:
    """Predict every network on every number of GPUs, and print and write the results.

    Raises
    ------
    InputError : a model or a machine that is unknown, or has no NVLink; a file that cannot be written
    """
    asking.check()
    on_switch(asked.machine, asked.gpus[0], None)
    results: list[tuple[dict[str, str], SweepAnswer]] = []
    for network in NETWORKS:
        points = list(points_of(asked, network, asking))
        answers = asked_at(points, question_of(network, asked.machine), asking)
        results += [(point, answer) for (point, _), answer in zip(points, answers, strict=True)]
    flags = {
        "machine": asked.machine,
        "gpt": asked.gpt,
        "each": str(asked.each),
        "overlap": ALL_OVERLAPS,
        "scheme": "4d",
    }
    return conclude("better-network", flags, results, Shown(tables, answer, figure), asking)


def points_of(asked: NetworkQuestion, network: str, asking: Asking) -> Iterator[Point]:
    """The model on one network, on every number of GPUs."""
    for gpus in asked.gpus:
        settings = SETTINGS.get(network, ())
        batch = asked.each * gpus
        search = asking.search(asked.gpt, batch, gpus, asked.machine, settings=settings)
        yield {"network": network, "gpus": str(gpus)}, search


def question_of(network: str, machine: str) -> Callable[[SweepPoint], SweepAnswer]:
    """What is asked of a network: of a named machine, or of one that is built here."""
    if network in SETTINGS:
        return predicted_at
    return partial(predicted_on_switch, machine, DOMAIN if network == LARGE_DOMAIN else None)


def predicted_on_switch(name: str, domain: int | None, asked: SweepPoint) -> SweepAnswer:
    """The fastest step on nodes of another size."""
    if not isinstance(asked, BestGrid):
        return predicted_at(asked)
    try:
        return best_step(replace(asked, machine=on_switch(name, asked.gpus, domain)))
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))


def on_switch(name: str, gpus: int, domain: int | None) -> Machine:
    """The machine's GPUs in nodes of so many, all NICs on one switch.

    >>> on_switch("h100-superpod", 144, 72).topology["nodes"]
    2

    Parameters
    ----------
    domain : GPUs that one NVLink domain joins; None for as many as a node of the machine has

    Raises
    ------
    InputError : an unknown machine, or one whose GPUs are not joined by a switch
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
    """Seconds by network and number of GPUs."""
    return {
        (row.point["network"], row.point["gpus"]): row.answer.seconds for row in rows if row.answer.seconds is not None
    }


def bought(rows: Sequence[SweepRow], network: str, gpus: str) -> float | None:
    """How much faster a step is than on the network that this one is compared with."""
    seconds = seconds_of(rows)
    base = seconds.get((ONE_SWITCH if network == LARGE_DOMAIN else PLAIN, gpus))
    own = seconds.get((network, gpus))
    return base / own - 1 if base and own else None


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """A row for each network, by number of GPUs."""
    columns = ("GPUs", "network", *STEP_COLUMNS, "buys")
    counts = dict.fromkeys(row.point["gpus"] for row in rows)
    sections = [[_cells(rows, row) for row in rows if row.point["gpus"] == gpus] for gpus in counts]
    return [table("a training step on better networks, predicted", columns, *sections, names=3)]


def _cells(rows: Sequence[SweepRow], row: SweepRow) -> tuple[str, ...]:
    network, gpus = row.point["network"], row.point["gpus"]
    gain = UNKNOWN if network == PLAIN else percent(bought(rows, network, gpus))
    return (gpus, network, *step_cells(row.answer), gain)


def answer(rows: Sequence[SweepRow]) -> str:
    """What each network buys on each number of GPUs, and whether the best grid changes."""
    return " ".join((*(_buys(rows, network) for network in NETWORKS if network != PLAIN), _grids(rows)))


def _buys(rows: Sequence[SweepRow], network: str) -> str:
    gains = {
        gpus: gain
        for gpus in dict.fromkeys(row.point["gpus"] for row in rows)
        if (gain := bought(rows, network, gpus)) is not None
    }
    if not gains:
        return f"{network.capitalize()}: no figure."
    each = ", ".join(f"{percent(gain)} on {int(gpus):,}" for gpus, gain in gains.items())
    against = f" (against {ONE_SWITCH})" if network == LARGE_DOMAIN else ""
    return f"{network.capitalize()}{against} buys {each} GPUs."


def _grids(rows: Sequence[SweepRow]) -> str:
    """Where the best grid is another than on the network as it is."""
    own = {row.point["gpus"]: grid_words(row.answer) for row in rows if row.point["network"] == PLAIN}
    changed = [
        f"{grid_words(row.answer)} with {row.point['network']} on {int(row.point['gpus']):,} GPUs"
        for row in rows
        if row.answer.seconds is not None and grid_words(row.answer) != own[row.point["gpus"]]
    ]
    usual = ", ".join(f"{grid} on {int(gpus):,} GPUs" for gpus, grid in own.items())
    return (
        f"The best grid is {usual}; it becomes {'; '.join(changed)}."
        if changed
        else f"The best grid is {usual}, on every network."
    )


def figure(rows: Sequence[SweepRow]) -> "Figure":
    """A bar chart of each network's gain by number of GPUs."""
    from matplotlib.figure import Figure

    counts = list(dict.fromkeys(row.point["gpus"] for row in rows))
    networks = [network for network in NETWORKS if network != PLAIN]
    drawing = Figure(figsize=(8, 4), layout="constrained")
    axis = drawing.subplots()
    width = 0.8 / len(networks)
    for place, network in enumerate(networks):
        gains = [100 * (bought(rows, network, gpus) or 0.0) for gpus in counts]
        places = [group + width * (place - (len(networks) - 1) / 2) for group in range(len(counts))]
        axis.bar(places, gains, width=width, color=COLOURS[network], label=network)
    axis.set_xticks(range(len(counts)), [f"{int(count):,}" for count in counts])
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set(xlabel="GPUs", ylabel="faster by [%], predicted")
    axis.grid(alpha=0.3, axis="y")
    axis.legend(fontsize=8)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
