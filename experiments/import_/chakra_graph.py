"""`chakra_graph`: the message graph in the Chakra traces of all ranks, one file a rank.

    node                 task
    COMP_NODE            a calculation of its duration, on stream 0; of a CPU, on stream 1
    COMM_SEND, RECV      a send, a receive
    COMM_COLL            a collective of the group `pg_name`, by default of all ranks
    METADATA             groups, if it lists them; takes no time
    MEM_LOAD, STORE      takes no time

Sizes of collectives are those of ASTRA-sim: what a rank puts in (its shard of an all-gather, else the whole buffer).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import chakra
from quadrille.algorithms.formats.chakra import ChakraNode
from quadrille.algorithms.formats.input_files import parse_json
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph, check_count, check_needs
from quadrille.algorithms.units import LONGEST_SECONDS

Groups = dict[str, tuple[int, ...]]
CPU_STREAM, COMMUNICATION_STREAM = 1, 2
MOST_TAG = 1 << 32
LARGEST_BYTES = 1e18
ACCEPTED = "a JSON file of groups has a list of ranks for each name"


@dataclass
class Graph:
    """A graph while traces are read, with what was not used.

    Parameters
    ----------
    size : number of ranks
    without_duration : number of computations without a duration
    memory : number of loads and stores
    """

    size: int
    groups: Groups
    ranks: list[list[GraphTask]] = field(default_factory=list)
    count: int = 0
    without_duration: int = 0
    memory: int = 0

    @property
    def remarks(self) -> list[str]:
        """What the graph leaves out, in words."""
        texts = (
            (self.without_duration, "computations have no duration, and take no time"),
            (self.memory, "loads and stores of memory take no time"),
        )
        return [f"{count:,} {text}" for count, text in texts if count]


def chakra_graph(traces: Sequence[tuple[str, bytes]], groups: Groups) -> tuple[MessageGraph, list[str]]:
    """The message graph of the traces, and remarks on what was not used.

    Parameters
    ----------
    traces : name and content of the trace of each rank
    groups : ranks of each group, by its name

    Raises
    ------
    InputError : an invalid trace; the message names the file and the node
    """
    return graph_of_nodes(_nodes_of(traces), len(traces), groups)


def graph_of_nodes(
    ranks: Iterable[tuple[str, list[ChakraNode]]], size: int, groups: Groups
) -> tuple[MessageGraph, list[str]]:
    """The message graph of the nodes of all ranks, and remarks on what was not used.

    Parameters
    ----------
    ranks : name of the file and nodes of each rank, in order
    size : number of ranks
    groups : ranks of each group, by its name

    Raises
    ------
    InputError : an invalid node; the message names the file and the node
    """
    graph = Graph(size, dict(groups))
    for rank, (path, nodes) in enumerate(ranks):
        try:
            graph.ranks.append(_tasks(graph, nodes, rank))
        except (ValueError, OverflowError) as fault:
            raise InputError(f"{path}: {fault}") from None
        check_needs(graph.ranks[-1], path)
        graph.count += len(graph.ranks[-1])
        check_count(graph.count, path)
    return MessageGraph(tuple(graph.ranks)), graph.remarks


def _nodes_of(traces: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, list[ChakraNode]]]:
    """Yields the name and the nodes of each trace."""
    for path, content in traces:
        try:
            nodes = list(chakra.read_nodes(content))
        except (ValueError, OverflowError) as fault:
            raise InputError(f"{path}: {fault}") from None
        yield path, nodes


def read_groups(text: str, path: str) -> Groups:
    """The groups in a JSON file, as ASTRA-sim's `--comm-group-configuration` has them.

    >>> read_groups('{"1": [0, 2]}', "groups.json")
    {'1': (0, 2)}

    Raises
    ------
    InputError : another content
    """
    try:
        table = parse_json(text)
    except ValueError as fault:
        raise InputError(f"{path} {fault}") from None
    if not isinstance(table, dict):
        raise InputError(f"{path}: holds no table; {ACCEPTED}")
    try:
        return {name: _group(ranks) for name, ranks in table.items()}
    except ValueError as fault:
        raise InputError(f"{path}: {fault}; {ACCEPTED}") from None


def _group(ranks: Any) -> tuple[int, ...]:
    is_list = isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
    if not is_list or len(set(ranks)) != len(ranks):
        raise ValueError(f"{ranks!r:.60} is no list of ranks")
    return tuple(ranks)


def _tasks(graph: Graph, nodes: list[ChakraNode], rank: int) -> list[GraphTask]:
    """The tasks of a rank."""
    index = {node.id: number for number, node in enumerate(nodes)}
    if len(index) < len(nodes):
        raise ValueError("two nodes have one id")
    for node in nodes:
        if any(need not in index for need in node.needs):
            raise ValueError(f"node {node.id} waits for a node that the file lacks")
        if node.kind == chakra.METADATA and node.inputs:
            graph.groups |= _named_groups(node.inputs)
    return [_task(graph, node, rank)._replace(needs=tuple(index[need] for need in node.needs)) for node in nodes]


def _named_groups(inputs: str) -> Groups:
    """The groups that a metadata node of PyTorch lists; none for other text."""
    begin, end = inputs.find("[{"), inputs.rfind("}]")
    if begin < 0 or end < begin:
        return {}
    try:
        entries = parse_json(inputs[begin : end + 2].replace('\\"', '"'))
    except ValueError:
        return {}
    return {
        str(entry["pg_name"]): _group(entry["ranks"])
        for entry in entries
        if isinstance(entry, dict) and "pg_name" in entry and isinstance(entry.get("ranks"), list)
    }


def _task(graph: Graph, node: ChakraNode, rank: int) -> GraphTask:
    """The task of a node, without its needs."""
    stream = CPU_STREAM if node.attributes.get("is_cpu_op") is True else 0
    if node.kind == chakra.COMPUTE:
        graph.without_duration += not node.seconds
        if not 0 <= node.seconds <= LONGEST_SECONDS:
            raise ValueError(f"node {node.id}: duration {node.seconds!r} s: 0 to {LONGEST_SECONDS:g} is accepted")
        return GraphTask("calculate", node.seconds, stream=stream, name=node.name)
    if node.kind in (chakra.SEND, chakra.RECEIVE):
        return _message(graph, node, rank)
    if node.kind == chakra.COLLECTIVE:
        return _collective(graph, node)
    if node.kind not in (0, chakra.METADATA, chakra.MEMORY_LOAD, chakra.MEMORY_STORE):
        raise ValueError(f"node {node.id} has the unknown type {node.kind}; 0 to {chakra.COLLECTIVE} is accepted")
    graph.memory += node.kind in (chakra.MEMORY_LOAD, chakra.MEMORY_STORE)
    return GraphTask("calculate", 0.0, stream=COMMUNICATION_STREAM + 1, name=node.name)


def _message(graph: Graph, node: ChakraNode, rank: int) -> GraphTask:
    is_send = node.kind == chakra.SEND
    own, far = ("comm_src", "comm_dst") if is_send else ("comm_dst", "comm_src")
    if node.number(own, rank) != rank or far not in node.attributes:
        raise ValueError(f"node {node.id}: {own} is another rank, or {far} is missing")
    peer, tag = node.number(far), node.number("comm_tag")
    if not 0 <= peer < graph.size or peer == rank:
        raise ValueError(f"node {node.id}: {far} {peer}: another rank from 0 to {graph.size - 1} is accepted")
    if not 0 <= tag < MOST_TAG:
        raise ValueError(f"node {node.id}: comm_tag {tag}: 0 to {MOST_TAG - 1} is accepted")
    return GraphTask(
        "send" if is_send else "receive", _size(node), peer=peer, tag=tag, stream=COMMUNICATION_STREAM, name=node.name
    )


def _collective(graph: Graph, node: ChakraNode) -> GraphTask:
    kind = chakra.KINDS.get(node.number("comm_type", -1))
    if kind is None:
        kinds: Mapping[int, object] = chakra.KINDS
        raise ValueError(
            f"node {node.id}: comm_type {node.attributes.get('comm_type')!r:.60}: accepted are "
            f"{', '.join(f'{number} ({name})' for number, name in sorted(kinds.items()))}"
        )
    group: tuple[int, ...] = tuple(range(graph.size))
    name = str(node.attributes.get("pg_name", ""))
    if name:
        if name not in graph.groups:
            raise ValueError(f"node {node.id}: pg_name {name!r:.60} is unknown: a JSON file of groups is needed")
        group = graph.groups[name] or group
        if max(group) >= graph.size:
            raise ValueError(f"node {node.id}: group {name!r:.60} has rank {max(group)}; there are {graph.size} traces")
    size = _size(node) * (len(group) if kind == "all_gather" else 1)
    return GraphTask("collective", size, stream=COMMUNICATION_STREAM, collective=kind, group=group, name=node.name)


def _size(node: ChakraNode) -> float:
    size = node.number("comm_size")
    if not 0 <= size <= LARGEST_BYTES:
        raise ValueError(f"node {node.id}: comm_size {size}: 0 to {LARGEST_BYTES:g} is accepted")
    return float(size)
