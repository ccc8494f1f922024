"""How far off a prediction may be: the interval that holds nine of ten measurements."""

from dataclasses import dataclass
from math import hypot, inf

from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.ops import Broadcast, Communication, Reduce, collective_kind
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How much less and how much more than predicted nine of ten runs take, over the makespan."""

    less: float
    more: float

    def around(self, least: float, most: float) -> tuple[float, float]:
        """The interval around a makespan that lies between two [s]."""
        return max(0.0, least * (1 - self.less)), most * (1 + self.more)


@dataclass(frozen=True, slots=True)
class MessageMargins:
    """What messages between hosts of a laboratory add to it.

    Parameters
    ----------
    less, more : of the makespan
    early, late : seconds, whatever the makespan
    """

    less: float
    more: float
    early: float = 0.0
    late: float = 0.0


OWN, LIBRARY = MessageMargins(less=0.012, more=0.035, early=0.006, late=0.008), MessageMargins(less=0.15, more=0.28)
"""Between hosts that share cores, by our own messages and by the library's collectives, as they were measured or as
they are guessed.  Runs hardly end before they are predicted to, and later by what the kernel makes a message's receiver
wait.  Our own: chosen with 97 runs in laboratories drawn by eight seeds (`studies/fidelity`: 53, 54, 56, 57, 60, 62, 64
and 65), of which they hold 92 % with the residuals and the noise; the library's: with 230 runs of ten seeds (37, 38, 40
to 45, 47 and 50), 91 %.  So those are no test of them."""
CHAINS = MessageMargins(less=0.06, more=0.13, early=0.006, late=0.008)
"""Where our own broadcasts or reductions go down chains of more than two ranks: who hears late makes all behind it
late.  Chosen with the twelve such runs of seeds 54, 56, 57 and 65: ten end from 6 % before to 10 % behind what is
predicted, two of eight hosts 13 and 19 % behind it."""
NOTHING_SENT = MessageMargins(less=0.0, more=0.0, late=0.004)
"""Where nothing is sent: on cores that ranks share such runs end up to 4 ms late.  Chosen with products of 3 to 38 ms
of the matrix of 2026-11-24 and of seeds 45, 49, 53 and 54, which were 0.8 to 3.8 ms late."""


def message_margins(schedule: Schedule, choices: Choices) -> MessageMargins:
    """By what ranks communicate; the library's, be they measured or guessed, where any collective goes by it."""
    grid = schedule.grid
    sent = [op for op in all_ops(schedule) if isinstance(op, Communication) and grid.length(op.axis) > 1]
    library = any(choices.by_library(op) for op in sent)
    if library or not sent:
        return LIBRARY if library else NOTHING_SENT
    in_chains = any(
        isinstance(op, Broadcast | Reduce)
        and grid.length(op.axis) > 2
        and choices.of(op.name).algorithm(collective_kind(op)) == "pipelined"
        for op in sent
    )
    return CHAINS if in_chains else OWN


def uncertainty(
    machine: Machine, makespan: float, messages: MessageMargins | None, *, computing: float = inf
) -> Uncertainty:
    """Of the fit's residuals, of the noise beside calibration, and in a laboratory of messages between hosts.

    Residuals and noise are of local work: where messages wait for the wire alone they count for as much of
    the makespan as ranks compute.

    Parameters
    ----------
    makespan : as predicted [s]
    messages : how ranks communicate; None where it is known to be no laboratory
    computing : how much of it a rank computes, in the mean, copies and sums of messages included [s]
    """
    fit, reference, host, network = machine.fit, machine.reference, machine.host, machine.network
    residual = max(fit.residuals.values(), default=0.0) if fit is not None else 0.0
    noise = reference.gemm_spread if reference is not None else 0.0
    either_way = hypot(1.645 * 1.48 * residual, noise)
    in_laboratory = host is not None and host.shared_by_hosts and network is not None and network.transfer
    if messages is None or not in_laboratory or makespan <= 0:
        return Uncertainty(either_way, either_way)
    either_way *= min(1.0, computing / makespan)
    less = hypot(either_way, messages.less, messages.early / makespan)
    more = hypot(either_way, messages.more, messages.late / makespan)
    return Uncertainty(less, more)
