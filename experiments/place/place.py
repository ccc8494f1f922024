"""`quadrille place`: the order of ranks on the nodes of an allocation with the least predicted time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
from quadrille.experiments.output.progress import StepCount, progress_line
from quadrille.experiments.place.allocation import node_numbers
from quadrille.experiments.place.node_orders import best_orders
from quadrille.experiments.place.node_traffic import FabricLoad, node_classes, node_traffic
from quadrille.experiments.place.rank_files import FORMS
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment, prepare
from quadrille.experiments.predict.prepared_prediction import predict_prepared as simulate_prepared
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.prediction import Prediction
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Ints, Network

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment

FEW_RANKS = ((512, 1), (128, 2))
"""Number of orders that are simulated beside the given one, from so many ranks on; `SIMULATED` below."""
SIMULATED = 4


@dataclass(frozen=True, slots=True, eq=False)
class PlacedRanks:
    """An order of nodes with its predicted time.

    Parameters
    ----------
    name : how the order came about
    of_rank : endpoint of each rank [ranks]
    seconds : predicted time [s]
    """

    name: str
    of_rank: Ints
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The orders that were simulated, the given one first.

    Parameters
    ----------
    classes : number of classes of nodes: nodes below the same switches
    healthy_seconds : predicted time of the best order without the faults [s]; None without faults
    """

    net: Network
    orders: tuple[PlacedRanks, ...]
    classes: int
    healthy_seconds: float | None = None

    @property
    def best(self) -> PlacedRanks:
        """The order with the least predicted time; the given one if no other is faster."""
        return min(self.orders, key=lambda order: order.seconds)


def place(
    experiment: "Experiment", machine: Machine, names: Sequence[str], *, top: int | None = None, quiet: bool = False
) -> Placed:
    """The orders of an allocation's nodes for the ranks of an experiment, with predicted times.

    Parameters
    ----------
    names : names of the allocated nodes; ranks are placed on them in this order by default
    top : number of orders that are simulated beside the given one; by default fewer for many ranks
    quiet : whether no progress is shown

    Raises
    ------
    InputError : an unknown node, too few nodes, or as `prepare`
    """
    prepared = prepare(experiment, machine)
    net = prepared.placement.net
    nodes = node_numbers(net, names)
    slots = prepared.placement.of_rank // net.per_node
    used = int(slots.max()) + 1
    if used > len(nodes):
        raise InputError(f"--nodes: {experiment.grid.size} ranks need {used} nodes; {len(nodes)} are allocated")
    count = top if top is not None else next((few for ranks, few in FEW_RANKS if len(slots) >= ranks), SIMULATED)
    progress = StepCount("predicted", "orders of nodes", 1 + count)
    with progress_line(progress.words, share=progress.share, shown=not quiet):
        default = _on_nodes(prepared, np.array(nodes)[:used])
        prediction = simulate_prepared(default)
        orders = [PlacedRanks("as given", default.placement.of_rank, prediction.seconds)]
        progress.done += 1
        classes = node_classes(net, nodes)
        load = FabricLoad(routes_of(machine, net), nodes, classes)
        traffic = node_traffic(experiment.grid, bytes_by_axis(prepared, prediction), slots)
        for order in best_orders(
            classes, used, lambda chosen: load.seconds(traffic, chosen), 1 + count, load.exchanges(traffic)
        ):
            if np.array_equal(classes[order.places[:used]], classes[:used]) or len(orders) > count:
                continue
            placed = _on_nodes(prepared, np.array(nodes)[order.places[:used]])
            seconds = simulate_prepared(placed).seconds
            orders.append(PlacedRanks(f"searched {len(orders)}", placed.placement.of_rank, seconds))
            progress.done += 1
    result = Placed(net, tuple(orders), int(classes.max()) + 1)
    if machine.faults is None or not (machine.faults.fail or machine.faults.degrade):
        return result
    healthy = prepare(experiment, msgspec.structs.replace(machine, faults=None))
    moved = replace(healthy, placement=replace(healthy.placement, of_rank=result.best.of_rank))
    return replace(result, healthy_seconds=simulate_prepared(moved).seconds)


def _on_nodes(prepared: PreparedExperiment, nodes: Ints) -> PreparedExperiment:
    """The experiment with its ranks on these nodes, in order."""
    old = prepared.placement
    slot, local = np.divmod(old.of_rank, old.net.per_node)
    placement = RankPlacement(old.machine, old.net, nodes[slot] * old.net.per_node + local)
    return replace(prepared, placement=placement)


def bytes_by_axis(prepared: PreparedExperiment, prediction: Prediction) -> dict[str, float]:
    """Bytes that a rank sends along each axis in a step."""
    sent = volumes(prepared.simulated_schedule, prepared.experiment.execution.choices).by_op
    sums: dict[str, float] = {}
    for times in prediction.op_times().values():
        if times.axis is not None and times.name in sent:
            sums[times.axis] = sums.get(times.axis, 0.0) + sent[times.name].sent_per_rank_max
    return sums


def write(placed: Placed, out: str, form: str) -> None:
    """Writes the best order.

    Parameters
    ----------
    out : path of the file; `-` for stdout
    form : form of the file, one of `FORMS`
    """
    write_text(out, FORMS[form](placed.net, placed.best.of_rank))


def check_form(out: str, form: str) -> None:
    """Raises InputError for an unknown form or a path that cannot be written."""
    if form not in FORMS:
        raise InputError(f"--form {form!r:.40}: accepted are {', '.join(FORMS)}")
    if out and out != STDOUT:
        check_writable(out)
