"""Chakra traces: the wire format against its specification, and traces that are read as they were written."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.formats import chakra
from quadrille.algorithms.formats import protobuf_wire as wire
from quadrille.algorithms.formats.chakra import COLLECTIVE, COMPUTE, SEND, ChakraNode, is_trace, read_nodes, trace_bytes
from tests.support.quadrille import ROOT

NODES = [
    ChakraNode(0, "product", COMPUTE, (), 12, {"num_ops": 1 << 40, "quadrille_seconds": 12.25e-6, "is_cpu_op": False}),
    ChakraNode(1, "sum", COLLECTIVE, (0,), 0, {"comm_type": 0, "comm_size": 8, "pg_name": "1"}),
    ChakraNode(300, "to the next", SEND, (0, 1), 0, {"comm_dst": -1}),
]


def schema_numbers():
    """The number of each field, type and kind in the schema, by name."""
    text = (ROOT / "tests/experiments/import_/samples/et_def.proto").read_text()
    return {name: int(number) for name, number in re.findall(r"(\w+) = (\d+);", text)}


def test_the_numbers_are_those_of_the_schema():
    numbers = schema_numbers()
    values = {
        "int32_val": chakra.INT32,
        "int64_val": chakra.INT64,
        "bool_val": chakra.BOOL,
        "double_val": chakra.DOUBLE,
    }
    assert {name: numbers[name] for name in values} == values
    assert {name: numbers[name.upper()] for name in chakra.COLLECTIVES} == chakra.COLLECTIVES
    types = ("METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE")
    assert [numbers[name] for name in (*types, "COMM_COLL_NODE")] == list(range(1, 8))
    assert [numbers[name] for name in ("ctrl_deps", "data_deps", "duration_micros")] == [4, 5, 7]
    assert all(numbers[f"{kind}int{bits}_val"] in chakra.INTEGERS for kind in ("", "u", "s") for bits in (32, 64))


def test_numbers_are_encoded_as_the_specification_says():
    assert wire.number_field(1, 150).hex() == "089601"
    assert wire.bytes_field(2, b"testing").hex() == "120774657374696e67"
    assert wire.packed_field(6, [3, 270, 86942]).hex() == "3206038e029ea705"
    assert wire.varint(-2).hex() == "feffffffffffffffff01"


@given(st.integers(0, wire.WORD - 1))
def test_numbers_are_read_as_they_were_written(number):
    assert wire.read_varint(wire.varint(number), 0)[0] == number


def test_a_trace_is_read_as_it_was_written():
    assert list(read_nodes(trace_bytes(iter(NODES)))) == NODES
    assert NODES[0].seconds == 12.25e-6


def test_a_truncated_trace_is_a_fault_with_its_message_at_every_length():
    content = trace_bytes(iter(NODES))
    ends = {sum(len(trace_bytes(iter([node]))) - 8 for node in NODES[:count]) + 8 for count in range(len(NODES) + 1)}
    for length in range(9, len(content)):
        if length not in ends:
            with pytest.raises(ValueError, match="ends within"):
                list(read_nodes(content[:length]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_trace_or_a_fault(content):
    try:
        list(read_nodes(content))
    except ValueError:
        return
    assert content == b"" or is_trace(content) or content[0] == 0
