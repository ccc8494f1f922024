"""Reader of SimAI's topology files, the networks of its packet simulator.

    16 8 2 8 32 H100                        nodes, GPUs of a server, NVSwitches, other switches, cables, kind of the GPU
    6 7 8 9 …                               numbers of the switches, NVSwitches first; other numbers are GPUs
    0 6 2880Gbps 0.000025ms 0               two ends, bandwidth, latency and rate of errors of a cable
    …

    read          nodes, GPUs of a server, cables
    ignored       kind of the GPU, rates of errors
    not there     NICs: a GPU's cable to the fabric begins at the GPU

Source: aliyun/SimAI@cef83f9d, astra-sim-alibabacloud/inputs/topo/gen_Topo_Template.py.
"""

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.size_limits import check_cable, check_size

HEAD = re.compile(r"[ \t]*[0-9]{1,9}(?:[ \t]+[0-9]{1,9}){4}[ \t]+[A-Za-z]\w*[ \t]*\r?\n[ \t]*[0-9]")
RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([KMGT]?)bps")
LATENCY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|ms|s)")
BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
COLUMNS = 5
Cable = tuple[int, int, float, float]
"""Two ends, bandwidth [B/s] and latency [s]."""


def is_simai(text: str) -> bool:
    r"""Whether a text begins as a topology file of SimAI does.

    >>> is_simai("3 2 1 0 2 H100\n2 \n0 2 2880Gbps 0.000025ms 0\n"), is_simai("Nodes 8\nTiers 3\n")
    (True, False)
    """
    return HEAD.match(text[:4096]) is not None


def read_simai(text: str, path: str, ignored: Say) -> Network:
    """The network of a file.

    Parameters
    ----------
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a fault, with its line, or a network that is too large
    """
    lines = text.splitlines()
    words = lines[0].split() if lines else []
    if not HEAD.match(text):
        raise InputError(
            f"{path}, line 1: {' '.join(words)[:40]!r}: five whole numbers and the kind of the GPU are needed"
        )
    nodes, per_node, nvswitches, others, count = map(int, words[:5])
    gpus = nodes - nvswitches - others
    check_size(path, nodes, 2 * count)
    if gpus < 1 or not 1 <= per_node <= gpus or gpus % per_node:
        raise InputError(f"{path}, line 1: {gpus} GPUs in servers of {per_node}: full servers are accepted")
    switches = _switches(lines[1].split(), nodes, nvswitches + others, path)
    cables = _cables(lines[2:], nodes, count, path)
    ignored(f"the kind of the GPU ({words[5]:.40}) and rates of errors")
    builder = Builder("file", {})
    numbers = np.full(nodes, -1, dtype=np.int64)
    numbers[np.setdiff1d(np.arange(nodes), switches)] = builder.nodes("gpu", gpus)
    for kind, members in (("nvswitch", switches[:nvswitches]), ("switch", switches[nvswitches:])):
        if len(members):
            numbers[members] = builder.nodes(kind, len(members))
    first, second, rates, delays = (np.array(column) for column in zip(*cables, strict=True))
    builder.cables(numbers[first], numbers[second], bandwidth=rates, latency=delays)
    return builder.network(("gpu", gpus), name=words[5], per_node=per_node)


def _switches(words: Sequence[str], nodes: int, count: int, path: str) -> Ints:
    """The numbers of the switches."""
    if len(words) != count or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(f"{path}, line 2: {len(words)} words: the numbers of {count} switches are needed")
    numbers = np.array([int(word) for word in words], dtype=np.int64)
    if len(np.unique(numbers)) < count or (numbers >= nodes).any():
        raise InputError(f"{path}, line 2: {count} different numbers below {nodes} are accepted")
    return numbers


def _cables(lines: Sequence[str], nodes: int, count: int, path: str) -> list[Cable]:
    """The cables of the lines from the third on."""
    rows = [(number, line.split()) for number, line in enumerate(lines, start=3) if line.strip()]
    if len(rows) != count or not count:
        raise InputError(f"{path}, line 1: {count} cables: the file has {len(rows)} lines of cables")
    return [_cable(row, nodes, f"{path}, line {number}") for number, row in islice(rows, count)]


def _cable(row: Sequence[str], nodes: int, place: str) -> Cable:
    if len(row) != COLUMNS:
        raise InputError(f"{place}: {len(row)} columns: a cable has {COLUMNS}")
    ends = [int(word) if re.fullmatch("[0-9]{1,9}", word) else nodes for word in row[:2]]
    if max(ends) >= nodes or ends[0] == ends[1]:
        raise InputError(f"{place}: {' '.join(row[:2])[:40]!r}: two different numbers below {nodes} are accepted")
    rate, latency = RATE.fullmatch(row[2]), LATENCY.fullmatch(row[3])
    if rate is None or latency is None:
        raise InputError(
            f"{place}: {' '.join(row[2:4])[:60]!r}: a bandwidth as 400Gbps and a latency as 0.0005ms are needed"
        )
    bandwidth, seconds = float(rate[1]) * BITS[rate[2]] / 8, float(latency[1]) * SECONDS[latency[2]]
    check_cable(place, bandwidth, seconds)
    return ends[0], ends[1], bandwidth, seconds
