"""How an experiment is carried out, whatever it computes: overlaps, collectives, threads, places."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quadrille.algorithms.collectives.choices import Choices, with_placement
from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.passes.bands import in_bands
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import bands_of


@dataclass(frozen=True, slots=True)
class Manner:
    """How a multiplication or training steps are carried out.

    Parameters
    ----------
    overlaps : communication that runs beside the compute lane
    choices : who carries out the collectives; of `auto`, what was chosen for each op
    threads : BLAS threads of each rank; None for its share of the host's cores
    placement : the rule by which a prediction gives ranks their places
    shards : whether a prediction has shards of mean size; None for what suits the number of ranks
    bands : of rows, one summed while the next is multiplied
    any_order : whether the order of ranks is still to be found for a machine (`experiments/predict/order_choice.py`)
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
        return tuple(name for name in OVERLAPS if name in self.overlaps)

    @property
    def runs_beside(self) -> bool:
        """Whether any communication runs beside local work."""
        return bool(self.overlaps) or self.bands > 1

    @property
    def options(self) -> dict[str, Any]:
        """What records say of it only where it is not the usual."""
        return {"bands": self.bands} if self.bands > 1 else {}

    def carried_out(self, schedule: Schedule) -> Schedule:
        """A schedule with its overlaps, in its bands."""
        return in_bands(overlap(schedule, self.overlaps), self.bands)

    def idle_bands(self, schedule: Schedule, where: str) -> list[str]:
        """What to say where bands change nothing."""
        if self.bands == 1 or bands_of(in_bands(schedule, self.bands).tensors):
            return []
        return [f"--bands {self.bands} changes nothing: {where} has no product that is summed right after it"]

    def on_nodes(self, grid: Grid, nodes: Sequence[int]) -> "Manner":
        """The same where hierarchical collectives know the node of each rank."""
        if self.choices.set_name != "hierarchical":
            return self
        return replace(self, choices=with_placement(self.choices, grid, nodes))
