"""Attribution of the difference between a predicted and a measured makespan to causes.

A record has the time of each op on the mean rank, and the part of that time in which the
rank computes nothing (exposed).  On the mean rank

    makespan = compute + exposed communication + exposed waiting + idle

so each term is compared, op by op, and the differences are summed by cause:

compute   GEMM and element-wise ops, and the reductions inside collectives, as the simulator counts them
transfer  moving bytes: exposed communication, and host copies
latency   the cost of starting a step of communication
waiting   waiting for the last member of a group to arrive
other     the rest: idle time between ops, overheads outside ops, different ends of ranks

A measurement cannot distinguish latency from transfer inside an op.  The difference of a
communication op is therefore divided over compute, transfer and latency in proportion to
the op's *predicted* parts; without predicted parts all of it is transfer (latency for a
barrier).  A record has no exposed waiting, so waiting counts in proportion to the exposed
share of its op, which is 1 if nothing overlaps.

`other` closes the sum: the five causes add up to the difference of the makespans.
"""

from collections.abc import Iterable, Mapping

import msgspec

from quadrille.algorithms.formats.record import Cause, OpRecord
from quadrille.algorithms.timelines.op_times import OpTimes

COMPUTE_KINDS = ("gemm", "pointwise", "kernel")
"""Kinds of ops that compute, so that their whole time counts."""

COMMUNICATION_CAUSES: tuple[Cause, ...] = ("compute", "transfer", "latency", "other")
"""Causes over which the time of a communication op is divided; its waiting is counted separately."""


class Attribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predicted minus measured time by cause [s], positive if too much was predicted; the causes add up to `total`.

    >>> attribution = Attribution(compute=0.5, transfer=-0.25, latency=0.0, waiting=0.0, other=0.25, total=0.5)
    >>> attribution.by_cause()["transfer"], sum(attribution.by_cause().values())
    (-0.25, 0.5)
    """

    compute: float
    transfer: float
    latency: float
    waiting: float
    other: float
    total: float

    def by_cause(self) -> dict[Cause, float]:
        """The differences of the five causes, without the total [s]."""
        return {
            "compute": self.compute,
            "transfer": self.transfer,
            "latency": self.latency,
            "waiting": self.waiting,
            "other": self.other,
        }


def attribute(difference: float, pairs: Iterable[tuple[OpRecord, OpRecord]]) -> Attribution:
    """The causes of a difference of makespans, predicted minus measured [s].

    >>> predicted = OpRecord(name="multiply", kind="gemm", seconds=2.0)
    >>> measured = OpRecord(name="multiply", kind="gemm", seconds=1.5)
    >>> attribute(0.75, [(predicted, measured)])
    Attribution(compute=0.5, transfer=0.0, latency=0.0, waiting=0.0, other=0.25, total=0.75)

    Parameters
    ----------
    difference : predicted minus measured makespan [s]
    pairs : entry of each op in the predicted record and in the measured record
    """
    causes: dict[Cause, float] = {"compute": 0.0, "transfer": 0.0, "latency": 0.0, "waiting": 0.0, "other": 0.0}
    for predicted, measured in pairs:
        difference_of_op = charged_seconds(predicted) - charged_seconds(measured)
        for cause, share in cause_shares(predicted).items():
            causes[cause] += share * difference_of_op
        causes["waiting"] += charged_waiting(predicted) - charged_waiting(measured)
    attributed = causes["compute"] + causes["transfer"] + causes["latency"] + causes["waiting"]
    return Attribution(**{**causes, "other": difference - attributed}, total=difference)


def charged_by_cause(ops: Iterable[OpRecord | OpTimes]) -> dict[Cause, float]:
    """The time by which measured ops lengthen the makespan of the mean rank, by cause [s].

    >>> multiply = OpRecord(name="multiply C", kind="gemm", seconds=2.0)
    >>> gather = OpRecord(name="gather B", kind="all_gather", seconds=1.0, waiting_seconds=0.5, exposed_seconds=1.0)
    >>> charged_by_cause([multiply, gather])
    {'compute': 2.0, 'transfer': 1.0, 'waiting': 0.5}
    """
    seconds: dict[Cause, float] = {"compute": 0.0, "transfer": 0.0, "waiting": 0.0}
    for op in ops:
        seconds["compute" if op.kind in COMPUTE_KINDS else "transfer"] += charged_seconds(op)
        seconds["waiting"] += charged_waiting(op)
    return seconds


def charged_seconds(op: OpRecord | OpTimes) -> float:
    """The time by which an op lengthens its rank's makespan [s]: all of local work, else the exposed time."""
    return op.seconds if op.kind in COMPUTE_KINDS else op.exposed_seconds


def charged_waiting(op: OpRecord | OpTimes) -> float:
    """The waiting time of an op that lengthens its rank's makespan [s].

    >>> op = OpRecord(name="sum C", kind="all_reduce", seconds=2.0, waiting_seconds=1.0, exposed_seconds=0.5)
    >>> charged_waiting(op)
    0.25
    """
    return op.waiting_seconds * (min(1.0, charged_seconds(op) / op.seconds) if op.seconds > 0 else 1.0)


def cause_shares(predicted: OpRecord) -> Mapping[Cause, float]:
    """The shares of an op's difference by cause, from its predicted parts; the shares add up to 1.

    >>> parts = {"transfer": 3.0, "latency": 1.0, "waiting": 7.0}
    >>> dict(cause_shares(OpRecord(name="gather B", kind="all_gather", seconds=4.0, seconds_by_part=parts)))
    {'transfer': 0.75, 'latency': 0.25}
    """
    if predicted.kind in COMPUTE_KINDS:
        return {"compute": 1.0}
    parts = {cause: predicted.seconds_by_part.get(cause, 0.0) for cause in COMMUNICATION_CAUSES}
    parts = {cause: part for cause, part in parts.items() if part > 0}
    whole = sum(parts.values())
    if whole <= 0:
        return {"latency": 1.0} if predicted.kind == "barrier" else {"transfer": 1.0}
    return {cause: part / whole for cause, part in parts.items()}
