"""What one command imports, and how often it builds a schedule and places ranks."""

import json
import subprocess
import sys

import pytest

from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.matmuls import catalogue
from quadrille.cli.main import main
from quadrille.experiments.predict import prepared_experiment
from quadrille.experiments.workloads import matmul

MODULES_OF_SIMULATE, MODULES_WITH_NCCL, MODULES_OF_A_RANK = 190, 231, 133
SIMULATE = "simulate --matmul 64,64,64 --grid z=2 --machine perlmutter"
RUN = "run --matmul 64,64,64 --grid z=2 --warmups 0 --repeats 1"


def modules_after(words):
    """The modules of Quadrille that a process has imported after a command."""
    program = (
        "import json, sys\n"
        "from quadrille.cli.main import main\n"
        f"status = main({words.split()!r})\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('quadrille')]))\n"
        "sys.exit(status)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_prediction_imports_no_more_than_it_needs():
    modules = modules_after(SIMULATE + " --collectives own")
    assert len(modules) <= MODULES_OF_SIMULATE
    assert len(modules_after(SIMULATE)) <= MODULES_WITH_NCCL
    strangers = "algorithms.training", "runtime.carriers", "topologies.families.torus"
    for stranger in (f"quadrille.{name}" for name in strangers):
        assert stranger not in modules


def test_a_rank_imports_neither_simulator_nor_topologies():
    modules = modules_after(RUN.replace("z=2", "x=1"))
    assert len(modules) <= MODULES_OF_A_RANK
    for stranger in ("quadrille.simulator", "quadrille.algorithms.training", "quadrille.topologies.network"):
        assert stranger not in modules


def counted(monkeypatch, module, name):
    """The calls of a function of a module, as a list that grows."""
    calls, function = [], getattr(module, name)

    def count(*arguments, **named):
        calls.append(arguments)
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, count)
    return calls


@pytest.mark.parametrize("more", ["", " --passes training --gathered keep --overlap oar,ors --bands 2"])
def test_a_prediction_builds_and_checks_one_schedule_and_places_ranks_once(monkeypatch, capsys, more):
    built = counted(monkeypatch, matmul, "matmul_schedule")
    checked = counted(monkeypatch, matmul, "validate")
    placed = counted(monkeypatch, prepared_experiment, "place_ranks")
    assert main((SIMULATE + more).split()) == 0, capsys.readouterr().err
    assert (len(built), len(checked), len(placed)) == (1, 1, 1)
    assert catalogue.matmul_schedule is not matmul.matmul_schedule


def test_a_prediction_lowers_each_collective_once(capsys):
    lower.cache_clear()
    assert main(SIMULATE.split()) == 0, capsys.readouterr().err
    collectives, calls = lower.cache_info().misses, lower.cache_info().hits
    assert collectives <= 2 < calls  # gather B and sum C, each asked for several times
