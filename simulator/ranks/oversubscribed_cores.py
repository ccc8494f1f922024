"""Oversubscribed cores: which core each rank computes on, when ranks cannot be pinned to cores evenly.

A rank computes on the core of its last computation.  If it slept since then, another rank computes there, and
some core is idle, it takes the idle core.  Ranks on one core share it.  A core that has been idle for
`emulation.idle_core_seconds` takes a rank from the fullest core.  So of three ranks on two cores that begin equal
products at once, two end after twice the time of a lone product if the product is short, and after about one and
a half times if it is long.  Measured: 2.0 times for 2.3 and 5.8 ms, 1.6 to 1.8 times for 8 to 64 ms (Linux 6.18,
2026-11-23, `1d-column` on x=3 of three hosts).

Source: Lozi et al., "The Linux scheduler: a decade of wasted cores", EuroSys 2016, section 2.
"""

from functools import partial
from math import inf

import simpy
from simpy.events import NORMAL

from quadrille.simulator.engine.engine import Alarm, FlowEngine
from quadrille.simulator.machine.placement import RankPlacement

AWAKE_ISSUES = 2.0
"""A rank that computes again within this many times the issue delay has not slept."""


class OversubscribedCores:
    """Assigns computing ranks to cores as Linux's scheduler does, and sets their speed.

    Parameters
    ----------
    placement : placement of ranks that cannot be pinned to cores evenly
    """

    def __init__(self, env: simpy.Environment, engine: FlowEngine, placement: RankPlacement) -> None:
        self._env, self._engine = env, engine
        host = placement.machine.host
        assert host is not None, "cores are those of a host"
        self._idle_seconds = placement.machine.emulated.idle_core_seconds
        self._awake_seconds = AWAKE_ISSUES * host.issue_seconds
        self._computing: list[list[int]] = [[] for _ in range(placement.cores(0))]
        self._ended = [-inf] * len(placement.of_rank)
        self._idle_since: list[float | None] = [-inf] * len(self._computing)
        self._core_of = [rank % len(self._computing) for rank in range(len(placement.of_rank))]
        self._throttles = [
            engine.add_throttle(1.0, f"pace of rank {rank} on its core") for rank in range(len(placement.of_rank))
        ]

    def throttle(self, rank: int) -> int:
        """Throttle of a rank's computing: its share of its core."""
        return self._throttles[rank]

    def begin(self, rank: int) -> None:
        """Note that a rank begins to compute: it gets a core."""
        core = self._core_of[rank]
        slept = self._env.now - self._ended[rank] > self._awake_seconds
        if slept and self._computing[core]:
            core = next((idle for idle, ranks in enumerate(self._computing) if not ranks), core)
        self._place(rank, core)

    def end(self, rank: int) -> None:
        """Note that a rank stops computing: it leaves its core."""
        core = self._core_of[rank]
        self._computing[core].remove(rank)
        self._ended[rank] = self._env.now
        self._share_core(core)
        if not self._computing[core]:
            self._idle_since[core] = self._env.now
            self._schedule_help()

    def _schedule_help(self) -> None:
        """If several ranks compute on one core, cores that have been idle for long enough will take one."""
        if max(map(len, self._computing)) < 2:
            return
        for core, since in enumerate(self._idle_since):
            if since is not None:
                left = max(0.0, since + self._idle_seconds - self._env.now)
                Alarm(self._env, partial(self._help, core, since), NORMAL, left)

    def _help(self, core: int, since: float) -> None:
        """A core that has been idle since `since` takes a rank from the fullest core."""
        fullest = max(self._computing, key=len)
        if self._idle_since[core] == since and len(fullest) > 1:
            rank = fullest.pop()
            self._share_core(self._core_of[rank])
            self._place(rank, core)

    def _place(self, rank: int, core: int) -> None:
        self._core_of[rank] = core
        self._computing[core].append(rank)
        self._idle_since[core] = None
        self._share_core(core)
        self._schedule_help()

    def _share_core(self, core: int) -> None:
        """Ranks on a core have equal shares of it."""
        for rank in self._computing[core]:
            self._engine.set_throttle(self._throttles[rank], 1.0 / len(self._computing[core]))
