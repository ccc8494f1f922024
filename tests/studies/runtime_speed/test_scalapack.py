"""ScaLAPACK's product on real ranks, where it is installed, and why it is left out where it is not or does not fit."""

import ctypes.util
import json
from ctypes.util import find_library

import pytest

from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.studies.runtime_speed import scalapack
from quadrille.studies.runtime_speed.peer_products import BY_HAND, ONE_PROCESS, SCALAPACK, missing_reason
from quadrille.studies.runtime_speed.study import runtime_speed
from tests.support.launched import launched

OPEN_MPI, MPICH = "Open MPI v5.0.11, package: Open MPI", "MPICH Version:      4.2.1\nMPICH Release date:  x"
ON_EVERY_RANK = """
import numpy as np
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.runtime.host.world import world
from quadrille.studies.runtime_speed.alternating_matmuls import check_product
from quadrille.studies.runtime_speed.scalapack import ScaLapack

ranks = world()
random = np.random.default_rng(7)
for m, k, n in (96, 80, 64), (33, 47, 29), (29, 5, 41), (3, 2, 5), (1, 1, 1):
    for dtype in "float64", "float32":
        a, b = random.random((m, k)).astype(dtype), random.random((k, n)).astype(dtype)
        peer = ScaLapack.from_operands(ranks, Matmul(m, k, n, dtype), a, b)
        for _ in range(2):
            peer.c.fill(np.nan)
            peer.multiply()
        check_product(ranks, f"ScaLAPACK on {ranks.size}", peer, a, b)
        of_a, of_b, of_c = (ranks.allreduce(size) for size in (peer.a.size, peer.b.size, peer.c.size))
        assert (of_a, of_b, of_c) == (m * k, k * n, m * n), "each matrix is there once"
"""


@pytest.fixture
def fresh():
    """No verdict of another test is left, nor one of this."""
    scalapack.availability.cache_clear()
    yield
    scalapack.availability.cache_clear()


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_its_product_is_right_and_each_matrix_is_there_once(ranks):
    if why := scalapack.missing_reason():
        pytest.skip(f"ScaLAPACK: {why}")
    done = launched(ranks, "-c", ON_EVERY_RANK)
    assert done.status == 0, done.err


@pytest.mark.mpi
def test_the_study_names_it_either_way(tmp_path, capsys):
    runtime_speed(shapes=["33,47,29"], dtypes=["float32"], turns=2, json=str(tmp_path / "speed.json"))
    found, shown = json.loads((tmp_path / "speed.json").read_text()), capsys.readouterr().out
    takes_part = SCALAPACK in {peer["name"] for peer in found["products"][0]["peers"]}
    assert takes_part == (SCALAPACK not in found["left_out"])
    if takes_part:
        assert f"{SCALAPACK} is {found['provenance']['versions'][SCALAPACK]}" in shown
    else:
        assert f"left out: {SCALAPACK}: {found['left_out'][SCALAPACK]}" in shown


@pytest.mark.mpi
def test_where_it_is_not_installed_the_others_run_without_it(monkeypatch, capsys):
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    answer = runtime_speed(shapes=["33,47,29"], dtypes=["float64"], turns=2)
    assert answer.left_out[SCALAPACK] == missing_reason(SCALAPACK, 2) == "libscalapack-openmpi is not installed"
    assert SCALAPACK not in answer.provenance.versions
    assert {BY_HAND, ONE_PROCESS} <= {peer.name for peer in answer.products[0].peers}
    assert "left out: ScaLAPACK: libscalapack-openmpi is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "undefined symbol: MPI_Get_library_version"),
        ({"program": ("-c", "import ctypes; ctypes.string_at(0)")}, "status -11"),
        ({"program": ("-c", "import time; time.sleep(60)"), "limit_seconds": 0.5}, "was not loaded within 0.5 s"),
    ],
)
def test_a_library_that_is_another_or_crashes_or_hangs_is_left_out(options, reason):
    name = find_library("m")
    found = scalapack.availability(name, **options).why
    assert found.startswith(name)
    assert reason in found


@pytest.mark.parametrize(
    ("its_mpi", "blas", "why"),
    [
        (OPEN_MPI, "openblas 0.3.21", ""),
        (MPICH, "openblas 0.3.21", "lib.so is bound to MPICH Version: 4.2.1, but mpi4py to Open MPI v5.0.11"),
        (OPEN_MPI, "", "lib.so has a BLAS whose threads cannot be set: install Debian's libopenblas0-pthread"),
    ],
)
def test_a_library_with_another_mpi_or_a_blas_of_one_thread_is_left_out(its_mpi, blas, why):
    assert scalapack.availability_of("lib.so", its_mpi, OPEN_MPI, blas).why == why


def test_the_longer_side_of_the_product_is_cut():
    assert scalapack.block_grid(Matmul(7, 100, 50), 3) == (1, 3)
    assert scalapack.block_grid(Matmul(50, 100, 7), 3) == (3, 1)
    assert scalapack.block_grid(Matmul(50, 100, 50), 6) == (3, 2)
