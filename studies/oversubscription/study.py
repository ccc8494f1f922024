"""`quadrille study oversubscription`: the predicted cost of an oversubscribed fat tree, by layout and placement.

The GPUs of a named machine are in racks.  A leaf switch joins the NICs of a rack, and one cable above each leaf stands
for all its uplinks.  At 2:1 this cable has half of the bandwidth of the rack's NICs.

    packed       consecutive nodes of the job share a rack
    scattered    consecutive nodes of the job are in different racks, as in a fragmented allocation

A prediction pass by pass lets the groups of different pipeline stages run without contention for links.  So the
scattered pipeline is predicted twice: as usual, and with uplinks divided by the number of stages, which is an upper
bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, styled
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.experiments.output.tables import duration, percent, table
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
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import as_machine, machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

PACKED, SCATTERED, BOUND = "packed", "scattered", "scattered, upper bound"
PLACEMENTS = (PACKED, SCATTERED, BOUND)
QUESTION = "What does an oversubscribed fat tree cost, and which layout forgives it?"
"""Title of the figure."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """The training jobs and the fat tree.

    Parameters
    ----------
    machine : name of the machine that has the nodes
    gpt, experts : names of a dense model and of a model with experts
    gpus : number of GPUs
    rack : number of nodes under a leaf switch
    stages : number of pipeline stages
    ratios : two or more oversubscriptions of the uplinks; the others are compared with the first
    names : names of the layouts that are predicted; empty for all
    """

    machine: str = "h100-superpod"
    gpt: str = "llama2-7b"
    experts: str = "qwen3-30b-a3b"
    gpus: int = 256
    rack: int = 4
    stages: int = 4
    ratios: tuple[int, ...] = (1, 2, 4)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.ratios)) < max(2, len(self.ratios)):
            ratios = ",".join(map(str, self.ratios))
            raise InputError(f"ratios {ratios}: two or more different ones are accepted, such as 1,2")

    def layouts(self) -> tuple[Layout, ...]:
        """The layouts: data, tensor in a node and over two, a pipeline, and experts in a node and over eight.

        Experts over eight nodes are left out where the job has fewer.
        """
        gpus, node = self.gpus, machine(self.machine).node.gpus

        def layout(
            name: str, grid: str, *, gpt: str = self.gpt, zero: int = 1, micro_batch: int | None = None
        ) -> Layout:
            return Layout(name=name, gpt=gpt, grid=grid, options={"zero": zero, "micro_batch": micro_batch})

        layouts = [
            layout("data, ZeRO 1", f"data={gpus}"),
            layout("data, ZeRO 3", f"data={gpus}", zero=3),
            layout(f"tensor {node}", f"data={gpus // node},x={node}"),
            layout(f"tensor {2 * node}", f"data={gpus // (2 * node)},x={2 * node}"),
            layout(f"pipeline {self.stages}", f"data={gpus // self.stages},pipeline={self.stages}", micro_batch=1),
        ]
        lengths = [n for n in (node, 8 * node) if gpus % n == 0] if self.experts else []
        layouts += [layout(f"experts {n}", f"data={gpus},expert={n}", gpt=self.experts) for n in lengths]
        return tuple(layout for layout in layouts if not self.names or layout.name in self.names)

    @property
    def batch(self) -> int:
        """Sequences of the global batch: one for each GPU."""
        return self.gpus


QUICK = TreeQuestion(
    gpt="layers=2,hidden=2048,heads=16,sequence=2048,vocabulary=4096",
    experts="",
    gpus=32,
    rack=2,
    stages=2,
    ratios=(1, 4),
    names=("data, ZeRO 1", "tensor 16"),
)


def main() -> None:
    """Run the study on the default jobs, and write the answer to `results/`."""
    oversubscription(TreeQuestion(), StudyOptions.into_folder("oversubscription", RESULTS))


def oversubscription(question: TreeQuestion, asking: StudyOptions) -> Findings:
    """Predict every layout and placement at every oversubscription, and print and write the results.

    Parameters
    ----------
    question : training jobs and fat tree
    asking : time limit, processes, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; GPUs that do not fill racks; a file that cannot be written
    """
    asking.check()
    with TemporaryDirectory(prefix="quadrille-study-") as folder:
        places = _scattered_file(question, Path(folder))
        points = list(points_of(question, asking, places))
        answers = answer_study_points(points, predict_training_point, asking)
    results = [(point, answer) for (point, _), answer in zip(points, answers, strict=True)]
    flags = {
        "machine": f"{question.machine} in racks of {question.rack} nodes",
        "gpt": ", ".join(dict.fromkeys(layout.gpt for layout in question.layouts())),
        "gpus": str(question.gpus),
        "batch": str(question.batch),
        "scheme": "megatron",
        "overlap": ",".join(OVERLAPS),
    }
    return write_findings("oversubscription", flags, results, StudyPresentation(tables, answer, figure), asking)


def _scattered_file(question: TreeQuestion, folder: Path) -> str:
    """The path of a placement file in which consecutive nodes are in different racks."""
    per_node = machine(question.machine).node.gpus
    racks, rest = divmod(question.gpus, per_node * question.rack)
    if rest or racks < 2:
        raise InputError(
            f"{question.gpus} GPUs do not fill two or more racks of {question.rack} nodes: "
            f"a multiple of {per_node * question.rack} from {2 * per_node * question.rack} is accepted"
        )
    nodes = [rack * question.rack + place for place in range(question.rack) for rack in range(racks)]
    path = folder / "scattered.txt"
    schema_files.write_text(
        path, "".join(f"gpu:{node * per_node + gpu}\n" for node in nodes for gpu in range(per_node))
    )
    return str(path)


def points_of(question: TreeQuestion, asking: StudyOptions, places: str) -> Iterator[tuple[dict[str, str], OneGrid]]:
    """The points of the study.

    Parameters
    ----------
    places : path of the placement file of the scattered job
    """
    for layout in question.layouts():
        stages = parse_grid(layout.grid).pipeline
        for placement in PLACEMENTS if stages > 1 else PLACEMENTS[:2]:
            for ratio in question.ratios:
                tree = in_racks(question, ratio * (stages if placement == BOUND else 1))
                point = {
                    "model": layout.gpt,
                    "layout": layout.name,
                    "placement": placement,
                    "oversubscription": f"{ratio}:1",
                }
                rule = "packed" if placement == PACKED else places
                yield point, layout.on(tree, question.batch, asking.most_seconds, rule)


def in_racks(question: TreeQuestion, ratio: int) -> Machine:
    """The nodes of the named machine in racks, whose uplinks are oversubscribed.

    >>> in_racks(TreeQuestion(), 2).topology["uplink_bandwidth_bytes_per_second"]
    800000000000.0

    Parameters
    ----------
    ratio : bandwidth of the NICs of a rack / bandwidth of its uplinks
    """
    named = machine(question.machine)
    node, nodes = named.node, question.gpus // named.node.gpus
    topology = {
        "family": "gpu-cluster",
        "nodes": nodes,
        "node": node.name,
        "gpus": question.gpus,
        "network": "leaf-spine",
        "nodes_per_leaf": question.rack,
        "uplink_bandwidth_bytes_per_second": question.rack * node.injection_bandwidth / ratio,
    }
    racks = f"{question.machine} in racks of {question.rack}, {ratio}:1"
    return msgspec.structs.replace(as_machine(named, question.gpus), name=racks, topology=topology)


@dataclass(frozen=True, slots=True)
class Job:
    """The predicted steps of a layout in a placement.

    Parameters
    ----------
    seconds : time of a step by oversubscription [s]
    """

    layout: str
    placement: str
    model: str
    seconds: dict[str, float]

    def cost(self, ratio: str) -> float | None:
        """The relative time that an oversubscription adds to a step; None if a step is missing."""
        base = next(iter(self.seconds.values()), None)
        own = self.seconds.get(ratio)
        return None if base is None or own is None else own / base - 1


def jobs_in(rows: Sequence[SweepRow]) -> list[Job]:
    """The jobs of the rows, in the order of the rows."""
    jobs: dict[tuple[str, str], Job] = {}
    for row in rows:
        point = row.point
        key = point["layout"], point["placement"]
        job = jobs.setdefault(key, Job(*key, point["model"], {}))
        if row.answer.seconds is not None:
            job.seconds[point["oversubscription"]] = row.answer.seconds
    return list(jobs.values())


def _ratios(rows: Sequence[SweepRow]) -> list[str]:
    """The oversubscriptions of the rows."""
    return list(dict.fromkeys(row.point["oversubscription"] for row in rows))


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the jobs: a row for each layout and placement, the cost of each oversubscription."""
    first, *others = _ratios(rows)
    columns = ("model", "layout", "placement", f"step at {first}", *(f"cost of {ratio}" for ratio in others))
    jobs = jobs_in(rows)
    sections = [
        [
            (
                job.model,
                job.layout,
                job.placement,
                duration(job.seconds.get(first)),
                *map(percent, map(job.cost, others)),
            )
            for job in jobs
            if job.layout == layout
        ]
        for layout in dict.fromkeys(job.layout for job in jobs)
    ]
    return [table("a training step on an oversubscribed fat tree, predicted", columns, *sections, names=3)]


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the costs of each placement, the least first."""
    _, *others = _ratios(rows)
    return [sentence for placement in PLACEMENTS for sentence in _sentences(rows, placement, others)]


def _sentences(rows: Sequence[SweepRow], placement: str, ratios: Sequence[str]) -> Iterator[str]:
    """The sentences about the jobs of a placement."""
    for ratio in ratios:
        costs = {
            job.layout: cost
            for job in jobs_in(rows)
            if job.placement == placement and (cost := job.cost(ratio)) is not None
        }
        if costs:
            yield f"{placement.capitalize()}, {ratio} costs {ordered_shares(costs)}."


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The bar chart of the costs, with a panel for each oversubscription."""
    jobs, (_, *ratios) = jobs_in(rows), _ratios(rows)
    layouts = list(dict.fromkeys(job.layout for job in jobs))
    drawing = new_figure(4.6 * len(ratios), 4.8, question=QUESTION, setting="added to a step at 1:1, predicted")
    panels = drawing.subplots(1, len(ratios), squeeze=False)[0]
    for axis, ratio in zip(panels, ratios, strict=True):
        for index, placement in enumerate(PLACEMENTS):
            own = {job.layout: job.cost(ratio) for job in jobs if job.placement == placement}
            places = [place + 0.27 * (index - 1) for place in range(len(layouts))]
            costs = [100 * (own.get(name) or 0.0) for name in layouts]
            axis.barh(places, costs, height=0.25, color=PALETTE[index], label=placement)
            for place, name in zip(places, layouts, strict=True):
                if own.get(name) is None:
                    why = "not predicted" if name in own else "no pipeline"
                    axis.text(0, place, f" {why}", va="center", fontsize=7, color=PALETTE[index])
        axis.set_yticks(range(len(layouts)), layouts if axis is panels[0] else [""] * len(layouts))
        axis.invert_yaxis()
        axis.set(title=ratio, xlabel="slower by [%]")
        axis.grid(visible=False, axis="y")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
