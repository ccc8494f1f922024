"""How the messages of a run go where it runs, as far as the flags do not say it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from algorithms.ops import Communication, Op
from algorithms.schedule import Schedule, all_ops
from runtime.delivery import WHOLE, Delivery, Progress, progress_that_pays, usual_delivery
from studies.calibrating.messages import best
from studies.flags.plan import Plan
from studies.launching.site import Site

if TYPE_CHECKING:
    from algorithms.formats.machine import Machine, MessagesRow


def delivery_at(site: Site, plan: Plan, schedule: Schedule, named: "Machine | None") -> Delivery:
    """What the plan says, else what was found best on the machine, else what suits the site; all ranks call it.

    Device arrays go whole.  Where no communication may run beside local work nothing advances it there.

    Parameters
    ----------
    named : the machine that the user named, at rank 0
    """
    rows = site.communicator.bcast(named.messages if named is not None else ())
    if plan.backend != "numpy":
        return WHOLE
    usual, chunk_bytes, progress = usual_delivery(site.host), plan.chunk_bytes, plan.progress
    found = best(_allowed(rows, plan))
    if chunk_bytes is None:
        chunk_bytes = usual.chunk_bytes if found is None else found.chunk_bytes
    if progress is None:
        here = progress_that_pays(site.host, hosts=site.hosts, threads=site.threads)
        progress = _where_any(schedule, here if found is None else found.progress)
    return replace(usual, chunk_bytes=chunk_bytes, progress=progress)


def _allowed(rows: "Sequence[MessagesRow]", plan: Plan) -> "list[MessagesRow]":
    """The ways that fit what the plan says."""
    return [
        row for row in rows if plan.chunk_bytes in (None, row.chunk_bytes) and plan.progress in (None, row.progress)
    ]


def _where_any(schedule: Schedule, progress: Progress) -> Progress:
    """That, where any communication may run beside local work."""
    return progress if any(_runs_beside(schedule, op) for op in all_ops(schedule)) else "none"


def _runs_beside(schedule: Schedule, op: Op) -> bool:
    return isinstance(op, Communication) and op.concurrent and schedule.grid.length(op.axis) > 1
