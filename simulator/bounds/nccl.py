"""A schedule's collectives as NCCL carries them out: each op by all its groups at once, as `quadrille collective` asks.

NCCL's model says how long a collective takes, not when each step of each rank
comes.  So a group begins when its last member has come, and ends as the model
says.  All groups of an op share links; ops of different axes do not meet in the
model.  How much they may is said instead of proven: at the earliest each is
alone, at the latest those that may be under way together go one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.collectives.nccl.tables import Algorithm, Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import Collective, CollectiveKind, collective_kind
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.collectives.nccl.collective import NcclResult, nccl_collective
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats
from quadrille.topologies.routes.routing import Routes

Key = tuple[object, ...]


@dataclass(slots=True, eq=False)
class NcclTimes:
    """NCCL's collectives on a machine.

    Parameters
    ----------
    labels : what NCCL chose, by name of the op
    longest : seconds of an op, by its name
    """

    machine: Machine
    placement: RankPlacement
    choices: Choices
    labels: dict[str, str] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)
    _routes: list[Routes] = field(default_factory=list)
    _known: dict[Key, NcclResult] = field(default_factory=dict)
    _refused: list[InputError] = field(default_factory=list)
    _held: bool = False

    def seconds(self, op: Collective, moment: Coordinates, groups: Ints, size: float) -> Floats:
        """From a group's beginning to the end of each member [groups, members].

        Parameters
        ----------
        size : of the buffer [bytes]

        Raises
        ------
        InputError : NCCL has nothing of the kind
        """
        carried = self._carried(op, moment, groups, size)
        result = carried.result
        ends = np.full(groups.shape, result.seconds)
        if len(result.ends) > groups.max():
            own = result.ends[groups]
            ends = np.where(np.isfinite(own), own + (result.seconds - np.nanmax(result.ends)), ends)
        self.labels[op.name] = carried.label
        self.longest[op.name] = max(float(ends.max()), self.longest.get(op.name, 0.0))
        return ends

    def link_bytes(self, op: Collective, moment: Coordinates, groups: Ints, size: float) -> Floats:
        """What goes over each link."""
        return self._carried(op, moment, groups, size).result.link_bytes

    def _carried(self, op: Collective, moment: Coordinates, groups: Ints, size: float) -> NcclResult:
        kind, root = collective_kind(op), evaluate(getattr(op, "root", 0), moment)
        key = kind, root, size, groups.shape, groups.tobytes()
        if key not in self._known:
            if not self._routes:
                self._routes.append(routes_of(self.machine, self.placement.net))
            self._known[key] = self._asked(kind, size, groups, root)
        return self._known[key]

    def _asked(self, kind: CollectiveKind, size: float, groups: Ints, root: int) -> NcclResult:
        """By the algorithm asked for where NCCL has the kind by it, else as NCCL chooses."""
        wanted = self.choices
        try:
            found = self._by(kind, size, groups, root, wanted.nccl_algorithm, wanted.nccl_protocol)
        except InputError as refused:
            if wanted.nccl_algorithm is None:
                raise
            self._refused.append(refused)
            return self._by(kind, size, groups, root, None, None)
        self._held = True
        return found

    def _by(
        self,
        kind: CollectiveKind,
        size: float,
        groups: Ints,
        root: int,
        algorithm: Algorithm | None,
        protocol: Protocol | None,
    ) -> NcclResult:
        places, routes = self.placement.of_rank, self._routes[0]
        return nccl_collective(
            kind, size, groups, places, self.machine, routes, algorithm=algorithm, protocol=protocol, root=root
        )

    def check(self) -> None:
        """Refuse an algorithm that NCCL has for none of the ops.

        Raises
        ------
        InputError : that one
        """
        if self._refused and not self._held:
            raise self._refused[0]

    def delayed(self, name: str, beside: Mapping[str, int]) -> float:
        """Seconds that an op may wait for others that may be under way with it."""
        return sum(count * self.longest.get(other, 0.0) for other, count in beside.items() if other != name)
