"""Time breakdown of an op on a rank: the seconds by cause."""

from dataclasses import dataclass, field

from quadrille.algorithms.formats.record import PathPart
from quadrille.simulator.engine.engine import StreamSeconds

OpInstance = tuple[int, str, int]
"""Rank, name of the op, and index among the instances of the op on the rank."""


@dataclass(slots=True)
class TimeBreakdown:
    """Seconds of one op on one rank, by cause.

    Parameters
    ----------
    latency, compute : latencies and local work of all steps, as far as they do not overlap transfers [s]
    extrapolated : whether anything was larger than what was measured
    path : seconds by cause of the path through the op: of each step the transfer that ended last, with the wait
        for its other end, its latency, the time that it takes alone (bandwidth), and what sharing adds (contention)
    """

    latency: float = 0.0
    compute: float = 0.0
    extrapolated: bool = False
    path: dict[PathPart, float] = field(default_factory=dict)

    @classmethod
    def of(cls, seconds: StreamSeconds) -> "TimeBreakdown":
        """The breakdown of a program that a stream of the engine has run."""
        path: tuple[tuple[PathPart, float], ...] = (
            ("waiting", seconds.waiting),
            ("latency", seconds.path_latency),
            ("bandwidth", seconds.bandwidth),
            ("compute", seconds.computing),
            ("contention", seconds.contention),
        )
        nonzero = {part: part_seconds for part, part_seconds in path if part_seconds}
        return cls(seconds.latency, seconds.compute, seconds.extrapolated, nonzero)

    def on_path(self, part: PathPart, seconds: float) -> None:
        """Add seconds of a cause to the path."""
        if seconds:
            self.path[part] = self.path.get(part, 0.0) + seconds
