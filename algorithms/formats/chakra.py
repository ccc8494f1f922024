"""Chakra execution traces: the nodes of one rank (computation, send, receive, collective) with their dependencies.

A file holds a `GlobalMetadata` message and then one `Node` message for each node, each behind its length.

Source: MLCommons Chakra, `schema/protobuf/et_def.proto`, https://github.com/mlcommons/chakra (Apache-2.0); attributes
as ASTRA-sim reads them, `astra-sim/workload/Workload.cc`, https://github.com/astra-sim/astra-sim (MIT).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from quadrille.algorithms.formats import protobuf_wire as wire
from quadrille.algorithms.schedule.ops import CollectiveKind

VERSION = "0.0.4"
METADATA, MEMORY_LOAD, MEMORY_STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
"""Types of nodes, `NodeType` of the schema."""
COLLECTIVES: dict[CollectiveKind, int] = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
"""Kinds of collectives, `CollectiveCommType` of the schema."""
KINDS = {number: kind for kind, number in COLLECTIVES.items()} | {8: "reduce_scatter"}
INT32, INT64, BOOL, STRING, DOUBLE = 7, 9, 27, 29, 3
"""Fields of an attribute's value, `AttributeProto` of the schema."""
INTEGERS = range(7, 27, 2)
SECONDS = "quadrille_seconds"
"""Attribute of ours with the seconds of a node, whose own duration is in whole microseconds."""
Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """One node of a trace.

    Parameters
    ----------
    kind : type of the node
    needs : nodes that must end before, by their ids
    duration_micros : duration [us]
    attributes : values by name; lists are left out
    inputs : values of the inputs, in which PyTorch names process groups
    """

    id: int
    name: str
    kind: int
    needs: tuple[int, ...] = ()
    duration_micros: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)
    inputs: str = ""

    def number(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number.

        Raises
        ------
        ValueError : another value
        """
        value = self.attributes.get(name, default)
        if isinstance(value, str) or value != int(value):
            raise ValueError(f"node {self.id}: {name} {value!r:.60} is no whole number")
        return int(value)

    @property
    def seconds(self) -> float:
        """Duration of the node [s]."""
        value = self.attributes.get(SECONDS)
        return float(value) if isinstance(value, float | int) else self.duration_micros * 1e-6


def trace_bytes(nodes: Iterator[ChakraNode]) -> bytes:
    """The file of a trace."""
    metadata = wire.bytes_field(1, VERSION.encode())
    return b"".join([wire.delimited(metadata), *(wire.delimited(_node_bytes(node)) for node in nodes)])


def _node_bytes(node: ChakraNode) -> bytes:
    parts = [wire.number_field(1, node.id), wire.bytes_field(2, node.name.encode()), wire.number_field(3, node.kind)]
    parts.append(wire.packed_field(5, node.needs))
    if node.duration_micros:
        parts.append(wire.number_field(7, node.duration_micros))
    parts += [wire.bytes_field(10, _attribute_bytes(name, value)) for name, value in node.attributes.items()]
    return b"".join(parts)


def _attribute_bytes(name: str, value: Value) -> bytes:
    head = wire.bytes_field(1, name.encode())
    if isinstance(value, bool):
        return head + wire.number_field(BOOL, int(value))
    if isinstance(value, str):
        return head + wire.bytes_field(STRING, value.encode())
    if isinstance(value, float):
        return head + wire.double_field(DOUBLE, value)
    return head + wire.number_field(INT64, value)


def read_nodes(content: bytes) -> Iterator[ChakraNode]:
    """Yields the nodes of a trace.

    >>> send = ChakraNode(0, "send", SEND, attributes={"comm_dst": 1, "comm_size": 8})
    >>> [node.number("comm_size") for node in read_nodes(trace_bytes(iter([send])))]
    [8]

    Raises
    ------
    ValueError : no trace, with the node that is wrong
    """
    for number, message in enumerate(wire.messages(content)):
        try:
            if number:
                yield _node(message)
            else:
                _check_metadata(message)
        except ValueError as fault:
            raise ValueError(f"message {number}: {fault}") from None


def is_trace(content: bytes) -> bool:
    """Whether a file begins as a Chakra trace does.

    >>> is_trace(trace_bytes(iter([]))), is_trace(b"num_ranks 2")
    (True, False)
    """
    try:
        first = next(wire.messages(content))
        _check_metadata(first)
    except (ValueError, StopIteration):
        return False
    return True


def _check_metadata(message: bytes) -> None:
    """Raises ValueError unless a message is `GlobalMetadata`."""
    for number, value in wire.fields(message):
        if number not in (1, 2) or not isinstance(value, bytes):
            raise ValueError("a trace begins with its version, or with attributes")
        if number == 1:
            value.decode()


def _node(message: bytes) -> ChakraNode:
    numbers, texts = {1: 0, 3: 0, 7: 0}, {2: b"", 8: b""}
    needs: list[int] = []
    attributes: dict[str, Value] = {}
    for number, value in wire.fields(message):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number in texts and isinstance(value, bytes):
            texts[number] = value
        elif number in (4, 5):
            needs += wire.packed_numbers(value) if isinstance(value, bytes) else [int(value)]
        elif number == 10 and isinstance(value, bytes):
            attributes.update(_attribute(value))
    inputs = dict(wire.fields(texts[8])).get(1, b"")
    return ChakraNode(
        numbers[1],
        texts[2].decode(),
        numbers[3],
        tuple(dict.fromkeys(needs)),
        numbers[7],
        attributes,
        inputs.decode() if isinstance(inputs, bytes) else "",
    )


def _attribute(message: bytes) -> Iterator[tuple[str, Value]]:
    """Yields the name and the value of an attribute; nothing for a list."""
    entries = dict(wire.fields(message))
    name = entries.get(1, b"")
    if not isinstance(name, bytes):
        raise ValueError("an attribute has no name")
    for number, value in entries.items():
        if number == STRING and isinstance(value, bytes):
            yield name.decode(), value.decode()
        elif number == BOOL and isinstance(value, int):
            yield name.decode(), bool(value)
        elif number in (DOUBLE, 5) and isinstance(value, float):
            yield name.decode(), value
        elif number in INTEGERS and isinstance(value, int):
            yield name.decode(), value - wire.WORD if value >= wire.WORD // 2 and number in (INT32, INT64) else value
