"""Uncertainty of a prediction: the interval that contains nine of ten measurements."""

from dataclasses import dataclass
from math import hypot, inf

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import Broadcast, Communication, Reduce, collective_kind
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Relative distance of the interval's ends below and above the predicted makespan."""

    less: float
    more: float

    def around(self, least: float, most: float) -> tuple[float, float]:
        """The interval around a makespan between `least` and `most` [s]."""
        return max(0.0, least * (1 - self.less)), most * (1 + self.more)


EXACT = Uncertainty(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class MessageMargins:
    """Widening of the interval by messages between hosts of an emulated network (network namespaces on one machine).

    Parameters
    ----------
    less, more : fractions of the makespan below and above it
    early, late : seconds below and above it, whatever the makespan
    """

    less: float
    more: float
    early: float = 0.0
    late: float = 0.0


OWN_MESSAGES, LIBRARY_MESSAGES = (
    MessageMargins(less=0.012, more=0.035, early=0.006, late=0.008),
    MessageMargins(less=0.15, more=0.28),
)
"""Margins between hosts that share cores, for our own messages and for the library's collectives (measured or assumed).

Runs rarely end before the predicted time, and end later by the time the kernel lets a receiver wait.  The margins
of our own messages are fitted to 97 runs of eight seeds (`studies/fidelity`: 53, 54, 56, 57, 60, 62, 64 and 65) and
contain 92 % of them together with residuals and noise; the library's are fitted to 230 runs of ten seeds (37, 38,
40 to 45, 47 and 50) and contain 91 %.  These runs are therefore no test of the margins.
"""
CHAIN_MESSAGES = MessageMargins(less=0.06, more=0.13, early=0.006, late=0.008)
"""Margins if our own broadcasts or reductions use chains of more than two ranks: a late rank delays the rest.

Fitted to the twelve such runs of seeds 54, 56, 57 and 65: ten end between 6 % before and 10 % after the predicted
time, two on eight hosts 13 and 19 % after it.
"""
NO_MESSAGES = MessageMargins(less=0.0, more=0.0, late=0.004)
"""Margins if nothing is sent: on shared cores such runs end up to 4 ms late.

Fitted to products of 3 to 38 ms (matrix of 2026-11-24, seeds 45, 49, 53 and 54), which were 0.8 to 3.8 ms late.
"""


TABLE_RESIDUALS = Uncertainty(less=0.07, more=0.26)
"""Interval on a GPU with a table of measured kernels, from published training steps: measured / predicted.

The ends are the 2.5th and the 97.5th percentile of 67 learnt rows (Megatron-LM and MosaicML on A100 and H100).  The
interval holds 61 of 70 other rows of these sources, and all eight steps of SimuMax on B200 (`studies/kernel_tables`).
"""
SHEET_RESIDUALS = Uncertainty(less=0.3, more=0.66)
"""Interval on a GPU that is known by shares of its peaks: the 5th and the 95th percentile of 15 learnt rows.

The rows are steps on V100 of Jean Zay.  The interval holds 7 of 8 other rows.
"""


def message_margins(schedule: Schedule, choices: Choices) -> MessageMargins:
    """Margins of a schedule's messages; the library's if it runs any collective."""
    grid = schedule.grid
    communications = [op for op in all_ops(schedule) if isinstance(op, Communication) and grid.length(op.axis) > 1]
    library = any(choices.by_library(op) for op in communications)
    if library or not communications:
        return LIBRARY_MESSAGES if library else NO_MESSAGES
    in_chains = any(
        isinstance(op, Broadcast | Reduce)
        and grid.length(op.axis) > 2
        and choices.of(op.name).algorithm(collective_kind(op)) == "pipelined"
        for op in communications
    )
    return CHAIN_MESSAGES if in_chains else OWN_MESSAGES


def uncertainty(
    machine: Machine, makespan: float, messages: MessageMargins | None, *, computing: float = inf
) -> Uncertainty:
    """Uncertainty from residuals of the fit, noise during calibration, and messages of an emulated network.

    A GPU that was not calibrated, but of which the shares of its peaks are known, has the residuals of published
    training steps.

    Residuals and noise concern local work: if messages wait for links only, they count in proportion to the
    computing share of the makespan.

    Parameters
    ----------
    makespan : predicted makespan [s]
    messages : margins of the messages; None if the machine is known not to be an emulated network
    computing : mean seconds that a rank computes, copies and sums of messages included [s]
    """
    fit, reference, network = machine.fit, machine.reference, machine.network
    if fit is None and reference is None and machine.device.achieved is not None:
        return TABLE_RESIDUALS if machine.device.measured_kernels else SHEET_RESIDUALS
    residual = max(fit.residuals.values(), default=0.0) if fit is not None else 0.0
    noise = reference.gemm_spread if reference is not None else 0.0
    symmetric = hypot(1.645 * 1.48 * residual, noise)
    in_laboratory = machine.emulated.shared_cores and network is not None and network.transfer
    if messages is None or not in_laboratory or makespan <= 0:
        return Uncertainty(symmetric, symmetric)
    symmetric *= min(1.0, computing / makespan)
    less = hypot(symmetric, messages.less, messages.early / makespan)
    more = hypot(symmetric, messages.more, messages.late / makespan)
    return Uncertainty(less, more)
