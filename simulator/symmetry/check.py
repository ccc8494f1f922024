"""The exact check of a partition: do members of a class really see the same?

Nothing is hashed here.  What a rank, link or flow sees is a bag of labels; all
bags are sorted at once (of very many, each is counted: `flow_kernels.py`), and each
is compared with that of the first member of its class, number by number.
"""

import numpy as np

from quadrille.simulator.symmetry.flow_kernels import MANY, MOST_LABELS, all_alike
from quadrille.simulator.symmetry.partition import Columns, Floats, Flows, Ints, Partition, firsts


def fault(partition: Partition, ranks: Columns, flows: Flows, links: Columns) -> str:
    """Why the partition is not equitable, or empty where it is.

    Parameters
    ----------
    ranks, links : attributes that members of a class must share
    """
    parts = (("ranks", partition.ranks, ranks), ("links", partition.links, links))
    for what, classes, columns in (*parts, ("flows", partition.flows, flows.columns)):
        for name, values in columns.items():
            if not np.array_equal(values, values[firsts(classes)[classes]]):
                return f"{what} of a class differ in {name}"
    first = firsts(partition.flows)[partition.flows]
    for name, ends in (("sender", flows.sender), ("receiver", flows.receiver)):
        seen = partition.ranks[ends]
        if not np.array_equal(seen, seen[first]):
            return f"flows of a class differ in the class of their {name}"
        if not _alike(ends, partition.flows, partition.ranks, once=True):
            return f"ranks of a class differ in the flows of which they are {name}"
    owner, (share, kinds) = flows.entry_flows(), _numbered(flows.shares)
    if not _alike(owner, partition.links[flows.links] * kinds + share, partition.flows):
        return "flows of a class differ in the classes of their links"
    if not _alike(flows.links, partition.flows[owner] * kinds + share, partition.links):
        return "links of a class differ in the classes of the flows that cross them"
    return ""


def _numbered(values: Floats) -> tuple[Ints | int, int]:
    """The values as numbers 0, 1, …, and how many there are."""
    if not len(values) or (values == values[0]).all():
        return 0, 1
    found, numbers = np.unique(values, return_inverse=True)
    return numbers, len(found)


def _alike(owners: Ints, labels: Ints, classes: Ints, *, once: bool = False) -> bool:
    """Whether owners of one class have the same bag of labels (and, if asked, each label once)."""
    width = int(labels.max(initial=0)) + 1
    assert len(classes) * width < 2**63, "too many classes to number pairs of them by 64 bits"
    if len(owners) >= MANY and width <= MOST_LABELS:
        return all_alike(owners, labels, classes, firsts(classes), once=once)
    keys = np.sort(owners * width + labels)
    if once and not (keys[1:] != keys[:-1]).all():
        return False
    sizes = np.bincount(owners, minlength=len(classes))
    first = firsts(classes)[classes]
    if not np.array_equal(sizes, sizes[first]):
        return False
    starts = np.cumsum(sizes) - sizes
    label = keys - np.repeat(np.arange(len(classes)) * width, sizes)
    likewise = np.arange(len(keys)) + np.repeat(starts[first] - starts, sizes)
    return np.array_equal(label, label[likewise])
