"""Steps between products: the schedules are valid, and give as many steps as are asked for."""

import json

import pytest

from algorithms.collectives.choices import Choices
from algorithms.costs.volumes import bytes_sent
from algorithms.validate import validate
from runtime import chains
from runtime.chains import STEPS, WARM, chain
from runtime.execute import execute
from runtime.in_process import InProcess
from runtime.operands import Operands
from tests.launched import launched

SIZE = 1000
CHAINS = [("shift", 1), ("shift", 2), ("shift", 3), ("shift", 5), ("exchange", 2), ("exchange", 6)]
CHAINS += [("one_way", 2), ("one_way", 5)]
BODY = ["write", "multiply", "tiny", "alone", "step"]
PROGRAM = f"""
import json
from mpi4py import MPI
from runtime import chains
chains.PRODUCT_SIZE = 16
found = [chains.measure_chain(MPI.COMM_WORLD, pattern, {SIZE}) for pattern in ("shift", "one_way")]
every = MPI.COMM_WORLD.gather([(steps, overheads.issue_seconds, overheads.compute_seconds, overheads.alone_seconds)
                               for steps, overheads in found])
if every is not None:
    print(json.dumps(every))
"""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(chains, "PRODUCT_SIZE", 16)


@pytest.mark.parametrize(("pattern", "ranks"), CHAINS)
def test_a_chain_is_a_valid_schedule_whose_only_messages_are_its_steps(pattern, ranks):
    schedule = validate(chain(pattern, ranks, SIZE))
    sent = [bytes_sent(schedule, rank, Choices()) for rank in range(ranks)]
    senders = {"shift": ranks if ranks > 1 else 0, "exchange": ranks, "one_way": 1}[pattern]
    assert sorted(sent, reverse=True) == [(WARM + STEPS) * SIZE] * senders + [0] * (ranks - senders)


@pytest.mark.parametrize(("pattern", "ranks"), CHAINS)
def test_ranks_in_one_process_take_each_step_between_products(pattern, ranks):
    schedule = chain(pattern, ranks, SIZE)
    (timeline,) = execute(schedule, Operands(16, 16, 16, "float64"), InProcess(ranks), repeats=1, warmups=0).timelines
    for rank in range(ranks):
        ops = [span.op for span in sorted(timeline.spans, key=lambda span: span.start) if span.rank == rank]
        takes_part = pattern != "one_way" or rank < 2
        assert ops == [*BODY[:-1], "step" if takes_part else "rest"] * (WARM + STEPS)


@pytest.mark.mpi
def test_real_ranks_agree_on_every_step_and_on_what_ops_cost_beside_it():
    ended = launched(2, "-c", PROGRAM)
    assert (ended.status, ended.err) == (0, "")
    first, second = json.loads(ended.out)
    assert first == second
    for steps, *overheads in first:
        assert len(steps) == STEPS
        assert min(overheads) >= 0
