"""`ExecutionOptions`: overlaps, collectives, threads and rank placement of a matmul or of training steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from quadrille.algorithms.collectives.collective_choices import DEFAULT_CHOICES, Choices, with_placement
from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import bands_of
from quadrille.algorithms.tabular import ShortRepr

if TYPE_CHECKING:
    from quadrille.simulator.ranks.jitter import Jitter


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecutionOptions(ShortRepr):
    """The options that decide how a matmul or training steps are executed, and not what is computed.

    Parameters
    ----------
    overlaps : kinds of communication that overlap local work
    choices : algorithm and library of each kind of collective
    threads : number of BLAS threads of each rank; None for an equal share of the host's cores
    placement : rule that places ranks on hosts or GPUs in a prediction
    shards : `exact` or `even` (mean) size of shards in a prediction; None for the default at this number of ranks
    bands : number of bands of rows of a product; a band is summed while the next band is multiplied
    any_order : whether the order of ranks is still to be chosen for a machine (`experiments/predict/order_choice.py`)
    jitter : noise of op instances in a prediction; None for no noise
    """

    overlaps: frozenset[OverlapName] = frozenset()
    choices: Choices = DEFAULT_CHOICES
    threads: int | None = None
    placement: str = "packed"
    shards: Shards | None = None
    bands: int = 1
    any_order: bool = False
    jitter: "Jitter | None" = None

    @property
    def overlap_names(self) -> tuple[OverlapName, ...]:
        """The names of the overlaps, in the order in which records list them."""
        return tuple(name for name in get_args(OverlapName) if name in self.overlaps)

    @property
    def has_overlap(self) -> bool:
        """Whether any communication overlaps local work."""
        return bool(self.overlaps) or self.bands > 1

    @property
    def options(self) -> dict[str, Any]:
        """The options that a record lists only if they are not the defaults."""
        bands = {"bands": self.bands} if self.bands > 1 else {}
        return bands | ({"jitter": str(self.jitter)} if self.jitter is not None else {})

    def applied(self, schedule: Schedule) -> Schedule:
        """The schedule with these overlaps and bands."""
        if self.overlaps:
            from quadrille.algorithms.passes.overlap import overlap

            schedule = overlap(schedule, self.overlaps)
        if self.bands != 1:
            from quadrille.algorithms.passes.bands import in_bands

            schedule = in_bands(schedule, self.bands)
        return schedule

    def idle_bands_remark(self, schedule: Schedule, where: str) -> list[str]:
        """A remark if bands change nothing, as a list of at most one line.

        Parameters
        ----------
        schedule : schedule with the bands applied
        where : algorithm and grid, as text for the remark
        """
        if self.bands == 1 or bands_of(schedule.tensors):
            return []
        return [f"--bands {self.bands} changes nothing: {where} has no product that is summed right after it"]

    def on_nodes(self, grid: Grid, nodes: Sequence[int]) -> "ExecutionOptions":
        """The options with the node of each rank added to hierarchical collectives, which need it.

        Parameters
        ----------
        nodes : number of the node of each rank [ranks]
        """
        if self.choices.set_name != "hierarchical":
            return self
        return replace(self, choices=with_placement(self.choices, grid, nodes))
