"""`quadrille study fault-cost`: the predicted cost of a slow GPU, a slow or flapping NIC and a lost rail, by layout.

    GPU 10 % slower    one GPU computes at 90 % of its speed (`--slow`)
    spread of GPUs     all GPUs wait for the slowest of them, at the spread of the machine (`--jitter gpus=machine`)
    NIC at half        one NIC has half of its bandwidth (`--degrade`)
    NIC down           one NIC carries nothing; its traffic takes NVLink and the other NICs of the node (`--fail`)
    rail lost          the j-th NIC of every node carries nothing

A NIC that flaps is down for a share of the time.  If it stays up and down for longer than a step takes, the mean step
costs this share of what a NIC that is down costs.  The time in which NCCL notices the change is not in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, styled
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.experiments.output.tables import duration, percent, table
from quadrille.experiments.report.elements import sentence
from quadrille.experiments.sweep.layouts import Layout
from quadrille.experiments.sweep.sweep_points import OneGrid
from quadrille.experiments.sweep.sweep_result import SweepRow
from quadrille.experiments.sweep.training_point import predict_training_point
from quadrille.experiments.sweep.training_study import (
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    ordered_shares,
    write_findings,
)
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.ranks.jitter import Jitter
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import machine
from quadrille.topologies.machines.what_if import with_faults

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

NONE, SPREAD, HALF, DOWN, LOST = "none", "spread of GPUs", "NIC at half", "NIC down", "rail lost"
FLAPPING = 0.1
"""Share of the time in which the flapping NIC is down."""
QUESTION = "What do a slow GPU, a slow NIC and a lost rail cost a training step?"
"""Title of the figure."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultQuestion:
    """The training job and the faults.

    Parameters
    ----------
    machine : name of a machine with rails
    gpt : name of the model
    gpus : number of GPUs, at most those of a scalable unit
    stages : number of pipeline stages; 1 leaves the pipeline out
    slower : percent of their speed that slow GPUs lack
    names : names of the layouts that are predicted; empty for all
    """

    machine: str = "h100-superpod"
    gpt: str = "llama2-7b"
    gpus: int = 64
    stages: int = 4
    slower: tuple[int, ...] = (10, 30)
    names: tuple[str, ...] = ()

    @property
    def node(self) -> int:
        """Number of GPUs of a node."""
        return machine(self.machine).node.gpus

    @property
    def batch(self) -> int:
        """Sequences of the global batch: two for each GPU."""
        return 2 * self.gpus

    def layouts(self) -> tuple[Layout, ...]:
        """The layouts: data with ZeRO 1 and 3, tensor in a node, and a pipeline."""
        gpus, node, stages = self.gpus, self.node, self.stages
        one_sequence = {"zero": 1, "micro_batch": 1}
        layouts = (
            Layout(name="data, ZeRO 1", gpt=self.gpt, grid=f"data={gpus}", options=one_sequence),
            Layout(name="data, ZeRO 3", gpt=self.gpt, grid=f"data={gpus}", options={"zero": 3, "micro_batch": 1}),
            Layout(name=f"tensor {node}", gpt=self.gpt, grid=f"data={gpus // node},x={node}", options={"zero": 1}),
        )
        grid = f"data={gpus // stages},pipeline={stages}"
        pipeline = Layout(name=f"pipeline {stages}", gpt=self.gpt, grid=grid, options=one_sequence)
        every = (*layouts, pipeline) if stages > 1 else layouts
        return tuple(layout for layout in every if not self.names or layout.name in self.names)

    def faults(self) -> dict[str, Machine]:
        """The machine with each fault, by name; the fault is at the last GPU of the first node, and at its NIC.

        Raises
        ------
        InputError : a machine without rails, or GPUs that do not fill nodes of one scalable unit
        """
        named, node = machine(self.machine), self.node
        unit = node * named.unit
        if named.unit == 1 or self.gpus % node or not 2 * node <= self.gpus <= unit:
            raise InputError(
                f"{self.gpus} GPUs of {self.machine}: whole nodes of one scalable unit with rails are accepted, "
                "such as 64 GPUs of h100-superpod"
            )
        base, own = find_machine(self.machine, gpus=self.gpus), node - 1
        slow = {
            f"GPU {percent_slower} % slower": with_faults(base, slow=[f"gpu:{own}={1 - percent_slower / 100:g}"])
            for percent_slower in self.slower
        }
        cable = f"nic:{own}-leaf:{own}"
        return {
            NONE: base,
            **slow,
            SPREAD: base,
            HALF: with_faults(base, degrade=[f"{cable}=0.5"]),
            DOWN: with_faults(base, fail=[cable]),
            LOST: with_faults(base, fail=[f"nic:*-leaf:{own}"]),
        }


QUICK = FaultQuestion(
    gpt="layers=1,hidden=2048,heads=16,sequence=2048,vocabulary=4096",
    gpus=16,
    stages=1,
    slower=(30,),
    names=("data, ZeRO 1", "tensor 8"),
)


def main() -> None:
    """Run the study on the default job, and write the answer to `results/`."""
    fault_cost(FaultQuestion(), StudyOptions.into_folder("fault-cost", RESULTS))


def fault_cost(question: FaultQuestion, asking: StudyOptions) -> Findings:
    """Predict every layout with every fault, and print and write the results.

    Parameters
    ----------
    question : training job and faults
    asking : time limit, processes, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a machine without rails; a file that cannot be written
    """
    asking.check()
    points = list(points_of(question, asking))
    answers = answer_study_points(points, predict_training_point, asking)
    results = [(point, answer) for (point, _), answer in zip(points, answers, strict=True)]
    flags = {
        "machine": question.machine,
        "gpt": question.gpt,
        "gpus": str(question.gpus),
        "batch": str(question.batch),
        "scheme": "megatron",
        "overlap": ",".join(OVERLAPS),
    }
    return write_findings("fault-cost", flags, results, StudyPresentation(tables, answer, figure), asking)


def points_of(question: FaultQuestion, asking: StudyOptions) -> Iterator[tuple[dict[str, str], OneGrid]]:
    """The points: every layout with every fault."""
    faults = question.faults()
    for layout in question.layouts():
        for fault, faulty in faults.items():
            point = layout.on(faulty, question.batch, asking.most_seconds)
            if fault == SPREAD:
                execution = replace(point.experiment.execution, jitter=Jitter(gpus="machine"))
                point = replace(point, experiment=replace(point.experiment, execution=execution))
            yield {"fault": fault, "layout": layout.name}, point


def costs_of(rows: Sequence[SweepRow], layout: str) -> dict[str, float]:
    """The relative time that each fault adds to a step of a layout; that of a flapping NIC follows from a NIC down."""
    seconds = {
        row.point["fault"]: row.answer.seconds
        for row in rows
        if row.point["layout"] == layout and row.answer.seconds is not None
    }
    if NONE not in seconds:
        return {}
    costs = {fault: own / seconds[NONE] - 1 for fault, own in seconds.items() if fault != NONE}
    if DOWN in costs:
        costs[_flapping()] = FLAPPING * costs[DOWN]
    return costs


def _flapping() -> str:
    return f"NIC down {100 * FLAPPING:.0f} % of the time"


def _layouts(rows: Sequence[SweepRow]) -> list[str]:
    """The layouts of the rows."""
    return list(dict.fromkeys(row.point["layout"] for row in rows))


def _faults(rows: Sequence[SweepRow]) -> list[str]:
    """The faults of the rows and the flapping NIC, without that of no fault."""
    faults = [fault for fault in dict.fromkeys(row.point["fault"] for row in rows) if fault != NONE]
    return [*faults, _flapping()]


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the costs: a row for each fault, a column for each layout."""
    layouts = _layouts(rows)
    healthy = {row.point["layout"]: row.answer.seconds for row in rows if row.point["fault"] == NONE}
    costs = {layout: costs_of(rows, layout) for layout in layouts}
    cells = [
        ("no fault: a step", *(duration(healthy.get(layout)) for layout in layouts)),
        *((fault, *(percent(costs[layout].get(fault)) for layout in layouts)) for fault in _faults(rows)),
    ]
    return [table("what a fault adds to a training step, predicted", ("fault", *layouts), cells, names=1)]


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the cost of each fault, from the layout that forgives it most."""
    costs = {layout: costs_of(rows, layout) for layout in _layouts(rows)}
    sentences = []
    for fault in _faults(rows):
        by_layout = {layout: own[fault] for layout, own in costs.items() if fault in own}
        if by_layout:
            sentences.append(sentence(f"{fault}: {ordered_shares(by_layout)}"))
    return sentences


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The bar chart of the costs, with a group of bars for each fault."""
    layouts, faults = _layouts(rows), _faults(rows)
    drawing = new_figure(8, 5.2, question=QUESTION, setting="added to a step without faults, predicted")
    axis = drawing.subplots()
    height = 0.8 / len(layouts)
    for index, layout in enumerate(layouts):
        costs = costs_of(rows, layout)
        places = [place + height * (index - (len(layouts) - 1) / 2) for place in range(len(faults))]
        lengths = [100 * costs.get(fault, 0.0) for fault in faults]
        axis.barh(places, lengths, height=height, color=PALETTE[index], label=layout)
        for place, fault in zip(places, faults, strict=True):
            if fault not in costs:
                axis.text(0, place, " not predicted", va="center", fontsize=7, color=PALETTE[index])
    axis.set_yticks(range(len(faults)), faults)
    axis.invert_yaxis()
    axis.set_xlabel("slower by [%]")
    axis.grid(visible=False, axis="y")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
