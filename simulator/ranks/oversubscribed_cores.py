"""Ranks on cores that they cannot be dealt out to evenly: who computes beside whom, and when an idle core helps.

A rank computes on the core that it computed on last; if it slept since, somebody else computes there, and
another core is idle, on that one.  Ranks on one core share it.  A core that has been idle for
`host.idle_core_seconds` takes one from the core with most.  So of three ranks on two cores that begin products
at once two end after twice the time that it takes alone where that is short, and after one and a half times and
a little where it is long: measured 2.0 times 2.3 and 5.8 ms, 1.6 to 1.8 times 8 to 64 ms (Linux 6.18, 2026-11-23,
products of one size by `1d-column` on x=3 of three hosts).

Source: Lozi et al., "The Linux scheduler: a decade of wasted cores", EuroSys 2016, section 2.
"""

from functools import partial
from math import inf

import simpy
from simpy.events import NORMAL

from quadrille.simulator.engine.engine import Alarm, FlowEngine
from quadrille.simulator.machine.placement import RankPlacement

AWAKE_ISSUES = 2.0
"""A rank that computes again after so many times what passes between two ops has not slept."""


class OversubscribedCores:
    """Who computes on which core.

    Parameters
    ----------
    placement : of ranks that cannot be dealt out to cores evenly
    """

    def __init__(self, env: simpy.Environment, engine: FlowEngine, placement: RankPlacement) -> None:
        self._env, self._engine = env, engine
        host = placement.machine.host
        assert host is not None, "cores are those of a host"
        self._idle_seconds = host.idle_core_seconds
        self._awake_seconds = AWAKE_ISSUES * host.issue_seconds
        self._computing: list[list[int]] = [[] for _ in range(placement.cores(0))]
        self._ended = [-inf] * len(placement.of_rank)
        self._idle_since: list[float | None] = [-inf] * len(self._computing)
        self._core_of = [rank % len(self._computing) for rank in range(len(placement.of_rank))]
        self._paces = [
            engine.add_throttle(1.0, f"pace of rank {rank} on its core") for rank in range(len(placement.of_rank))
        ]

    def pace(self, rank: int) -> int:
        """How fast a rank computes, beside others on its core."""
        return self._paces[rank]

    def begin(self, rank: int) -> None:
        """A rank computes from now on."""
        core = self._core_of[rank]
        slept = self._env.now - self._ended[rank] > self._awake_seconds
        if slept and self._computing[core]:
            core = next((other for other, ranks in enumerate(self._computing) if not ranks), core)
        self._put(rank, core)

    def end(self, rank: int) -> None:
        """A rank does not compute any more."""
        core = self._core_of[rank]
        self._computing[core].remove(rank)
        self._ended[rank] = self._env.now
        self._share_out(core)
        if not self._computing[core]:
            self._idle_since[core] = self._env.now
            self._look_out()

    def _look_out(self) -> None:
        """Where several compute on one core, others that have been idle for long enough will help."""
        if max(map(len, self._computing)) < 2:
            return
        for core, since in enumerate(self._idle_since):
            if since is not None:
                left = max(0.0, since + self._idle_seconds - self._env.now)
                Alarm(self._env, partial(self._help, core, since), NORMAL, left)

    def _help(self, core: int, since: float) -> None:
        """A core that is idle since then takes a rank from the most crowded one."""
        crowded = max(self._computing, key=len)
        if self._idle_since[core] == since and len(crowded) > 1:
            rank = crowded.pop()
            self._share_out(self._core_of[rank])
            self._put(rank, core)

    def _put(self, rank: int, core: int) -> None:
        self._core_of[rank] = core
        self._computing[core].append(rank)
        self._idle_since[core] = None
        self._share_out(core)
        self._look_out()

    def _share_out(self, core: int) -> None:
        """Ranks on a core have even shares of it."""
        for rank in self._computing[core]:
            self._engine.set_throttle(self._paces[rank], 1.0 / len(self._computing[core]))
