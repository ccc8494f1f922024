"""The results of executing a schedule: output blocks, measured timelines and counted bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.percentiles import percentiles
from quadrille.algorithms.formats.record import percentiles_as_text
from quadrille.algorithms.tabular import fact_line
from quadrille.algorithms.timelines.op_times import OpTimes, op_times
from quadrille.algorithms.timelines.run_result import RunResult
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline, median_timeline
from quadrille.runtime.arrays.array_library import Array


@dataclass(frozen=True, slots=True)
class RankResult:
    """The results of one rank.

    Parameters
    ----------
    outputs : output blocks of the last repeat, by tensor name
    spans : start and end times of all ops, one list for each repeat
    bytes_sent : bytes that the rank sent in one repeat, warm-ups included in the mean [B]
    allocated_bytes : bytes of all arrays that the rank allocated on its device [B]
    allocated_host_bytes : bytes of its arrays in host memory beside the device [B]
    overlap_fractions : fraction (0 to 1) of each communication op that ran during local work, by the name of the op;
        only for ops that may overlap, mean over instances
    """

    outputs: dict[str, Array]
    spans: list[list[Span]]
    bytes_sent: int
    allocated_bytes: int
    allocated_host_bytes: int
    overlap_fractions: dict[str, float]


@dataclass(frozen=True, slots=True, repr=False)
class Execution(RunResult):
    """The results of one execution on all ranks.

    Every field except `outputs` is empty on all processes but that of rank 0; there `seconds`, `timeline`, `rows` and
    what they are made of raise InputError.

    Parameters
    ----------
    outputs : output blocks of the ranks in this process, by rank and tensor name
    timelines : one measured timeline for each repeat
    bytes_sent : bytes that each rank sent in one repeat, by rank [B]
    allocated_bytes : bytes of the arrays that each rank allocated on its device, by rank [B]
    overlap_fractions : fraction (0 to 1) of each communication op that ran during local work, by the name of the op;
        only for ops that may overlap, mean over ranks
    allocated_host_bytes : bytes of the arrays of each rank in host memory beside its device, by rank [B]
    """

    outputs: dict[int, dict[str, Array]]
    timelines: list[Timeline]
    bytes_sent: dict[int, int]
    allocated_bytes: dict[int, int]
    overlap_fractions: dict[str, float]
    allocated_host_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        """Empty: an execution knows no name of its machine."""
        return ""

    @property
    def timeline(self) -> Timeline:
        """The timeline of the repeat whose makespan is nearest to the median."""
        return median_timeline(self._timelines_of_all())

    @property
    def seconds(self) -> float:
        """Median over the repeats of the time from the first rank's start to the last rank's end [s]."""
        return median(self._makespans())

    @property
    def interval(self) -> tuple[float, float]:
        """The 5th and the 95th percentile over the repeats [s]."""
        over_repeats = percentiles(self._makespans())
        return over_repeats.low, over_repeats.high

    @property
    def interval_text(self) -> str:
        """The percentiles as text, as the command line prints them."""
        return percentiles_as_text(*self.interval, len(self.timelines))

    def op_times(self) -> Mapping[str, OpTimes]:
        """Times of every op, medians over repeats and means over ranks, by name, in the order of first start."""
        return op_times(*self._timelines_of_all())

    def __repr__(self) -> str:
        """The heading in one line; the ranks of this process where the timelines are in another."""
        if self.timelines:
            return RunResult.__repr__(self)
        return fact_line(self, f"outputs of {len(self.outputs)} ranks; rank 0 has the timelines")

    def _repr_html_(self) -> str | None:
        """HTML of the summary, the longest ops and a small timeline; None where another process has the timelines."""
        return RunResult._repr_html_(self) if self.timelines else None

    def _makespans(self) -> list[float]:
        return [timeline.makespan for timeline in self._timelines_of_all()]

    def _timelines_of_all(self) -> list[Timeline]:
        """The timelines of the repeats."""
        if not self.timelines:
            raise InputError(
                "an execution without timelines: the process of rank 0 has them, after at least one repeat"
            )
        return self.timelines


def mean_by_name(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean value under each name, over the rows that have the name.

    >>> mean_by_name([{"sum": 1.0}, {"sum": 0.5, "gather": 0.0}])
    {'sum': 0.75, 'gather': 0.0}
    """
    by_name: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            by_name.setdefault(name, []).append(value)
    return {name: mean(values) for name, values in by_name.items()}
