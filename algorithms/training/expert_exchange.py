"""Exchange of a layer of experts: the ops that bring rows to the ranks of their experts, and back.

    expert   expert_tensor
       1          1          expert I
       n          1          sent rows  →  all-to-all  →  expert I
       n          t          sent rows  →  all-to-all  →  received rows  →  all-gather  →  expert I
       1          t          sent rows  →  all-gather  →  expert I

Ranks along expert_tensor hold other columns of the same experts.  Each gathers the rows of all of them, and their sums
are scattered on the way back.  So a row travels over `expert` once, whatever ranks cut its expert.

Source: NVIDIA, Megatron Core, megatron.core.transformer.moe.token_dispatcher (MoEAlltoAllTokenDispatcher: all-to-all,
then all-gather over expert tensor ranks); Singh et al., "A Hybrid Tensor-Expert-Data Parallelism Approach" (TED), ICS
2023, section 5.1 (duplicate token dropping: each row is exchanged once, and gathered after).
"""

from dataclasses import dataclass

from quadrille.algorithms.schedule.grid import EXPERT, EXPERT_TENSOR, Axis, Grid
from quadrille.algorithms.schedule.ops import AllGather, AllToAll, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.routed_rows import RoutedRows
from quadrille.algorithms.schedule.tensors import Copies, ElementType, Tensor
from quadrille.algorithms.training.experts import EXPERTS, ROUTERS, Experts

INTEGERS: ElementType = "int32"
COUNTS, OF_GROUP, ALL_COUNTS = "counts", "group counts", "all counts"
BETWEEN = {
    "expert I": "received rows",
    "expert O": "summed rows",
    "dexpert O": "dsummed rows",
    "dexpert I": "dreceived rows",
}
"""Rows between the two collectives, by the rows that the products of experts read or write."""


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """The exchange of rows among the ranks that hold all experts together.

    Parameters
    ----------
    experts : the mixture of experts
    grid : grid of ranks
    copies : copies for each layer
    """

    experts: Experts
    grid: Grid
    copies: Copies

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the exchange that are longer than 1."""
        axes: tuple[Axis, ...] = (EXPERT, EXPERT_TENSOR)
        return tuple(axis for axis in axes if self.grid.length(axis) > 1)

    @property
    def _cuts(self) -> bool:
        """Whether ranks cut experts."""
        return self.grid.expert_tensor > 1

    @property
    def counts(self) -> str:
        """The tensor of the rows of each expert, from all ranks that send to a rank."""
        return ALL_COUNTS if self.axes else COUNTS

    def between(self, rows: str) -> tuple[str, ...]:
        """The rows between the two collectives; none if there is one collective."""
        return (BETWEEN[rows],) if len(self.axes) > 1 else ()

    def count_tensors(self, unfolded: tuple[Axis, ...]) -> tuple[Tensor, ...]:
        """The rows of each expert that a rank sends, and those of the ranks of its group.

        Parameters
        ----------
        unfolded : axes that cut the ranks that route, where experts have no ranks of their own
        """

        def of(name: str, axes: tuple[Axis, ...], copies: Copies) -> Tensor:
            return Tensor(name, Part(ROUTERS, axes), Part(EXPERTS), copies=copies, dtype=INTEGERS)

        if not self.axes:
            return (of(COUNTS, unfolded, self.copies),)
        return (
            of(COUNTS, ("replica", *self.axes), self.copies),
            *((of(OF_GROUP, ("replica", EXPERT), ()),) if len(self.axes) > 1 else ()),
            of(ALL_COUNTS, ("replica",), self.copies),
        )

    def gather_counts(self) -> Program:
        """The ops after which every rank of a group knows the rows of each rank for each expert."""
        names = (COUNTS, *((OF_GROUP,) if len(self.axes) > 1 else ()), ALL_COUNTS)
        words = {EXPERT: "gather counts", EXPERT_TENSOR: "gather counts of expert_tensor"}
        return tuple(
            AllGather(name=words[axis], axis=axis, source=source, into=into)
            for axis, source, into in zip(reversed(self.axes), names, names[1:], strict=False)
        )

    def there(self, name: str, source: str, into: str) -> Program:
        """Rows that go to the ranks of their experts.

        Parameters
        ----------
        name : rows, in words: of the forward pass, or gradients
        source : rows of the tokens of a rank
        into : rows of the experts of a rank
        """
        first = (*self.between(into), into)[0]
        gather = AllGather(
            name=f"gather {name} of experts",
            axis=EXPERT_TENSOR,
            source=first if self.grid.expert > 1 else source,
            into=into,
            counts=self.counts,
        )
        send = self._all_to_all(
            f"send {name} to experts" if name != "rows" else "send to experts", source, first, back=False
        )
        return (*(send if self.grid.expert > 1 else ()), *((gather,) if self._cuts else ()))

    def back(self, name: str, source: str, into: str) -> Program:
        """Rows that return to the ranks of their tokens, summed over the ranks that cut their expert.

        Parameters
        ----------
        name : rows, in words: of the forward pass, or gradients
        source : rows of the experts of a rank
        into : rows of the tokens of a rank
        """
        last = (*self.between(source), source)[0]
        scatter = ReduceScatter(
            name=f"sum {name} of experts",
            axis=EXPERT_TENSOR,
            source=source,
            into=last if self.grid.expert > 1 else into,
            counts=self.counts,
        )
        send = self._all_to_all(
            f"return {name} from experts" if name != "rows" else "return from experts", last, into, back=True
        )
        return (*((scatter,) if self._cuts else ()), *(send if self.grid.expert > 1 else ()))

    def _all_to_all(self, name: str, source: str, into: str, *, back: bool) -> Program:
        """Rows sent over `expert`, or back."""
        experts = self.experts
        routed = RoutedRows(experts.count, experts.chosen, experts.groups, experts.chosen_groups)
        return (
            AllToAll(name=name, axis=EXPERT, source=source, into=into, counts=self.counts, back=back, routed=routed),
        )
