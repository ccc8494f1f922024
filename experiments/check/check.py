"""`quadrille check`: measured times of collectives beside those that a machine should have, and what explains a gap.

A time is as expected if it is within a factor of the prediction:

    inside a node with measured collectives, 1 MiB and more   1.25
    between nodes, or without a table, 1 MiB and more         1.5
    smaller sizes                                             2

The factors are above the 90th percentile of the predictions' errors (studies/collective_tables/README.md).  Sizes from
1 MiB on and smaller sizes have a verdict each: that of their median ratio.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Literal, cast

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.units import format_bytes, format_bytes_per_second
from quadrille.experiments.check.checked_log import CheckedLog, CheckedRow, CheckedSizes, Verdict
from quadrille.experiments.check.explanations import (
    LARGE,
    WITHIN_MODEL,
    WITHIN_SMALL,
    Call,
    explanations,
)
from quadrille.experiments.import_.collective_logs import CollectiveLog
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import duration, print_tables, table
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

SCHEMA = "quadrille/check/1"
MOST_CALLS = 8
"""Sizes of each collective that the causes are simulated for."""
MOST_EXPLANATIONS = 4
INSIDE = re.compile("NVLinks|between (two )?GPUs")
"""Words of a cause about links inside a node."""
WITHIN_TABLE = 1.25
NORMAL: Verdict = "as expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The ranks of a log on a machine.

    Parameters
    ----------
    gpus : GPUs of the nodes that are modelled, used or not
    ranks : number of ranks of the group
    nodes : number of nodes
    placement : rule that places the ranks, see `endpoints_by_rule`
    """

    gpus: int
    ranks: int
    nodes: int = 1
    placement: str = "packed"

    def question(self, kind: CollectiveKind, size: int, item_bytes: int | None) -> CollectiveQuestion:
        """A collective of all ranks.

        Parameters
        ----------
        size : size of the whole buffer [B]
        item_bytes : size of an element [B]; None if unknown
        """
        return CollectiveQuestion(
            kind=kind,
            bytes=size,
            gpus=self.ranks,
            group=self.ranks,
            placement=self.placement,
            item_bytes=item_bytes or 1,
        )


def layout_of(log: CollectiveLog, per_node: int, ranks: int | None = None, nodes: int | None = None) -> Layout:
    """The ranks on nodes with this number of GPUs; where they use a part of each node, its first GPUs have them.

    Parameters
    ----------
    ranks, nodes : what the user says; None for what the log says

    Raises
    ------
    InputError : unknown ranks, more ranks than GPUs, or another number of ranks on each node
    """
    ranks = ranks or log.ranks
    if ranks is None:
        raise InputError("the file does not tell how many ranks there are: --gpus N does")
    nodes = nodes or log.nodes or -(-ranks // per_node)
    if ranks < 2:
        raise InputError(f"{ranks} rank: a collective of at least 2 ranks is needed")
    if nodes == 1 and ranks > per_node:
        raise InputError(f"{ranks} ranks on one node: a node of the machine has {per_node} GPUs")
    if nodes == 1 or ranks == nodes * per_node:
        return Layout(gpus=ranks, ranks=ranks, nodes=nodes)
    each, rest = divmod(ranks, nodes)
    if rest or not 1 <= each <= per_node:
        raise InputError(
            f"{ranks} ranks on {nodes} nodes: the same number of ranks on each node, from 1 to its {per_node} GPUs, is "
            "accepted"
        )
    return Layout(gpus=nodes * per_node, ranks=ranks, nodes=nodes, placement=f"packed:{each}")


def check(
    log: CollectiveLog,
    machine: Machine,
    layout: Layout,
    *,
    name: str = "",
    destinations: Destinations | None = None,
    command: Sequence[str] = (),
) -> CheckedLog:
    """Compares a log with a machine, and prints the answer or writes it as JSON.

    Parameters
    ----------
    name : name of the log's file

    Raises
    ------
    InputError : rows whose collective is unknown, or that cannot be simulated
    """
    to = destinations or Destinations()
    to.check()
    net = network_of(machine)
    calls = list(_calls(log, machine, layout, net))
    rows = [_checked(call, layout.nodes == 1 and "nvswitch" in net.kinds) for call in calls]
    by_size = tuple(_by_size(rows))
    answer = CheckedLog(
        log=name,
        program=log.program,
        machine=machine.name,
        ranks=layout.ranks,
        nodes=layout.nodes,
        devices=log.devices,
        by_size=by_size,
        rows=tuple(rows),
        explanations=()
        if _is_normal(by_size)
        else tuple(explanations(_few(calls), machine, across=layout.nodes > 1)[:MOST_EXPLANATIONS]),
        provenance=provenance(command),
    )
    write_or_show(answer, to.json, SCHEMA, lambda: _print(answer))
    if to.plot:
        from quadrille.experiments.check.check_figure import draw_check

        draw_check(answer, to.plot)
    return answer


def _calls(log: CollectiveLog, machine: Machine, layout: Layout, net: Network) -> Iterator[Call]:
    """A call of each kind and size, with the median of its measured times."""
    times: dict[tuple[CollectiveKind, int, int], list[float]] = defaultdict(list)
    for row in log.rows:
        if row.kind is None:
            raise InputError("the file does not tell which collective it measured: --collective NAME does")
        times[row.kind, row.bytes, row.item_bytes or 1].append(row.seconds)
    for (kind, size, item_bytes), measured in sorted(times.items()):
        question = layout.question(kind, size, item_bytes)
        expected = predict_collective(question, machine, net=net).seconds
        if expected > 0:
            yield Call(question, median(measured), expected)


def _few(calls: Sequence[Call]) -> list[Call]:
    """Calls of sizes that lie evenly on a logarithmic scale, at most `MOST_CALLS` of each collective."""
    few = []
    for kind in dict.fromkeys(call.question.kind for call in calls):
        of_kind = [call for call in calls if call.question.kind == kind]
        first, last = (log(max(1, call.question.bytes)) for call in (of_kind[0], of_kind[-1]))
        wanted = [first + (last - first) * place / (MOST_CALLS - 1) for place in range(MOST_CALLS)]
        nearest = [min(of_kind, key=lambda call: abs(log(max(1, call.question.bytes)) - place)) for place in wanted]
        few += list({call.question.bytes: call for call in nearest}.values())
    return few


def _checked(call: Call, has_table: bool) -> CheckedRow:
    within = WITHIN_SMALL if call.question.bytes < LARGE else WITHIN_TABLE if has_table else WITHIN_MODEL
    return CheckedRow(
        kind=call.question.kind,
        bytes=call.question.bytes,
        measured_seconds=call.measured,
        expected_seconds=call.expected,
        within=within,
        verdict=_verdict(call.measured / call.expected, within),
    )


def _by_size(rows: Sequence[CheckedRow]) -> Iterator[CheckedSizes]:
    """The verdict of the sizes from 1 MiB on, and that of smaller sizes."""
    large, small = ([row for row in rows if (row.bytes >= LARGE) == is_large] for is_large in (True, False))
    for sizes, some in (("from 1 MiB", large), ("below 1 MiB", small)):
        if some:
            ratio = median(row.ratio for row in some)
            yield CheckedSizes(
                sizes=cast(Literal["from 1 MiB", "below 1 MiB"], sizes),
                verdict=_verdict(ratio, some[0].within),
                ratio=ratio,
                count=len(some),
                others=sum(row.verdict != NORMAL for row in some),
            )


def _is_normal(by_size: Sequence[CheckedSizes]) -> bool:
    """Whether all sizes are as expected in the median."""
    return all(sizes.verdict == NORMAL for sizes in by_size)


def _verdict(ratio: float, within: float) -> Verdict:
    """The verdict of measured / expected.

    >>> _verdict(1.3, 1.25), _verdict(0.9, 1.25), _verdict(0.5, 1.25)
    ('slower', 'as expected', 'faster')
    """
    return "slower" if ratio > within else "faster" if ratio * within < 1 else NORMAL


# Printing


def _print(answer: CheckedLog) -> None:
    devices = f" of {', '.join(answer.devices)}" if answer.devices else ""
    where = f"{answer.ranks} ranks{devices} on {answer.nodes} {'node' if answer.nodes == 1 else 'nodes'}"
    print(f"{answer.log}: {answer.program}, {where}, beside {answer.machine}")
    for sizes in answer.by_size:
        print(
            f"{sizes.sizes}: {sizes.verdict}, measured / expected {sizes.ratio:.2f} in the median; "
            f"{sizes.others} of {sizes.count} sizes differ"
        )
    print()
    columns = ("collective", "bytes", "measured", "expected", "ratio", "measured bus", "expected bus", "")
    rows = ((*cells, "" if verdict == NORMAL else verdict) for *cells, verdict in row_cells(answer))
    print_tables(table("", columns, rows))
    if answer.explanations:
        print("\nwhat would explain it, the likeliest first (each simulated; error beside the measured times):")
        for explanation in answer.explanations:
            first, *others = explanation.cause.split(", or ")
            shown = f"   {explanation.try_it}" if explanation.try_it else ""
            print(f"  {100 * explanation.distance:4.0f} %  {first}{shown}")
            for cause in others:
                print(f"     or  {cause}")
        if answer.nodes > 1 and any(INSIDE.search(explanation.cause) for explanation in answer.explanations[:2]):
            print("a log of one node tells slow links between GPUs from slow network cards")
    elif not _is_normal(answer.by_size):
        print("\nno simulated cause comes near the measured times")


def row_cells(answer: CheckedLog) -> Iterator[tuple[str, ...]]:
    """The rows as text: collective, size, measured and expected time, ratio, both bus bandwidths, verdict."""
    for row in answer.rows:
        factor = bus_factor(row.kind, answer.ranks)
        yield (
            hyphenated(row.kind),
            format_bytes(row.bytes),
            duration(row.measured_seconds),
            duration(row.expected_seconds),
            f"{row.ratio:.2f}",
            format_bytes_per_second(factor * row.bytes / row.measured_seconds),
            format_bytes_per_second(factor * row.bytes / row.expected_seconds),
            row.verdict,
        )
