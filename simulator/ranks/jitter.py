"""`Jitter`: random noise of every op instance, and speeds that differ from GPU to GPU.

An op instance gets a factor from a lognormal distribution whose median is 1:

    factor = exp(sigma * z),    z normal with mean 0 and standard deviation 1

The median of the noise is 1, so its mean is exp(sigma^2 / 2): sigma 0.1 adds 0.5 % to the mean time, sigma 0.2 adds
2 %.  z follows from a hash of the seed, the rank, the op and the index of the instance, so the factor does not depend
on the order of events.  z takes `QUANTILES` values, so that the simulator reuses the programs of an op.

Speeds that differ from GPU to GPU are not drawn: all ranks compute at the expected pace of the slowest GPU
(`machine/slowest_device.py`), so that ranks stay equal and any number of ranks can be predicted.
"""

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from math import exp, sqrt
from statistics import NormalDist
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.simulator.ranks.local_work import NoiseFactors
from quadrille.topologies.machines.machine import Machine

QUANTILES = 64
"""Number of values of the noise."""
MOST_SIGMA = 2.0
"""Largest accepted sigma; a factor of exp(2) = 7.4 is then one standard deviation."""
FIRST_AHEAD = 4
"""Number of instances of an op whose programs are made at its first instance."""


@dataclass(frozen=True, slots=True)
class Jitter:
    """The spread of the times of a machine.

    >>> str(Jitter(compute=0.1)), str(Jitter(0.05, 0.2, seed=7)), str(Jitter(gpus=0.02))
    ('compute=0.1', 'compute=0.05,network=0.2,seed=7', 'gpus=0.02')

    Parameters
    ----------
    compute : standard deviation of the logarithm of the seconds of local work
    network : standard deviation of the logarithm of the seconds of transfers, without their latency
    seed : seed of the draws
    gpus : standard deviation of the logarithm of the seconds of local work from GPU to GPU; `machine` for the number
        of the machine, `device.speed_sigma`

    Raises
    ------
    InputError : a sigma outside 0 to `MOST_SIGMA`, or a negative seed
    """

    compute: float = 0.0
    network: float = 0.0
    seed: int = 0
    gpus: float | Literal["machine"] = 0.0

    def __post_init__(self) -> None:
        for name, sigma in self._sigmas:
            if sigma != "machine" and not 0 <= sigma <= MOST_SIGMA:
                raise InputError(f"jitter {name}={sigma:g}: a sigma from 0 to {MOST_SIGMA:g} is accepted")
        if self.seed < 0:
            raise InputError(f"jitter seed={self.seed}: a whole number from 0 is accepted")

    @property
    def _sigmas(self) -> tuple[tuple[str, float | Literal["machine"]], ...]:
        """Name and value of each sigma."""
        return ("compute", self.compute), ("network", self.network), ("gpus", self.gpus)

    def __str__(self) -> str:
        sigmas = [f"{name}={sigma}" for name, sigma in self._sigmas if sigma]
        return ",".join([*(sigmas or ["compute=0"]), *([f"seed={self.seed}"] if self.seed else [])])

    @property
    def draws(self) -> bool:
        """Whether op instances draw noise, so that no two ranks are equal."""
        return bool(self.compute or self.network or not self.gpus)

    def gpus_of(self, machine: Machine) -> float:
        """The sigma from GPU to GPU on a machine.

        Raises
        ------
        InputError : `machine`, and the machine does not say how much its GPUs differ
        """
        if self.gpus != "machine":
            return self.gpus
        if machine.device.speed_sigma is None:
            raise InputError(
                f"jitter gpus=machine: {machine.name} has no device.speed_sigma; a number is accepted, as gpus=0.02"
            )
        return machine.device.speed_sigma

    def quantile(self, rank: int, op: str, index: int) -> int:
        """The number of the quantile that an op instance draws.

        >>> Jitter(0.1).quantile(3, "L1 multiply", 0) == Jitter(0.2).quantile(3, "L1 multiply", 0)
        True

        Parameters
        ----------
        op : name of the op
        index : index among the instances of the op on the rank
        """
        digest = blake2b(f"{self.seed}|{rank}|{index}|{op}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % QUANTILES

    def quantiles_ahead(self, rank: int, op: str, index: int) -> set[int]:
        """The quantiles of an op instance and of about as many later instances as came before.

        The engine copies its state whenever a program is new, so the programs of instances are made together.
        """
        last = min(2 * index + FIRST_AHEAD, index + QUANTILES)
        return {self.quantile(rank, op, later) for later in range(index, last)}

    def factors(self, quantile: int) -> NoiseFactors:
        """The factors of a quantile."""
        z = _normal_quantiles()[quantile]
        return NoiseFactors(exp(self.compute * z), exp(self.network * z))


@cache
def _normal_quantiles() -> tuple[float, ...]:
    """Equally likely values of a normal variable, scaled so that their standard deviation is 1.

    >>> values = _normal_quantiles()
    >>> round(sum(value * value for value in values) / len(values), 12), values[0] == -values[-1]
    (1.0, True)
    """
    upper = [NormalDist().inv_cdf((QUANTILES + 2 * index + 1) / (2 * QUANTILES)) for index in range(QUANTILES // 2)]
    scale = sqrt(sum(value * value for value in upper) / len(upper))
    scaled = [value / scale for value in upper]
    return (*(-value for value in reversed(scaled)), *scaled)
