"""How messages go where nothing is said: a thread only where something runs beside local work and it pays."""

from types import SimpleNamespace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import MessagesRow
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.bands import in_bands
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.cli.parsing.flags import RunFlags
from quadrille.cli.parsing.runs import parse_run
from quadrille.experiments.measure import message_options as message_options_module
from quadrille.experiments.measure.message_options import choose_message_options
from quadrille.runtime.carriers.message_options import CHUNK_BYTES, WHOLE_MESSAGES
from quadrille.runtime.host.world import ComputeHost

PLAIN = matmul_schedule(Matmul(8, 8, 8, passes="training"), "4d", Grid(z=2, y=2))
BESIDE = overlap(PLAIN, ["ors"])


def message_options(schedule, *, hosts=1, cores=2, sharing=0, rows=(), **flags):
    host = ComputeHost("node", ranks=(0, 1), cores=cores, sharing=sharing)
    site = SimpleNamespace(
        host=host, hosts=hosts, threads=1, communicator=SimpleNamespace(size=2, bcast=lambda one: one)
    )
    named = SimpleNamespace(messages=rows) if rows else None
    return choose_message_options(site, parse_run(RunFlags(**flags)), schedule, named)


def tried(chunk_bytes, progress, seconds, *, ranks=2, hosts=1, threads=1):
    return MessagesRow(
        chunk_bytes=chunk_bytes, progress=progress, seconds=seconds, ranks=ranks, hosts=hosts, threads=threads
    )


@pytest.mark.parametrize(
    ("schedule", "where", "expected"),
    [
        (PLAIN, {"hosts": 2}, "none"),
        (BESIDE, {"hosts": 2}, "thread"),
        (in_bands(PLAIN, 2), {"hosts": 2}, "thread"),
        (BESIDE, {"cores": 2}, "none"),
        (BESIDE, {"cores": 4}, "thread"),
        (BESIDE, {"hosts": 2, "progress": "none"}, "none"),
        (PLAIN, {"cores": 2, "progress": "thread"}, "thread"),
    ],
)
def test_a_thread_is_taken_where_messages_leave_the_host_or_a_core_is_free(schedule, where, expected):
    assert message_options(schedule, **where).progress == expected


def test_a_run_goes_by_the_best_delivery_that_was_found_on_its_machine_and_that_its_flags_allow():
    seconds = {(0, "none"): 1.0, (0, "thread"): 1.2, (4096, "none"): 0.9, (4096, "thread"): 0.5}
    rows = [tried(chunk, progress, seconds[chunk, progress]) for chunk, progress in seconds]
    found = message_options(BESIDE, rows=rows)
    assert (found.chunk_bytes, found.progress) == (4096, "thread")
    assert message_options(PLAIN, rows=rows).progress == "none", "nothing runs beside local work"
    whole = message_options(BESIDE, rows=rows, chunk="none")
    assert (whole.chunk_bytes, whole.progress) == (0, "none"), "without chunks a thread was slower"


def test_between_hosts_of_a_laboratory_messages_keep_to_chunks_unless_whole_steps_are_much_faster():
    """The gather that deliveries are measured by is a ring, in which no two exchange."""

    def in_a_laboratory(whole, chunks):
        rows = [tried(0, "thread", whole, hosts=2), tried(CHUNK_BYTES, "thread", chunks, hosts=2)]
        return message_options(BESIDE, hosts=2, sharing=2, rows=rows).chunk_bytes

    assert in_a_laboratory(1.0, 1.14) == in_a_laboratory(1.04, 1.0) == CHUNK_BYTES
    assert in_a_laboratory(1.0, 1.16) == 0


def test_what_was_found_on_other_ranks_hosts_or_threads_tells_nothing():
    usual, fast = message_options(BESIDE), {"chunk_bytes": 4096, "progress": "thread", "seconds": 0.1}
    others = [tried(**fast, ranks=4), tried(**fast, hosts=2), tried(**fast, threads=2), MessagesRow(**fast)]
    assert message_options(BESIDE, rows=others) == usual
    assert message_options(BESIDE, rows=[*others, tried(**fast)]).chunk_bytes == 4096 != usual.chunk_bytes


def test_messages_go_in_chunks_in_a_laboratory_and_device_arrays_go_whole():
    assert message_options(PLAIN, hosts=2, sharing=2).chunk_bytes == CHUNK_BYTES
    assert message_options(BESIDE, hosts=2, sharing=2, backend="cupy") == WHOLE_MESSAGES


def test_no_thread_is_taken_where_mpi_may_not_be_called_by_two(monkeypatch):
    monkeypatch.setattr(message_options_module, "mpi_allows_threads", lambda: False)
    assert message_options(BESIDE, hosts=2).progress == "none"
    with pytest.raises(InputError, match=r"progress 'thread': .* does not take calls of two threads; accepted is none"):
        message_options(BESIDE, progress="thread")
