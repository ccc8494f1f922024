"""`import quadrille`: its names, when they are imported, and what results show."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

import quadrille
from quadrille.algorithms.tabular import LINE_LENGTH, Tabular
from quadrille.algorithms.units import time_unit
from quadrille.experiments.output.tables import duration
from quadrille.experiments.records.record_table import print_record
from quadrille.experiments.sweep.sweep_report import csv_text

MACHINE = quadrille.find_machine("perlmutter", gpus=4)
EXPERIMENT = quadrille.MatmulExperiment(quadrille.Matmul(64, 32, 16), quadrille.Grid(z=2, x=2))
REDUCTION = quadrille.CollectiveQuestion(kind="all_reduce", bytes=1 << 20, gpus=4, group=4)


@pytest.mark.parametrize("name", quadrille.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(quadrille, name)
    assert value.__doc__
    assert name in dir(quadrille)
    assert name in quadrille.__doc__


def test_names_are_imported_from_where_type_checkers_find_them():
    source = Path(quadrille.__file__).read_text()
    for name, where in quadrille.IMPORT_PATHS.items():
        module, attribute = where.split(":")
        assert f"from {module} import {attribute} as {name}" in source


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'multiply'"):
        quadrille.multiply  # noqa: B018 - the attribute itself is asked for


def test_the_names_are_imported_when_they_are_first_asked_for():
    program = (
        "import sys, quadrille\n"
        "before = [name for name in sys.modules if name.startswith('quadrille')]\n"
        "quadrille.Grid\n"
        "after = [name for name in sys.modules if name.startswith('quadrille')]\n"
        "print(before, 'quadrille.algorithms.schedule.grid' in after, 'quadrille.simulator' in after)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "['quadrille'] True False\n"


def test_a_record_is_the_prediction_of_its_schedule():
    schedule = quadrille.matmul_schedule(EXPERIMENT.problem, "4d", EXPERIMENT.grid)
    record, prediction = quadrille.predict(EXPERIMENT, MACHINE), quadrille.simulate(schedule, MACHINE)
    assert record.seconds == prediction.seconds
    assert [row["name"] for row in record.rows()] == [row["name"] for row in prediction.rows()]


def test_a_schedule_is_executed_in_one_process():
    random = np.random.default_rng(1)
    a, b = random.random((64, 32)), random.random((32, 16))
    problem = quadrille.Matmul(64, 32, 16, "float64")
    schedule = quadrille.matmul_schedule(problem, "4d", quadrille.Grid(z=2))
    execution = quadrille.execute(schedule, {"A": a, "B": b}, quadrille.InProcess(2))
    assert np.allclose(np.vstack([execution.outputs[rank]["C"] for rank in range(2)]), a @ b)


def test_a_collective_takes_longer_the_larger_it_is():
    small, large = (
        quadrille.collective(
            quadrille.CollectiveQuestion(kind="all_reduce", bytes=size, gpus=4, group=4), MACHINE
        ).seconds
        for size in (1 << 20, 1 << 24)
    )
    assert small < large


def test_results_show_themselves_as_tables():
    record = quadrille.predict(EXPERIMENT, MACHINE)
    results = [record, quadrille.simulate(EXPERIMENT.schedule(), MACHINE), quadrille.compare(record, measured(record))]
    for result in results:
        assert isinstance(result, Tabular)
        assert all(isinstance(row, dict) for row in result.rows())
        assert "<td>sum C</td>" in result._repr_html_()


def test_the_line_of_every_value_is_short():
    record = quadrille.predict(EXPERIMENT, MACHINE)
    problem = quadrille.Gpt(layers=32, hidden=4096, heads=32, sequence=8192, vocabulary=128256, batch=64, inner=14336)
    training = quadrille.TrainingExperiment(problem)
    shape = quadrille.find_shape("llama3-8b")
    question = quadrille.RankQuestion(training=training, shape=shape, gpus=4, machine=MACHINE)
    values = [EXPERIMENT, MACHINE, EXPERIMENT.schedule(), record, quadrille.compare(record, measured(record))]
    values += [training, problem, shape, question, REDUCTION, quadrille.collective(REDUCTION, MACHINE), swept()]
    values += [quadrille.Grid(z=2), quadrille.InProcess(2), quadrille.Mlp((8, 8), 4), swept().points[0]]
    lines = [repr(value) for value in values]
    assert [line for line in lines if len(line) > LINE_LENGTH or "\n" in line or " object at " in line] == []


def test_a_value_names_only_what_differs_from_the_defaults():
    assert repr(EXPERIMENT) == "MatmulExperiment(problem=Matmul(m=64, k=32, n=16), grid=Grid(z=2, x=2))"
    assert eval(repr(EXPERIMENT), vars(quadrille)) == EXPERIMENT


def test_the_table_has_the_numbers_of_the_rows_and_of_the_command_line(capsys):
    record = quadrille.predict(EXPERIMENT, MACHINE)
    print_record(record)
    printed, table = capsys.readouterr().out, record._repr_html_()
    assert record.interval_text in printed
    assert record.interval_text in table
    unit = time_unit(row["seconds"] for row in record.rows())
    for row in record.rows():
        assert unit.text(row["seconds"]) in printed
        assert f"<td>{unit.text(row['seconds'])}</td>" in table


def test_a_record_of_many_ops_shows_the_longest():
    record = quadrille.predict(EXPERIMENT, MACHINE)
    many = [with_fields(record.ops[1], name=f"op {number}", seconds=1.0 + number) for number in range(14)]
    page = with_fields(record, ops=tuple(many))._repr_html_()
    assert [f"op {number}" in page for number in (13, 4, 3)] == [True, True, False]
    assert "and 4 more; rows() has all" in page


def test_a_sweep_has_the_rows_of_its_csv():
    sweep = swept()
    rows = list(csv.DictReader(io.StringIO(csv_text(sweep))))
    assert [float(row["seconds"]) for row in rows] == [row["seconds"] for row in sweep.rows()]
    assert [row["grid_lengths"] for row in sweep.rows()] == ["z=4", "x=4"]
    assert [list(row) for row in rows] == [list(row) for row in sweep.rows()]
    assert sweep.shown == ["axis", "grid_lengths", "seconds", "speedup", "communication_share"]
    assert f"<td>z=4</td><td>{duration(sweep.rows()[0]['seconds'])}</td>" in sweep._repr_html_()


def test_a_collective_is_a_row_with_its_bandwidth():
    prediction = quadrille.collective(REDUCTION, MACHINE)
    (row,) = prediction.rows()
    assert row["bus_bandwidth"] == pytest.approx(1.5 * REDUCTION.bytes / prediction.seconds)
    assert f"<td>{duration(prediction.seconds)}</td>" in prediction._repr_html_()


def swept():
    """The sweep of one product over two grids."""
    grids = {"z": quadrille.Grid(z=4), "x": quadrille.Grid(x=4)}
    experiments = {axis: quadrille.MatmulExperiment(quadrille.Matmul(64, 64, 64), grid) for axis, grid in grids.items()}
    return quadrille.sweep([({"axis": axis}, quadrille.OneGrid(each, MACHINE)) for axis, each in experiments.items()])


def measured(record):
    """A record of a run that took as long as was predicted."""
    return with_fields(record, kind="measured", repeats=1, seconds_of_repeats=(record.seconds,))


def test_the_public_names_are_listed_and_nothing_else():
    assert dir(quadrille) == sorted(quadrille.__all__)


def test_a_figure_names_the_question_and_the_machine_and_draws_equal_ranks_once():
    schedule = quadrille.matmul_schedule(quadrille.Matmul(256, 256, 256), "4d", quadrille.Grid(z=2, y=2, x=2))
    figure = quadrille.simulate(schedule, quadrille.find_machine("perlmutter")).plot()
    words = " ".join(text.get_text() for text in figure.texts) + figure.get_suptitle()
    assert "What does each rank do" in words and "perlmutter" in words
    (axes,) = figure.axes
    assert axes.get_ylabel() == "predicted,\n1 of 8 ranks"
    assert len(axes.get_yticks()) == 3
