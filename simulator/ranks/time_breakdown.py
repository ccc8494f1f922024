"""What the seconds of one rank's op went into."""

from dataclasses import dataclass, field

from quadrille.algorithms.formats.record import PathPart
from quadrille.simulator.engine.engine import MemberSeconds


@dataclass(slots=True)
class TimeBreakdown:
    """Seconds of one rank's op, by what they went into.

    `latency` and `compute` are those of its steps and of its local work, as far
    as they are not transfer.  `path` tells of each step the story of the
    transfer that ended last: waiting for its other end, latency, the time that
    it takes alone (bandwidth), and what sharing added (contention).
    """

    latency: float = 0.0
    compute: float = 0.0
    extrapolated: bool = False
    path: dict[PathPart, float] = field(default_factory=dict)

    @classmethod
    def of(cls, told: MemberSeconds) -> "TimeBreakdown":
        """As a member of the engine tells."""
        path: tuple[tuple[PathPart, float], ...] = (
            ("waiting", told.waiting),
            ("latency", told.path_latency),
            ("bandwidth", told.bandwidth),
            ("compute", told.computing),
            ("contention", told.contention),
        )
        return cls(told.latency, told.compute, told.extrapolated, {part: seconds for part, seconds in path if seconds})

    def on_path(self, part: PathPart, seconds: float) -> None:
        if seconds:
            self.path[part] = self.path.get(part, 0.0) + seconds
