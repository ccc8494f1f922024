"""`import quadrille`: its names, when they are imported, and what results show."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quadrille
from quadrille.algorithms.tabular import Tabular

MACHINE = quadrille.find_machine("perlmutter", gpus=4)
EXPERIMENT = quadrille.MatmulExperiment(quadrille.Matmul(64, 32, 16), quadrille.Grid(z=2, x=2))


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
    from quadrille.experiments.network.collective_question import CollectiveQuestion

    small, large = (
        quadrille.collective(CollectiveQuestion(kind="all_reduce", bytes=size, gpus=4, group=4), MACHINE).seconds
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


def measured(record):
    """A record of a run that took as long as was predicted."""
    import msgspec

    return msgspec.structs.replace(record, kind="measured", repeats=1, seconds_of_repeats=(record.seconds,))
