import json
from math import prod

import mpi4py
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.studies.benchmarks.paired_ratios import ratio_of_pairs
from quadrille.studies.runtime_speed import peer_products
from quadrille.studies.runtime_speed.alternating_matmuls import OURS, best_grid, check_product
from quadrille.studies.runtime_speed.peer_products import BY_HAND, ONE_PROCESS, ByHand, missing_reason
from quadrille.studies.runtime_speed.study import runtime_speed


class Alone:
    """A communicator of one rank."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Allgatherv(self, part, whole):
        whole[0][...] = part

    def allreduce(self, value):
        return value


def operands(m, k, n):
    random = np.random.default_rng(3)
    return random.random((m, k)), random.random((k, n))


def test_the_versions_of_peers_are_reported(monkeypatch):
    monkeypatch.setitem(peer_products.PACKAGES, "heat", ("numpy", "mpi4py"))
    found = peer_products.versions([BY_HAND, "heat"])
    assert found == {"numpy": np.__version__, "mpi4py": mpi4py.__version__}


@pytest.mark.parametrize(
    ("sizes", "ranks", "grid"),
    [((64, 32, 8), 2, "z=2"), ((8, 32, 64), 2, "x=2"), ((8, 64, 8), 4, "y=4"), ((64, 64, 64), 8, "z=2,y=2,x=2")],
)
def test_our_grid_cuts_what_is_long(sizes, ranks, grid):
    assert str(best_grid(Matmul(*sizes), ranks)) == grid


def test_a_peer_whose_product_is_wrong_is_named():
    a, b = operands(7, 11, 5)
    peer = ByHand.from_operands(Alone(), Matmul(7, 11, 5, "float64"), a, b)
    peer.multiply()
    check_product(Alone(), "by hand", peer, a, b)
    peer.c[3, 2] += 1e-6
    with pytest.raises(RunError, match="by hand: its product of 7x11x5 float64 is off by"):
        check_product(Alone(), "by hand", peer, a, b)


def test_a_peer_that_cannot_take_part_says_why():
    assert missing_reason("PyLops-MPI SUMMA", 2)
    assert missing_reason(BY_HAND, 2) == missing_reason(ONE_PROCESS, 3) == ""


def test_a_ratio_of_pairs_is_a_median_in_its_interval_and_turns_round_with_the_pairs():
    random = np.random.default_rng(5)
    ours, theirs = 1 + random.random(31), 2 + random.random(31)
    found, back = ratio_of_pairs(ours, theirs), ratio_of_pairs(theirs, ours)
    assert found.low <= found.median <= found.high < 1 < back.low
    assert found.median == pytest.approx(1 / back.median)


@pytest.mark.mpi
def test_every_entrant_has_its_rounds_on_real_ranks(tmp_path, capsys):
    path = tmp_path / "speed.json"
    runtime_speed(shapes=["96,80,64", "33,47,29"], dtypes=["float64"], turns=5, json=str(path))
    found = json.loads(path.read_text())
    assert found["schema"] == "quadrille/runtime-speed/1"
    assert [prod((one["m"], one["k"], one["n"])) for one in found["products"]] == [96 * 80 * 64, 33 * 47 * 29]
    for one in found["products"]:
        assert {BY_HAND, ONE_PROCESS} <= {peer["name"] for peer in one["peers"]}
        assert all(len(peer["seconds"]) == len(one["seconds"]) == 5 for peer in one["peers"])
        assert min(one["seconds"]) > 0
    shown = capsys.readouterr().out
    assert OURS in shown
    assert "geometric mean of ratios" in shown


def test_sizes_and_files_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(InputError, match="matmul '1,2'"):
        runtime_speed(shapes=["1,2"])
    with pytest.raises(InputError, match="--json"):
        runtime_speed(json=str(tmp_path / "absent" / "speed.json"))
