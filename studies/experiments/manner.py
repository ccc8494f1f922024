"""How an experiment is carried out, whatever it computes: overlaps, collectives, threads, places."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from algorithms.collectives.choices import Choices, placed
from algorithms.formats.record import Shards
from algorithms.grid import Grid
from algorithms.ops import OverlapName
from algorithms.reordering.overlap import OVERLAPS


@dataclass(frozen=True, slots=True)
class Manner:
    """How a multiplication or training steps are carried out.

    Parameters
    ----------
    overlaps : communication that runs beside the compute lane
    choices : who carries out the collectives
    threads : BLAS threads of each rank; None for its share of the host's cores
    placement : the rule by which a prediction gives ranks their places
    shards : whether a prediction has shards of mean size; None for what suits the number of ranks
    """

    overlaps: frozenset[OverlapName] = frozenset()
    choices: Choices = field(default_factory=Choices)
    threads: int | None = None
    placement: str = "packed"
    shards: Shards | None = None

    @property
    def overlap_names(self) -> tuple[OverlapName, ...]:
        """The overlaps in the order in which records name them."""
        return tuple(name for name in OVERLAPS if name in self.overlaps)

    def on_nodes(self, grid: Grid, nodes: Sequence[int]) -> "Manner":
        """The same where hierarchical collectives know the node of each rank."""
        if self.choices.set_name != "hierarchical":
            return self
        return replace(self, choices=placed(self.choices, grid, nodes))
