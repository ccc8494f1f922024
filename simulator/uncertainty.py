"""How far off a prediction may be: the interval that holds nine of ten measurements."""

from dataclasses import dataclass
from math import hypot

from algorithms.formats.machine import Machine


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How much less and how much more than predicted nine of ten runs take, over the makespan."""

    less: float
    more: float

    def around(self, least: float, most: float) -> tuple[float, float]:
        """The interval around a makespan that lies between two [s]."""
        return max(0.0, least * (1 - self.less)), most * (1 + self.more)


@dataclass(frozen=True, slots=True)
class _Messages:
    """What messages between hosts of a laboratory add to it; `late` is in seconds, whatever the makespan."""

    less: float
    more: float
    late: float = 0.0


OWN, LIBRARY = _Messages(less=0.03, more=0.07, late=0.004), _Messages(less=0.15, more=0.28)
"""Between hosts that share cores, by our own messages and where the library's collectives go as they were measured.
Runs hardly end before they are predicted to, and later by what the kernel makes a message's receiver wait.  Chosen
with 230 runs of ten drawn laboratories (`studies/fidelity`, seeds 37, 38, 40 to 45, 47 and 50), so those are no test
of them: with the residuals and the noise they hold 94 % of the own ones, 91 % of the library's."""


def uncertainty(machine: Machine, makespan: float, *, library: bool = False) -> Uncertainty:
    """Of the fit's residuals, of the noise beside calibration, and in a laboratory of messages between hosts.

    Parameters
    ----------
    makespan : as predicted [s]
    library : whether anything went as the library's collectives were measured
    """
    fit, reference, host, network = machine.fit, machine.reference, machine.host, machine.network
    residual = max(fit.residuals.values(), default=0.0) if fit is not None else 0.0
    noise = reference.gemm_spread if reference is not None else 0.0
    either_way = hypot(1.645 * 1.48 * residual, noise)
    if host is None or not host.shared_by_hosts or network is None or not network.transfer or makespan <= 0:
        return Uncertainty(either_way, either_way)
    messages = LIBRARY if library else OWN
    return Uncertainty(hypot(either_way, messages.less), hypot(either_way, messages.more, messages.late / makespan))
