"""Times of a schedule's collectives by NCCL's model, for all groups of an op at once (as `quadrille collective`).

NCCL's model says how long a collective takes, not when each step of each rank
ends. So a group begins when its last member has arrived, and ends as the model
says. All groups of an op share links; ops of different axes do not share links in
the model. Their contention is bounded by assumption, not by proof: at the earliest
each op is alone; at the latest it shares the links with all lanes that may be busy
beside it, or waits for an op of each.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, sorted_distinct
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.nccl.tuning_constants import Algorithm, Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import AllToAll, Collective, CollectiveKind, collective_kind
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.simulator.collectives.nccl.collective import NcclResult, nccl_collective
from quadrille.simulator.collectives.nccl.layout import machine_settings
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats
from quadrille.topologies.routes.routing import Routes

if TYPE_CHECKING:
    from quadrille.algorithms.schedule.routed_rows import RoutedRows
    from quadrille.simulator.bounds.equal_places import Place, PlacedResult
    from quadrille.simulator.collectives.programs import PairBytes

Key = tuple[object, ...]
WITH_CAUSES = SimulationOptions(causes=True)
LEAST_ITEM_BYTES = 2
"""Size of the smallest elements of a schedule [B]."""


@dataclass(frozen=True, slots=True)
class Question:
    """A collective on some groups.

    Parameters
    ----------
    size : size of the buffer [B]
    routed : how a router spread the rows of the buffer, where this counts
    pairs : bytes from each member to each; None for equal pieces
    """

    kind: CollectiveKind
    size: float
    root: int
    routed: "RoutedRows | None"
    pairs: "PairBytes | None"


@dataclass(slots=True, eq=False)
class NcclTimes:
    """The times of NCCL's collectives on a machine, each simulated once, in one of several equal places, and cached.

    Parameters
    ----------
    labels : NCCL's choice by name of the op
    longest : longest time of an op by its name [s]
    """

    machine: Machine
    placement: RankPlacement
    choices: Choices
    labels: dict[str, str] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)
    _routes: list[Routes] = field(default_factory=list)
    _results: dict[Key, NcclResult] = field(default_factory=dict)
    _places: dict[bytes, "Place | None"] = field(default_factory=dict)
    _by_place: dict[Key, "PlacedResult"] = field(default_factory=dict)
    _refused: list[InputError] = field(default_factory=list)
    _accepted: bool = False

    def seconds(
        self, op: Collective, coordinates: Coordinates, groups: Ints, size: float, pairs: "PairBytes | None" = None
    ) -> Floats:
        """Seconds from the begin of a group to the end of each member [groups, members].

        Parameters
        ----------
        size : size of the buffer [bytes]
        pairs : bytes from each member to each; None for equal pieces

        Raises
        ------
        InputError : NCCL does not have this collective
        """
        carried = self._result(op, coordinates, groups, size, pairs)
        result = carried.result
        ends = np.full(groups.shape, result.seconds)
        if len(result.ends) > groups.max():
            ends_of_members = result.ends[groups]
            ends = np.where(
                np.isfinite(ends_of_members), ends_of_members + (result.seconds - np.nanmax(result.ends)), ends
            )
        self.labels[op.name] = carried.label
        self.longest[op.name] = max(float(ends.max()), self.longest.get(op.name, 0.0))
        return ends

    def causes(
        self, op: Collective, coordinates: Coordinates, groups: Ints, size: float, pairs: "PairBytes | None" = None
    ) -> dict[PathPart, float]:
        """Seconds until the last member has ended, by cause; latency is what NCCL's model adds whatever the bytes."""
        result = self._result(op, coordinates, groups, size, pairs).result
        assert result.causes is not None, "collectives are simulated with their causes"
        return result.causes.of(result.seconds)

    def link_bytes(
        self, op: Collective, coordinates: Coordinates, groups: Ints, size: float, pairs: "PairBytes | None" = None
    ) -> Floats:
        """Bytes over each link."""
        return self._result(op, coordinates, groups, size, pairs).result.link_bytes

    def _result(
        self, op: Collective, coordinates: Coordinates, groups: Ints, size: float, pairs: "PairBytes | None"
    ) -> NcclResult:
        """NCCL's result for these groups, cached."""
        routed = op.routed if isinstance(op, AllToAll) and self.choices.two_level else None
        question = Question(collective_kind(op), size, evaluate(getattr(op, "root", 0), coordinates), routed, pairs)
        key = question, groups.shape, groups.tobytes()
        if key not in self._results:
            if not self._routes:
                self._routes.append(routes_of(self.machine, self.placement.net))
            self._results[key] = self._in_place(question, groups)
        return self._results[key]

    def _in_place(self, question: "Question", groups: Ints) -> NcclResult:
        """The result, simulated unless it is known of the corresponding groups in an equal place."""
        if groups.size == len(self.placement.of_rank):  # no other groups of equal size are left
            return self._simulate_requested(question, groups)
        from quadrille.simulator.bounds.equal_places import PlacedResult, place_of

        endpoints = self.placement.of_rank[groups]
        members = sorted_distinct(endpoints.ravel())
        at = members.tobytes()
        if at not in self._places:
            self._places[at] = place_of(members, self._routes[0])
        place = self._places[at]
        if place is None:
            return self._simulate_requested(question, groups)
        key = question, groups.shape, np.searchsorted(members, endpoints).tobytes(), place.key
        if key not in self._by_place:
            self._by_place[key] = PlacedResult(self._simulate_requested(question, groups), groups, place)
        return self._by_place[key].at(groups, place)

    def _simulate_requested(self, question: "Question", groups: Ints) -> NcclResult:
        """The result with the requested algorithm if NCCL has it for this collective, else with NCCL's own choice."""
        wanted = self.choices
        try:
            result = self._by(question, groups, wanted.nccl_algorithm, wanted.nccl_protocol)
        except InputError as refused:
            if wanted.nccl_algorithm is None:
                raise
            self._refused.append(refused)
            return self._by(question, groups, None, None)
        self._accepted = True
        return result

    def _by(
        self, question: "Question", groups: Ints, algorithm: Algorithm | None, protocol: Protocol | None
    ) -> NcclResult:
        """The result with one algorithm and protocol."""
        endpoints, routes = self.placement.of_rank, self._routes[0]
        return nccl_collective(
            question.kind,
            question.size,
            groups,
            endpoints,
            self.machine,
            routes,
            algorithm=algorithm,
            protocol=protocol,
            root=question.root,
            settings=machine_settings(self.machine, question.kind),
            item_bytes=LEAST_ITEM_BYTES,
            options=WITH_CAUSES,
            two_level=self.choices.two_level,
            routed=question.routed,
            pairs=question.pairs,
        )

    def check(self) -> None:
        """Checks that NCCL has the requested algorithm for at least one op.

        Raises
        ------
        InputError : NCCL has the requested algorithm for none of the ops
        """
        if self._refused and not self._accepted:
            raise self._refused[0]

    def delay(self, seconds: Floats, overlaps: Iterable[Mapping[str, int]]) -> Floats:
        """Seconds that other lanes may add to an op.

        A lane has one op in progress at a time.  If links are shared equally, a lane adds at most the time of the op;
        if one op waits for another, at most the longest op of the lane; and never more than all ops of the lane that
        may overlap.

        >>> times = NcclTimes(None, None, None, longest={"sum A": 1.0, "sum B": 2.0, "gather": 5.0})
        >>> overlaps = {"sum A": 1}, {"sum A": 9, "sum B": 9}, {"gather": 1}
        >>> [float(times.delay(np.array(1.5), [lane])) for lane in overlaps]
        [1.0, 2.0, 5.0]
        >>> float(times.delay(np.array(3.0), [{"sum A": 9, "sum B": 9}, {"gather": 1}]))
        8.0

        Parameters
        ----------
        seconds : time of the op alone, by member [s]
        overlaps : for each lane, how many instances of its ops may overlap the op
        """
        added = np.zeros_like(seconds)
        for counts in overlaps:
            times = [(count, self.longest.get(name, 0.0)) for name, count in counts.items()]
            every, longest = sum(count * most for count, most in times), max((most for _, most in times), default=0.0)
            added += np.minimum(every, np.maximum(longest, seconds))
        return added
