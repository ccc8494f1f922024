"""The answer of `quadrille place`: the verdict, the orders that were simulated, and what faults cost."""

from collections.abc import Sequence

import msgspec

from quadrille.algorithms.field_units import Seconds, Share
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.units import format_percent, format_seconds
from quadrille.experiments.output.destinations import write_or_show
from quadrille.experiments.output.tables import duration, percent, print_tables, table
from quadrille.experiments.place.place import Placed, PlacedRanks

SCHEMA = "quadrille/node-orders/1"
FEW_NODES = 4
"""Number of nodes of an order that are printed."""


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order of nodes that was simulated.

    Parameters
    ----------
    name : how the order came about
    nodes : names of the nodes, in the order of their first ranks
    seconds : predicted time [s]
    against_given : predicted time / that of the given order - 1
    """

    name: str
    nodes: tuple[str, ...]
    seconds: Seconds
    against_given: Share


class NodeOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `--json` writes.

    Parameters
    ----------
    verdict : the result in sentences
    best : name of the order with the least predicted time
    orders : orders that were simulated, the given one first
    classes : number of sets of switches below which the nodes are
    healthy_seconds : predicted time of the best order without the faults [s]; null without faults
    """

    verdict: tuple[str, ...]
    best: str
    orders: tuple[NodeOrder, ...]
    classes: int
    healthy_seconds: Seconds | None
    provenance: Provenance


def report(placed: Placed, json: str = "", command: Sequence[str] = (), *, shown: bool = True) -> NodeOrders:
    """Prints the verdict and the orders, and writes them as JSON if `json` is given.

    Parameters
    ----------
    json : path of the JSON file; `-` for stdout, which then has nothing else
    command : words of the command line, for provenance
    shown : whether anything is printed
    """
    first = placed.orders[0].seconds
    answer = NodeOrders(
        verdict=tuple(verdict(placed)),
        best=placed.best.name,
        orders=tuple(
            NodeOrder(
                name=order.name,
                nodes=_nodes(placed, order),
                seconds=order.seconds,
                against_given=order.seconds / first - 1,
            )
            for order in placed.orders
        ),
        classes=placed.classes,
        healthy_seconds=placed.healthy_seconds,
        provenance=provenance(command),
    )
    write_or_show(answer, json, SCHEMA, lambda: _print(answer) if shown else None)
    return answer


def verdict(placed: Placed) -> list[str]:
    """What the best order gains, and what the faults cost, in sentences."""
    first, best = placed.orders[0], placed.best
    takes = format_seconds(first.seconds)
    if placed.classes == 1:
        lines = [f"The order of the nodes does not matter: all are below the same switches. Predicted: {takes}."]
    elif best is first:
        tried = len(placed.orders) - 1
        others = f"none of {tried} others is faster" if tried else "no other has less to carry between switches"
        lines = [f"The order as given is best: {takes}; {others}."]
    else:
        less = format_percent(1 - best.seconds / first.seconds)
        lines = [f"Order {best.name} is best: {format_seconds(best.seconds)}, {less} less than as given ({takes})."]
    if placed.healthy_seconds is not None:
        more = format_percent(best.seconds / placed.healthy_seconds - 1)
        healthy = format_seconds(placed.healthy_seconds)
        lines.append(f"Without the faults, this order takes {healthy}: the faults cost {more}.")
    return lines


def _nodes(placed: Placed, order: PlacedRanks) -> tuple[str, ...]:
    """The names of the nodes, in the order of their first ranks."""
    numbers = dict.fromkeys((order.of_rank // placed.net.per_node).tolist())
    return tuple(placed.net.node_names[number] for number in numbers)


def _print(answer: NodeOrders) -> None:
    for line in answer.verdict:
        print(line)
    if len(answer.orders) > 1:
        rows = [
            (
                order.name,
                ",".join(order.nodes[:FEW_NODES]) + (",…" if len(order.nodes) > FEW_NODES else ""),
                duration(order.seconds),
                percent(order.against_given),
            )
            for order in answer.orders
        ]
        print()
        print_tables(table("", ("order", "nodes", "predicted", "against given"), rows, names=2))
