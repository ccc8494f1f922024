"""Where the difference between a predicted and a measured makespan comes from.

A record says of each op how long it took on the mean rank, and for how much of
that the rank's compute lane was idle (exposed).  On the mean rank

    makespan = seconds of computing + exposed seconds of communication + exposed waiting + idle

so each of these is compared, op by op, and the differences of one cause are
summed.  What each cause means:

compute   GEMM and element-wise ops, and that part of collectives (reductions) which the simulator counts as computing
transfer  moving bytes: exposed seconds of communication, and host copies
latency   the cost of starting a step of communication
waiting   for the last member of a group to arrive
other     the rest: idle time between ops, overheads outside ops, ends of ranks that differ, exposure charged to no op

A measurement cannot tell latency from transfer inside one op.  The difference of
an op of communication is therefore dealt out over compute, transfer and latency
in the proportion in which its *prediction* consists of them; without predicted
parts it is all transfer (of a barrier: latency).  Waiting has no exposed part
in a record, so it counts in the proportion in which the op itself is exposed,
which is all of it where nothing overlaps.

`other` closes the sum: the five add up to the difference of the makespans.
"""

from collections.abc import Iterable, Mapping

import msgspec

from quadrille.algorithms.formats.record import Cause, OpRecord

COMPUTING = ("gemm", "pointwise", "kernel")
ON_COMPUTE_LANE = (*COMPUTING, "host_copy")
"""Kinds of op that occupy the compute lane, so that all their seconds count."""

SPLIT: tuple[Cause, ...] = ("compute", "transfer", "latency", "other")
"""Causes over which the seconds of an op of communication are dealt out; waiting stands apart."""


class Attribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predicted less measured seconds by cause: above 0 where too much was predicted; the causes add up to `total`.

    >>> shares = Attribution(compute=0.5, transfer=-0.25, latency=0.0, waiting=0.0, other=0.25, total=0.5)
    >>> shares.by_cause()["transfer"], sum(shares.by_cause().values())
    (-0.25, 0.5)
    """

    compute: float
    transfer: float
    latency: float
    waiting: float
    other: float
    total: float

    def by_cause(self) -> dict[Cause, float]:
        return {
            "compute": self.compute,
            "transfer": self.transfer,
            "latency": self.latency,
            "waiting": self.waiting,
            "other": self.other,
        }


def attribute(difference: float, pairs: Iterable[tuple[OpRecord, OpRecord]]) -> Attribution:
    """The causes of a difference of makespans, predicted less measured [s].

    >>> predicted = OpRecord(name="multiply", kind="gemm", seconds=2.0)
    >>> measured = OpRecord(name="multiply", kind="gemm", seconds=1.5)
    >>> attribute(0.75, [(predicted, measured)])
    Attribution(compute=0.5, transfer=0.0, latency=0.0, waiting=0.0, other=0.25, total=0.75)

    Parameters
    ----------
    pairs : each op as predicted and as measured
    """
    causes: dict[Cause, float] = {"compute": 0.0, "transfer": 0.0, "latency": 0.0, "waiting": 0.0, "other": 0.0}
    for predicted, measured in pairs:
        more = charged_seconds(predicted) - charged_seconds(measured)
        for cause, share in shares(predicted).items():
            causes[cause] += share * more
        causes["waiting"] += charged_waiting(predicted) - charged_waiting(measured)
    named = causes["compute"] + causes["transfer"] + causes["latency"] + causes["waiting"]
    return Attribution(**{**causes, "other": difference - named}, total=difference)


def charged_seconds(op: OpRecord) -> float:
    """Seconds by which the op lengthens its rank's course: all of computing, the exposed part of communication."""
    return op.seconds if op.kind in ON_COMPUTE_LANE else op.exposed_seconds


def charged_waiting(op: OpRecord) -> float:
    """Seconds of waiting that lengthen the rank's course.

    >>> op = OpRecord(name="sum C", kind="all_reduce", seconds=2.0, waiting_seconds=1.0, exposed_seconds=0.5)
    >>> charged_waiting(op)
    0.25
    """
    return op.waiting_seconds * (min(1.0, charged_seconds(op) / op.seconds) if op.seconds > 0 else 1.0)


def shares(predicted: OpRecord) -> Mapping[Cause, float]:
    """The parts of an op by which its difference is dealt out; they add up to 1.

    >>> parts = {"transfer": 3.0, "latency": 1.0, "waiting": 7.0}
    >>> dict(shares(OpRecord(name="gather B", kind="all_gather", seconds=4.0, seconds_by_part=parts)))
    {'transfer': 0.75, 'latency': 0.25}
    """
    if predicted.kind in COMPUTING:
        return {"compute": 1.0}
    parts = {cause: predicted.seconds_by_part.get(cause, 0.0) for cause in SPLIT}
    parts = {cause: part for cause, part in parts.items() if part > 0}
    whole = sum(parts.values())
    if whole <= 0:
        return {"latency": 1.0} if predicted.kind == "barrier" else {"transfer": 1.0}
    return {cause: part / whole for cause, part in parts.items()}
