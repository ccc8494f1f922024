"""The decision which pass is next, among the simulated ranks of a pipeline stage."""

from collections.abc import Collection, MutableMapping

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.program import PassKind
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks


class SimulatedAgreement:
    """What one simulated rank learns from the rank that decides; the messages themselves are simulated as ops.

    Parameters
    ----------
    decisions : decisions of all ranks in order, by the simulated rank that decided
    ranks : ranks that are simulated
    rank : simulated rank
    """

    def __init__(self, decisions: MutableMapping[int, list[PassKind]], ranks: SimulatedRanks, rank: int) -> None:
        self._decisions, self._ranks, self._rank = decisions, ranks, rank
        self._decider = rank
        self._taken = 0

    def decides(self, axes: Collection[Axis]) -> bool:
        """Whether this rank decides for the ranks along these axes: the first of them does, or its stand-in."""
        decider = self._rank
        for axis in axes:
            decider = self._ranks.group(decider, axis)[0]
        self._decider = self._ranks.stands_for(decider)
        return self._decider == self._rank

    def announce(self, tensor: str, kind: PassKind | None) -> None:
        """Add the decision to those of the rank."""
        if kind is not None:
            self._decisions[self._rank].append(kind)

    def decision(self, tensor: str) -> PassKind:
        """The next decision of the rank that decides; the messages after it have arrived."""
        self._taken += 1
        return self._decisions[self._decider][self._taken - 1]
