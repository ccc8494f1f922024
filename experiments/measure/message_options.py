"""The choice of a run's message options (chunk size, progress thread): from flags, a machine file, or by default."""

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


def choose_message_options(
    site: RankEnvironment, options: RunOptions, schedule: Schedule, named: "Machine | None"
) -> MessageOptions:
    """The message options of a run: those of the flags, else the fastest measured options, else the defaults.

    All ranks call it.  Device arrays have whole messages: their transport decides how they are sent (`staging.py`).
    If no communication may overlap local work, no thread progresses messages.

    Parameters
    ----------
    site : host, arrays and communicator of the rank
    options : options that the user gave
    schedule : schedule of the run
    named : machine that the user named, at rank 0; None elsewhere

    Raises
    ------
    InputError : a progress thread, and an MPI library that does not allow calls from two threads
    """
    measured = _matching_rows(site, named.messages) if named is not None else ()
    with collective_work("choosing message options"):
        rows = site.communicator.bcast(measured)
    if options.backend != "numpy":
        return WHOLE_MESSAGES
    default, chunk_bytes, progress = default_message_options(site.host), options.chunk_bytes, options.progress
    best = _best_row(_rows_with_options(rows, options), default)
    if chunk_bytes is None:
        chunk_bytes = default.chunk_bytes if best is None else best.chunk_bytes
    if progress is None:
        default_choice = default_progress(site.host, hosts=site.hosts, threads=site.threads)
        progress = _progress_if_overlapped(schedule, default_choice if best is None else best.progress)
    if progress == "thread" and not mpi_allows_threads():
        if options.progress == "thread":
            raise InputError(
                f"progress 'thread': {loaded_library()} does not take calls of two threads; accepted is none"
            )
        progress = "none"
    return replace(default, chunk_bytes=chunk_bytes, progress=progress)


def _matching_rows(site: RankEnvironment, rows: "Sequence[MessagesRow]") -> "list[MessagesRow]":
    """The rows that were measured with the same numbers of ranks, hosts and threads."""
    default_choice = site.communicator.size, site.hosts, site.threads
    return [row for row in rows if (row.ranks, row.hosts, row.threads) == default_choice]


def _rows_with_options(rows: "Sequence[MessagesRow]", options: RunOptions) -> "list[MessagesRow]":
    """The rows that agree with the given options."""
    return [
        row
        for row in rows
        if options.chunk_bytes in (None, row.chunk_bytes) and options.progress in (None, row.progress)
    ]


def _progress_if_overlapped(schedule: Schedule, progress: Progress) -> Progress:
    """The progress if any communication of the schedule may overlap local work, else "none"."""
    return progress if any(may_overlap(schedule, op) for op in all_ops(schedule)) else "none"


def _best_row(rows: "Sequence[MessagesRow]", default: MessageOptions) -> "MessagesRow | None":
    """The best of the rows; None if there are no rows."""
    if not rows:
        return None
    from quadrille.experiments.calibrate.chunk_tuning import fastest_row

    return fastest_row(rows, default)
