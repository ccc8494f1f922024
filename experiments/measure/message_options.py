"""How the messages of a run go where it runs, as far as the flags do not say it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule, all_ops, may_overlap
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.carriers.message_options import (
    WHOLE_MESSAGES,
    MessageOptions,
    Progress,
    default_message_options,
    default_progress,
)
from quadrille.runtime.execution.rank_environment import RankEnvironment
from quadrille.runtime.host.progress_reports import collective_work
from quadrille.runtime.host.world import loaded_library, mpi_allows_threads

if TYPE_CHECKING:
    from quadrille.algorithms.formats.measured_rows import MessagesRow
    from quadrille.topologies.machines.machine import Machine


def delivery_at(
    site: RankEnvironment, options: RunOptions, schedule: Schedule, named: "Machine | None"
) -> MessageOptions:
    """What the options say, else what was found best at such a site, else what suits the site; all ranks call it.

    How device arrays go their carrier decides (`staging.py`).  Where no communication may run beside local work
    nothing advances it there.

    Parameters
    ----------
    named : the machine that the user named, at rank 0

    Raises
    ------
    InputError : a progress thread, and an MPI that may not be called by two threads in turn
    """
    known = _found_at(site, named.messages) if named is not None else ()
    with collective_work("choosing how messages go"):
        rows = site.communicator.bcast(known)
    if options.backend != "numpy":
        return WHOLE_MESSAGES
    usual, chunk_bytes, progress = default_message_options(site.host), options.chunk_bytes, options.progress
    found = _best_row(_allowed(rows, options), usual)
    if chunk_bytes is None:
        chunk_bytes = usual.chunk_bytes if found is None else found.chunk_bytes
    if progress is None:
        here = default_progress(site.host, hosts=site.hosts, threads=site.threads)
        progress = _where_any(schedule, here if found is None else found.progress)
    if progress == "thread" and not mpi_allows_threads():
        if options.progress == "thread":
            raise InputError(
                f"progress 'thread': {loaded_library()} does not take calls of two threads; accepted is none"
            )
        progress = "none"
    return replace(usual, chunk_bytes=chunk_bytes, progress=progress)


def _found_at(site: RankEnvironment, rows: "Sequence[MessagesRow]") -> "list[MessagesRow]":
    """Those of as many ranks, hosts and threads: among others another delivery may be best."""
    here = site.communicator.size, site.hosts, site.threads
    return [row for row in rows if (row.ranks, row.hosts, row.threads) == here]


def _allowed(rows: "Sequence[MessagesRow]", options: RunOptions) -> "list[MessagesRow]":
    """The deliveries that fit what the options say."""
    return [
        row
        for row in rows
        if options.chunk_bytes in (None, row.chunk_bytes) and options.progress in (None, row.progress)
    ]


def _where_any(schedule: Schedule, progress: Progress) -> Progress:
    """That, where any communication may run beside local work."""
    return progress if any(may_overlap(schedule, op) for op in all_ops(schedule)) else "none"


def _best_row(rows: "Sequence[MessagesRow]", usual: MessageOptions) -> "MessagesRow | None":
    """The best of the rows, if there are any."""
    if not rows:
        return None
    from quadrille.experiments.calibrate.chunk_tuning import best_row

    return best_row(rows, usual)
