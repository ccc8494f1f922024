"""How a schedule is executed, whatever it computes: overlaps, collectives, threads, rank placement."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from quadrille.algorithms.collectives.choices import Choices, with_placement
from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import bands_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """How a multiplication or training steps are executed.

    Parameters
    ----------
    overlaps : communication that runs beside the compute lane
    choices : who carries out the collectives
    threads : BLAS threads of each rank; None for its share of the host's cores
    placement : the rule that gives each rank its host or GPU in a prediction
    shards : whether a prediction gives all shards the mean size; None for what suits the number of ranks
    bands : bands of rows, one of which is summed while the next is multiplied
    any_order : whether the order of ranks is still to be chosen for a machine (`experiments/predict/order_choice.py`)
    """

    overlaps: frozenset[OverlapName] = frozenset()
    choices: Choices = field(default_factory=Choices)
    threads: int | None = None
    placement: str = "packed"
    shards: Shards | None = None
    bands: int = 1
    any_order: bool = False

    @property
    def overlap_names(self) -> tuple[OverlapName, ...]:
        """The overlaps in the order in which records name them."""
        return tuple(name for name in get_args(OverlapName) if name in self.overlaps)

    @property
    def runs_beside(self) -> bool:
        """Whether any communication runs beside local work."""
        return bool(self.overlaps) or self.bands > 1

    @property
    def options(self) -> dict[str, Any]:
        """The options that a record names only where they are not the default."""
        return {"bands": self.bands} if self.bands > 1 else {}

    def applied(self, schedule: Schedule) -> Schedule:
        """The schedule with its overlaps, in its bands."""
        if self.overlaps:
            from quadrille.algorithms.passes.overlap import overlap

            schedule = overlap(schedule, self.overlaps)
        if self.bands != 1:
            from quadrille.algorithms.passes.bands import in_bands

            schedule = in_bands(schedule, self.bands)
        return schedule

    def idle_bands(self, schedule: Schedule, where: str) -> list[str]:
        """A line if bands change nothing.

        Parameters
        ----------
        schedule : the schedule in its bands
        """
        if self.bands == 1 or bands_of(schedule.tensors):
            return []
        return [f"--bands {self.bands} changes nothing: {where} has no product that is summed right after it"]

    def on_nodes(self, grid: Grid, nodes: Sequence[int]) -> "ExecutionOptions":
        """The same, with hierarchical collectives that know the node of each rank."""
        if self.choices.set_name != "hierarchical":
            return self
        return replace(self, choices=with_placement(self.choices, grid, nodes))
