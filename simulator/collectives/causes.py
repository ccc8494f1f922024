"""What the time of a collective is made of: the same programs, simulated without contention and without bytes.

    latency      the end if bytes took no time
    bandwidth    what is added by bytes, each flow alone on its route
    contention   what is added by sharing links
    waiting      of the mean rank: from its own end to the last one's

Every step waits for both its ends and takes no less time when it has bytes and
when its links are shared, so no part is below 0 (but for rounding), and the
parts add up to the end.  Waiting for a partner inside the collective is part of
what held up the partner.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.formats.record import PathPart
from quadrille.simulator.collectives.flows import Moves, Ran, run
from quadrille.simulator.collectives.programs import Floats, Ints, Programs


@dataclass(frozen=True, slots=True)
class Causes:
    """Seconds of the last rank and of the mean rank, latency left out: it is what is missing to the whole.

    So what passes before or after may be added to the whole alone.

    >>> Causes.together(2.0, 1.0).of(3.5)["latency"], Causes(2.0, 1.0, 1.5, 0.5, 0.75).mean_of(3.5)["waiting"]
    (0.5, 0.75)
    """

    bandwidth: float
    contention: float
    mean_bandwidth: float
    mean_contention: float
    waiting: float

    @classmethod
    def together(cls, bandwidth: float, contention: float) -> "Causes":
        """Where all ranks end at once."""
        return cls(bandwidth, contention, bandwidth, contention, 0.0)

    def of(self, seconds: float) -> dict[PathPart, float]:
        """Parts of the time until the last rank has ended, which add up to it."""
        latency = max(0.0, seconds - self.bandwidth - self.contention)
        return {"latency": latency, "bandwidth": self.bandwidth, "contention": self.contention, "waiting": 0.0}

    def mean_of(self, seconds: float) -> dict[PathPart, float]:
        """Parts of the same time as the mean rank spends it."""
        latency = max(0.0, seconds - self.mean_bandwidth - self.mean_contention - self.waiting)
        return {
            "latency": latency,
            "bandwidth": self.mean_bandwidth,
            "contention": self.mean_contention,
            "waiting": self.waiting,
        }


def causes_of(
    programs: Programs, moves: Moves, capacities: Floats, ran: Ran, members: Ints, *, fold_time: bool = True
) -> Causes:
    """What the time was made of, by up to two more simulations in which nothing contends.

    Parameters
    ----------
    ran : the simulation itself
    members : for each member of all groups the one that stands for it
    """
    alone, latent = ran.ends, np.zeros_like(ran.ends)
    if ran.contended:
        alone = np.minimum(ran.ends, run(programs, moves, capacities, contended=False, fold_time=fold_time).ends)
    if moves.latency.any():
        instant = replace(moves, alone=np.full_like(moves.alone, np.inf))
        latent = np.minimum(alone, run(programs, instant, capacities, contended=False, fold_time=fold_time).ends)
    last = [float(ends.max(initial=0.0)) for ends in (latent, alone, ran.ends)]
    mean = [float(ends[members].mean()) if len(members) else 0.0 for ends in (latent, alone, ran.ends)]
    return Causes(
        bandwidth=last[1] - last[0],
        contention=last[2] - last[1],
        mean_bandwidth=mean[1] - mean[0],
        mean_contention=mean[2] - mean[1],
        waiting=max(0.0, last[2] - mean[2]),
    )
