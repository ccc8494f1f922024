"""Units that the types of fields declare, for every number of an answer in a report; names say the unit of others."""

import re
from typing import get_type_hints

import msgspec
import pytest

from quadrille.algorithms.field_units import declared_units, structs_of, units_of
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.tabular import html_table
from quadrille.algorithms.units import parse_measure, unit_by_name
from quadrille.experiments.compare.comparison import PredictedAndMeasured
from quadrille.experiments.rank.grids_report import GridsAnswer
from quadrille.experiments.rank.schemes_report import SchemesAnswer
from quadrille.experiments.report.answer_sections import tables_part
from quadrille.experiments.report.answer_units import ANSWERS, unit_of_key
from quadrille.experiments.sweep.sweep_result import COLLECTIVE_RESULT_COLUMNS, RESULT_COLUMNS, Sweep

COUNTS = {"calls"}
"""Fields with fractional types that count."""
PLAIN = {
    *("workload", "options", "verified", "reference", "losses", "shards_bound", "order_choice", "collectives"),
    *("provenance", "model", "faults"),
}
"""Fields of records, sweeps and rankings whose numbers are options, factors, errors or losses."""
TYPES = ANSWERS | {"record": Record, "sweep": Sweep, "rank": SchemesAnswer, "rank of grids": GridsAnswer}
"""The type of each answer with declared units."""


def fields_of(struct):
    """The fields of a struct and of the structs that it holds, each with its path and its type."""
    hints = get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        yield name, hints[name]
        for inner in structs_of(hints[name]):
            if inner not in (Provenance, PredictedAndMeasured):
                yield from ((f"{name}.{path}", hint) for path, hint in fields_of(inner))


def holds_a_fraction(hint):
    """Whether a type holds a fractional number outside structs."""
    return hint is float or any(holds_a_fraction(part) for part in getattr(hint, "__args__", ()))


@pytest.mark.parametrize("schema", TYPES)
def test_every_fractional_number_of_an_answer_declares_its_unit(schema):
    missing = [
        path
        for path, hint in fields_of(TYPES[schema])
        if (holds_a_fraction(hint) or PredictedAndMeasured in structs_of(hint))
        and not list(declared_units(hint))
        and path.rpartition(".")[2] not in COUNTS
        and PLAIN.isdisjoint(path.split("."))
    ]
    assert missing == []


@pytest.mark.parametrize("schema", TYPES)
def test_a_name_that_says_a_unit_says_that_of_its_type(schema):
    units = units_of(TYPES[schema])
    said = {path: unit_by_name(path.rpartition(".")[2]) for path in units}
    assert {path: unit for path, unit in said.items() if unit} == {
        path: units[path] for path, unit in said.items() if unit
    }


def test_the_columns_of_a_sweep_have_the_units_of_its_answers():
    sweep = Sweep(flags={}, varied={"gpus": ("4",)}, best_grid=False, points=(), baseline=None)
    units = {column: sweep.units.get(column, "") for column in sorted({*RESULT_COLUMNS, *COLLECTIVE_RESULT_COLUMNS})}
    assert {column: unit for column, unit in units.items() if unit} == {
        **dict.fromkeys(
            ("seconds", "compute_seconds", "exposed_seconds", "waiting_seconds", "latency_seconds",
             "bandwidth_seconds", "contention_seconds"), "s",
        ),
        **dict.fromkeys(("bytes_sent_per_rank_max", "peak_bytes_per_rank_max"), "B"),
        **dict.fromkeys(("algorithm_bandwidth", "bus_bandwidth"), "B/s"),
        **dict.fromkeys(("communication_share", "bottleneck_utilisation"), "share"),
        "flops_per_second_per_gpu": "FLOP/s",
    }  # fmt: skip


def test_a_notebook_writes_numbers_in_declared_units_and_times_in_one():
    rows = [{"op": "a", "time": 2.0, "size": 2**20}, {"op": "b", "time": 3e-3, "size": 2**10}]
    page = html_table(rows, units={"time": "s", "size": "B"})
    assert re.findall("<td>(.*?)</td>", page) == ["a", "2.000 s", "1 MiB", "b", "0.003000 s", "1 KiB"]


def test_a_report_writes_a_number_in_the_unit_of_its_type_and_not_of_its_name():
    facts = {"overlap": {"predicted": 0.25, "measured": 0.5}, "iterations": 3}
    (values, *_) = tables_part(facts, "quadrille/trace-comparison/1", "a file").sections
    cells = [cell for table in values.tables for row in table.rows for cell in row]
    assert cells == ["iterations", "3", "predicted", "25.0 %", "measured", "50.0 %"]


def test_keys_of_files_without_a_type_have_the_unit_of_their_name():
    unit = unit_of_key("quadrille/fidelity/1")
    names = (
        "rows.wall_seconds",
        "peak_memory_bytes",
        "rows.bus_bandwidth",
        "overlap",
        "ranks",
        "core_seconds_per_byte",
    )
    assert [unit(name) for name in names] == ["s", "B", "B/s", "", "", "s/B"]


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("host_link.bytes_per_second", "64GB/s", 64e9),
        ("device.overhead_seconds", "5us", 5e-6),
        ("emulation.core_seconds_per_byte", "1e-10", 1e-10),
        ("hosts", "8", 8.0),
    ],
)
def test_a_setting_is_read_in_the_unit_that_its_name_says(name, text, number):
    assert parse_measure(text, name) == pytest.approx(number)


def test_a_type_without_units_declares_none():
    assert units_of(msgspec.defstruct("Plain", [("ranks", int), ("name", str)])) == {}
