"""Exact folding: equivalence classes of ranks, links and flows, so that one representative of each is simulated.

Theory of operation
-------------------
A *flow* is all traffic from one rank to another over some links, at any time
(a pattern of communication makes one flow for each pair of ranks); local work on a
resource that ranks share is a flow from a rank to itself. Colour all ranks, links
and flows by what they are, then refine, round after round:

    flow  <- its colour, the colours of its sender and receiver, and of its links with shares
    rank  <- its colour, the colours of the flows it sends, and of the flows it receives
    link  <- its colour, and the colours of the flows that cross it, with shares

until no class of flows splits; then no other class splits either, because the
colours of ranks and links follow from the flows. Such a partition is *equitable*:
if all members of each class are in the same state now, they see the same and do the
same, so they are in the same state ever after. One rank, flow and link of each class
are an exact simulation of all, if the flow counts on the link as often as flows of
its class cross it. Whatever breaks the symmetry (a slow GPU, a degraded link, an
uneven block, a leaf that is not full) splits classes by itself; a partition that is
not stable is not exact and is never used.

The check
---------
A wrong partition may still give the right makespan. So every run checks the partition that
the hashes of `refinement.py` gave, without hashes (`fault`). The neighbours of a rank,
link or flow are a bag (multiset) of labels; all bags are sorted at once (very many are
counted, in `flow_kernels.py`), and each is compared with the bag of the first member
of its class, number by number.

Source: Grohe, Kersting, Mladenov, Selman, "Dimension Reduction via Colour
Refinement", ESA 2014.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from quadrille.simulator.symmetry.partition import MANY, Columns, Floats, Flows, Hashes, Ints, Partition, firsts
from quadrille.simulator.symmetry.refinement import refine


def fault(partition: Partition, ranks: Columns, flows: Flows, links: Columns, *, compiled_from: int = MANY) -> str:
    """The reason why a partition is not equitable; empty if it is equitable.

    Parameters
    ----------
    ranks, links : attributes that members of a class must share
    compiled_from : number of entries from which bags are compared by a compiled kernel
    """
    parts = (("ranks", partition.ranks, ranks), ("links", partition.links, links))
    for kind, classes, columns in (*parts, ("flows", partition.flows, flows.columns)):
        for name, values in columns.items():
            if not np.array_equal(values, values[firsts(classes)[classes]]):
                return f"{kind} of a class differ in {name}"
    first = firsts(partition.flows)[partition.flows]
    for name, ends in (("sender", flows.sender), ("receiver", flows.receiver)):
        seen = partition.ranks[ends]
        if not np.array_equal(seen, seen[first]):
            return f"flows of a class differ in the class of their {name}"
        if not equal_bags(ends, partition.flows, partition.ranks, compiled_from, once=True):
            return f"ranks of a class differ in the flows of which they are {name}"
    owner, (share, kinds) = flows.entry_flows(), _numbered(flows.shares)
    if not equal_bags(owner, partition.links[flows.links] * kinds + share, partition.flows, compiled_from):
        return "flows of a class differ in the classes of their links"
    if not equal_bags(flows.links, partition.flows[owner] * kinds + share, partition.links, compiled_from):
        return "links of a class differ in the classes of the flows that cross them"
    return ""


def _numbered(values: Floats) -> tuple[Ints | int, int]:
    """The values as numbers 0, 1, …, and how many different values there are."""
    if not len(values) or (values == values[0]).all():
        return 0, 1
    kinds, numbers = np.unique(values, return_inverse=True)
    return numbers, len(kinds)


def equal_bags(owners: Ints, labels: Ints, classes: Ints, compiled_from: int = MANY, *, once: bool = False) -> bool:
    """Whether owners of one class have the same bag of labels (and, if asked, no label twice).

    Parameters
    ----------
    owners, labels : owner and label of each entry
    classes : class of each owner
    compiled_from : number of entries from which a compiled kernel is used
    once : whether owners with the same label twice are refused
    """
    width = int(labels.max(initial=0)) + 1
    assert len(classes) * width < 2**63, "too many classes to number pairs of them by 64 bits"
    if len(owners) >= compiled_from and width <= MOST_LABELS:
        from quadrille.simulator.symmetry.flow_kernels import all_bags_equal

        return all_bags_equal(owners, labels, classes, firsts(classes), once=once)
    keys = np.sort(owners * width + labels)
    if once and not (keys[1:] != keys[:-1]).all():
        return False
    sizes = np.bincount(owners, minlength=len(classes))
    first = firsts(classes)[classes]
    if not np.array_equal(sizes, sizes[first]):
        return False
    starts = np.cumsum(sizes) - sizes
    label = keys - np.repeat(np.arange(len(classes)) * width, sizes)
    counterpart = np.arange(len(keys)) + np.repeat(starts[first] - starts, sizes)
    return np.array_equal(label, label[counterpart])


MOST_ROUNDS = 64
"""Largest number of rounds; symmetry shows within a few dozen rounds."""

FEW = 256
"""Number of classes up to which folding is always used; above it, up to a quarter of the flows."""

MOST_LABELS = 1 << 22
"""Labels up to which bags of very many labels are compared by counting."""
RARE = 0.01
"""A value that at most this share of the ranks or links has is named as the cause of broken symmetry."""


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """Classes 0, 1, … of ranks, flows and links.

    Parameters
    ----------
    ranks, flows, links : class of each; -1 for a link that no flow crosses
    rounds : rounds of refinement
    folded : whether classes were found; if not, each rank, flow and used link is a class by itself
    not_folded_reason : reason why no classes were found, in words; empty if folded
    """

    ranks: Ints
    flows: Ints
    links: Ints
    rounds: int = 0
    folded: bool = False
    not_folded_reason: str = ""

    @property
    def rank_classes(self) -> int:
        """Number of classes of ranks."""
        return int(self.ranks.max(initial=-1)) + 1

    @property
    def flow_classes(self) -> int:
        """Number of classes of flows."""
        return int(self.flows.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True, eq=False)
class QuotientGraph:
    """One rank, flow and link for each class.

    Parameters
    ----------
    flows : flows between classes of ranks, over classes of links; a share is what all flows of the class together take
        of one link for a unit of each of them; no columns
    rank_of, flow_of, link_of : the first member of each class
    """

    flows: Flows
    rank_of: Ints
    flow_of: Ints
    link_of: Ints


def fold(
    ranks: Columns,
    flows: Flows,
    links: Columns,
    *,
    rank_name: Callable[[int], str] = "rank {}".format,
    link_name: Callable[[int], str] = "link {}".format,
) -> Folding:
    """The coarsest equitable partition; each class has one member if folding saves nothing or does not converge.

    A ring of six under two switches of three: rank 0 is equivalent to rank 3.

    >>> offsets = np.array([0, 1, 2, 4, 5, 6, 8])  # each sender has a link, each switch one to the other
    >>> crossed = np.array([0, 1, 2, 6, 3, 4, 5, 7])
    >>> ring = Flows(np.arange(6), np.roll(np.arange(6), -1), offsets, crossed, np.ones(8))
    >>> same = {"speed": np.ones(6)}, ring, {"bandwidth": np.ones(8)}
    >>> fold(*same).ranks.tolist()
    [0, 1, 2, 0, 1, 2]

    Parameters
    ----------
    ranks : attributes that distinguish ranks, 64-bit numbers: the shape of its program (all but its peers), speed,
        sizes of its blocks, number of ranks at its endpoint, and so on [ranks]
    flows : every flow that may ever exist; no two flows of one sender agree in all columns
    links : attributes that distinguish links: bandwidth [links]
    rank_name, link_name : names for `not_folded_reason`
    """
    if not flows.count:
        return unfolded(_length(ranks), flows, _length(links), "nothing is sent")
    used, near = _used_links(flows, _length(links))
    link_columns = {name: values[used] for name, values in links.items()}
    refined = refine(ranks, near, link_columns, most_rounds=MOST_ROUNDS, most_classes=max(FEW, flows.count // 4))
    if refined.settled and refined.classes < flows.count:
        partition = Partition(_labelled(refined.ranks), _labelled(refined.flows), _labelled(refined.links))
        problem = fault(partition, ranks, near, link_columns)
        if not problem:
            return Folding(
                partition.ranks,
                partition.flows,
                _on_all_links(partition.links, used, _length(links)),
                refined.rounds,
                True,
            )
    elif refined.settled:
        problem = "no two flows are alike"
    else:
        problem = f"{refined.classes} classes of {flows.count} flows after {refined.rounds} rounds, and not settled"
    reason = _rare_value(ranks, rank_name) or _rare_value(link_columns, lambda i: link_name(int(used[i])))
    if not reason and refined.alone is not None:
        rank, rounds = refined.alone
        reason = f"{rank_name(rank)} is unlike every other within {rounds} hops"
    return replace(
        unfolded(_length(ranks), flows, _length(links)),
        rounds=refined.rounds,
        not_folded_reason=f"{reason} ({problem})" if reason else problem,
    )


def unfolded(ranks: int, flows: Flows, links: int, not_folded_reason: str = "") -> Folding:
    """Every rank, flow and used link as a class by itself."""
    used, _ = _used_links(flows, links)
    own_classes = _on_all_links(np.arange(len(used)), used, links)
    return Folding(np.arange(ranks), np.arange(flows.count), own_classes, not_folded_reason=not_folded_reason)


def quotient(folding: Folding, flows: Flows) -> QuotientGraph:
    """The flows between classes.

    >>> both = Flows(np.array([0, 1]), np.array([1, 0]), np.array([0, 1, 2]), np.array([0, 0]), np.ones(2))
    >>> graph = quotient(fold({"speed": np.ones(2)}, both, {"bandwidth": np.ones(1)}), both)
    >>> graph.flows.sender.tolist(), graph.flows.receiver.tolist(), graph.flows.shares.tolist()
    ([0], [0], [2.0])
    """
    used = folding.links >= 0
    link_of = np.flatnonzero(used)[firsts(folding.links[used])]
    rank_of, flow_of = firsts(folding.ranks), firsts(folding.flows)
    chosen = np.zeros(len(folding.links), dtype=bool)
    chosen[link_of] = True
    entries = np.flatnonzero(chosen[flows.links])
    owner = folding.flows[np.searchsorted(flows.offsets, entries, side="right") - 1]
    width = max(1, len(link_of))
    keys, where = np.unique(owner * width + folding.links[flows.links[entries]], return_inverse=True)
    owners, links = np.divmod(keys, width)
    flows_between = Flows(
        folding.ranks[flows.sender[flow_of]],
        folding.ranks[flows.receiver[flow_of]],
        np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(flow_of)))]),
        links,
        np.bincount(where, flows.shares[entries], minlength=len(keys)).astype(np.float64),
    )
    return QuotientGraph(flows_between, rank_of, flow_of, link_of)


def _length(columns: Columns) -> int:
    """Number of ranks or links that have these attributes."""
    return len(next(iter(columns.values())))


def _used_links(flows: Flows, links: int) -> tuple[Ints, Flows]:
    """The links that some flow crosses, and the flows with these links numbered 0, 1, …."""
    crossed = np.zeros(links, dtype=bool)
    crossed[flows.links] = True
    number = np.cumsum(crossed) - 1
    return np.flatnonzero(crossed), replace(flows, links=number[flows.links])


def _on_all_links(values: Ints, used: Ints, links: int) -> Ints:
    """The values of the used links as values of all links; -1 for unused links."""
    spread = np.full(links, -1, dtype=np.int64)
    spread[used] = values
    return spread


def _labelled(colours: Hashes) -> Ints:
    """Colours as numbers 0, 1, … in the order of their first occurrence."""
    kinds, first, numbers = np.unique(colours, return_index=True, return_inverse=True)
    order = np.empty(len(kinds), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(kinds))
    return order[numbers]


def _rare_value(columns: Columns, name: Callable[[int], str]) -> str:
    """The text for a rank or link with a rare value of an attribute; empty if there is none."""
    for attribute, values in columns.items():
        kinds, first, counts = np.unique(values, return_index=True, return_counts=True)
        if len(kinds) < 2:
            continue
        rarest = int(np.argmin(counts))
        if counts[rarest] <= max(1, RARE * len(values)):
            suffix = f" and {counts[rarest] - 1} more differ" if counts[rarest] > 1 else " differs"
            return f"{name(int(first[rarest]))}{suffix} in {attribute}"
    return ""
