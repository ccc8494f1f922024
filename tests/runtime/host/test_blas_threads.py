"""Microbenchmarks of messages multiply on a rank's share of the cores, as runs do."""

from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES
from quadrille.runtime.host import world

pytest.importorskip("mpi4py.MPI", exc_type=ImportError)

from quadrille.experiments.calibrate.chunk_tuning import GATHERED_BYTES
from quadrille.runtime.measuring import chained_transfers as chains
from quadrille.runtime.measuring import library_collectives as library_chains
from quadrille.runtime.measuring import overlap_interference as beside
from quadrille.runtime.measuring.library_collectives import GroupShape
from quadrille.runtime.measuring.overlap_interference import median_seconds, overlapped_gather


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize("which", ["steps", "collectives", "gather beside products"])
def test_products_beside_messages_go_on_the_ranks_share_of_the_cores(monkeypatch, which):
    from mpi4py import MPI

    seen = []

    def executed(*_, **__):
        seen.append(blas_threads())
        return SimpleNamespace(timelines=())

    alone = MPI.COMM_SELF
    monkeypatch.setattr(world, "hosts", lambda _: (world.ComputeHost("a", (0,), cores=1),))
    for module in (chains, library_chains, beside):
        monkeypatch.setattr(module, "execute", executed)
    with threadpool_limits(2, user_api="blas"):
        if which == "steps":
            chains.measure_chain(alone, "shift", 8)
        elif which == "collectives":
            library_chains.measure_collective(alone, "all_gather", GroupShape(1, 1, 1), 8, 2)
        else:
            median_seconds(alone, WHOLE_MESSAGES, 0, 1, repeats=1)
        assert blas_threads() == {2}, "and outside as before"
    assert seen == [{1}]


def test_no_rank_needs_more_memory_for_the_gather_where_there_are_more_ranks():
    assert {overlapped_gather(ranks, GATHERED_BYTES, 1).sizes["e"] * 4 for ranks in (2, 16, 1000)} == {GATHERED_BYTES}
