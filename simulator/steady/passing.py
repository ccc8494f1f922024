"""Messages of many groups at once, each at a rate of its own: when every member has ended.

A step of all groups is one pass over arrays, in three rows: with every transfer as
fast as it can be, as it typically is, and as slow as it can be.

    start = max(T_sender, T_receiver)      a transfer starts when both its ends are there
    end   = start + latency + bytes / rate
    T'    = max(end of what I send, end of what I get) + what I add

Equal steps need not all be taken.  T' = F(T), where F only takes maxima and adds
constants, so F(T + c) = F(T) + c and F is monotone.  If in one step the members of a
group move on by at least a and at most b, they do so in every further one: after n
more, T + n a <= F^n(T) <= T + n b.  Once a and b are alike to `STEADY`, the rest
is said at once, the lowest row by a and the highest by b: the bounds stay bounds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.folding.labels import Ints
from simulator.steady.costs import Costs, Price
from simulator.steady.rates import HIGH, LOW, TYPICAL
from simulator.steady.stages import Move, Stage
from simulator.steady.waves import Waves, hops_of, table_of
from simulator.steady.work import Part
from topologies.network import Floats

STEADY = 1e-10
"""Relative difference of steps that are taken for alike."""
LOOKS = 8
"""Equal steps between two looks whether all are alike; the first 1, 2, 4 are looked at, too."""
ROWS = 3


@dataclass(slots=True, eq=False)
class Story:
    """What the time of each rank went into, typically [s].

    Parameters
    ----------
    latency, bandwidth, contention : of the messages that it sends, or else gets
    compute : copies and additions
    overhead : what the op costs beside its steps
    """

    latency: Floats
    bandwidth: Floats
    contention: Floats
    compute: Floats
    overhead: Floats

    @classmethod
    def of(cls, ranks: int) -> "Story":
        return cls(*(np.zeros(ranks) for _ in range(5)))

    def columns(self) -> tuple[Floats, ...]:
        return self.latency, self.bandwidth, self.contention, self.compute, self.overhead

    def of_ranks(self, ranks: Ints) -> "Story":
        """The story of some of the ranks."""
        return Story(*(told[ranks] for told in self.columns()))

    def add(self, ranks: Ints, other: "Story") -> None:
        """Adds what some of the ranks did."""
        for told, spent in zip(self.columns(), other.columns(), strict=True):
            told[ranks] += spent


@dataclass(slots=True, eq=False)
class Carried:
    """What went over each channel: bytes, and seconds under way at the typical rate; messages that were looked at.

    `links` are bytes over links that no channel of the schedule tells of.
    """

    bytes: Floats
    seconds: Floats
    links: Floats
    messages: int = 0

    @classmethod
    def none(cls, channels: int, links: int) -> "Carried":
        return cls(np.zeros(channels), np.zeros(channels), np.zeros(links))

    def copy(self) -> "Carried":
        return Carried(self.bytes.copy(), self.seconds.copy(), self.links.copy(), self.messages)

    def add(self, before: "Carried", times: int) -> None:
        """Adds so many times what came since; messages are only those that were looked at."""
        self.bytes += times * (self.bytes - before.bytes)
        self.seconds += times * (self.seconds - before.seconds)
        self.links += times * (self.links - before.links)


class Prepared:
    """What is the same for all instances of an op on these groups: who sends to whom, at what price.

    Parameters
    ----------
    slow : what local work takes longer, by row [3, members of all groups]
    before, after : seconds of the copies of each member
    waves : the messages, where members take turns and steps are of single pieces
    """

    def __init__(self, part: Part, lane: str, costs: Costs) -> None:
        self.part, self.costs, self._lane = part, costs, lane
        ranks = part.ranks.ravel()
        self.slow = np.stack([np.ones(len(ranks)), 1 / costs.local.moving[ranks], 1 / costs.local.least[ranks]])
        self.before, beyond = costs.memory("copy", part.before.ravel(), ranks)
        self.after, later = costs.memory("copy", part.after.ravel(), ranks)
        self.extrapolated = beyond or later
        self.waves: Waves | None = None
        together = not part.in_waves or part.flat or part.empty_messages
        table = None if together else table_of(part.stages, part.ranks.shape[1])
        if table is not None:
            self.waves = Waves(table, hops_of(table, part, lane, costs), len(ranks))
            self.extrapolated |= self.waves.hops.extrapolated
        self._hops: dict[int, list[_Hop]] = {}
        self._typical_of_all: Floats | None = None

    @property
    def numbers(self) -> int:
        """That it keeps, about."""
        if self.waves is not None:
            return 3 * self.waves.hops.moving.size
        return sum(NUMBERS_A_HOP * len(hop.channel) for hops in self._hops.values() for hop in hops)

    def hops(self, at: int) -> list["_Hop"]:
        """Those of a stage; kept where stages are few."""
        if at in self._hops:
            return self._hops[at]
        several = len(self.part.stages) > MOST_STATES or self.part.in_waves
        found = [_Hop(move, self.part, self._lane, self.costs) for move in self.part.stages[at].moves]
        for hop in found:
            hop.typical = self._typical(hop, several=several)
        if len(self.part.stages) <= MOST_STAGES:
            self._hops[at] = found
        return found

    def _typical(self, hop: "_Hop", *, several: bool) -> Floats:
        """Rates of a step's transfers; where steps are many, of all steps' transfers together."""
        channels = self.costs.channels
        if not several:
            return channels.typical(hop.channel)
        if self._typical_of_all is None:
            hops = [_Hop(move, self.part, self._lane, self.costs) for one in self.part.stages for move in one.moves]
            used = np.unique(np.concatenate([one.channel for one in hops]))
            self._typical_of_all = np.zeros(len(channels.keys))
            self._typical_of_all[used] = channels.taking_turns(used)
        return self._typical_of_all[hop.channel]


class Passing:
    """The messages of one instance of an op, of groups that do the same steps.

    Parameters
    ----------
    times : when each member begins [3, members of all groups]
    """

    def __init__(self, prepared: Prepared, carried: Carried, times: Floats) -> None:
        self.times = times
        self.story = Story.of(times.shape[1])
        self.extrapolated = prepared.extrapolated
        self._prepared, self._part, self._carried = prepared, prepared.part, carried
        self._slow = prepared.slow

    def run(self) -> None:
        """From the copies before to those after."""
        self._copy(self._prepared.before)
        if self._prepared.waves is not None:
            self._in_waves(self._prepared.waves)
        else:
            for at, stage in enumerate(self._part.stages):
                self._go(stage, self._prepared.hops(at))
        self._copy(self._prepared.after)

    def _in_waves(self, waves: Waves) -> None:
        """Takes all steps at once."""
        self.times = np.ascontiguousarray(self.times)
        waves.pass_on(self._slow, self.times)
        told = waves.told
        self.story.add(np.arange(told.shape[1]), Story(told[0], told[1], told[2], told[3], np.zeros(told.shape[1])))
        np.add.at(self._carried.bytes, waves.hops.channel.ravel(), waves.carried[0])
        np.add.at(self._carried.seconds, waves.hops.channel.ravel(), waves.carried[1])
        self._carried.messages += waves.messages

    def _go(self, stage: Stage, hops: list["_Hop"]) -> None:
        k = 0
        while k < stage.times:
            before = self.times
            steps = [self._step(hop, k) for hop in hops]
            k += 1
            left = stage.times - k
            looks = self._part.even and left > 1 and (k & (k - 1) == 0 or k % LOOKS == 0)
            if looks and self._steady(self.times - before):
                self._jump(self.times - before, left)
                for hop, step in zip(hops, steps, strict=True):
                    self._note(hop, step, left)
                return

    def _steady(self, moved: Floats) -> bool:
        grouped = moved.reshape(ROWS, *self._part.ranks.shape)
        least, most = grouped.min(axis=2), grouped.max(axis=2)
        return bool((most - least <= STEADY * most).all())

    def _jump(self, moved: Floats, steps: int) -> None:
        grouped = moved.reshape(ROWS, *self._part.ranks.shape)
        by = np.stack([grouped[LOW].min(axis=1), grouped[TYPICAL].mean(axis=1), grouped[HIGH].max(axis=1)])
        self.times = self.times + steps * np.repeat(by, self._part.ranks.shape[1], axis=1)

    def _step(self, hop: "_Hop", k: int) -> "_Step":
        step = hop.step(k)
        sender, receiver = hop.sender[step.moving], hop.receiver[step.moving]
        ends = np.maximum(self.times[:, sender], self.times[:, receiver]) + step.price.latency + step.price.moving
        self.times = self.times.copy()
        self.times[:, sender] = ends
        self.times[:, receiver] = np.maximum(self.times[:, receiver], ends)
        self._carried.messages += len(step.size)
        if step.added.any():
            self.times[:, receiver] += step.added * self._slow[:, receiver]
        self._note(hop, step, 1)
        return step

    def _note(self, hop: "_Hop", step: "_Step", times: int) -> None:
        """Adds a step to the stories, `times` times."""
        sender, receiver = hop.sender[step.moving], hop.receiver[step.moving]
        channel, price = hop.channel[step.moving], step.price
        self._carried.bytes[channel] += times * step.size
        self._carried.seconds[channel] += times * price.moving[TYPICAL]
        self.extrapolated |= price.extrapolated or step.extrapolated
        only = np.ones(self.times.shape[1], dtype=bool)
        only[sender] = False
        gets = only[receiver]
        for told, spent in (
            (self.story.latency, price.latency),
            (self.story.bandwidth, price.alone),
            (self.story.contention, price.moving[TYPICAL] - price.alone),
        ):
            told[sender] += times * spent
            told[receiver[gets]] += times * spent[gets]
        self.story.compute[receiver] += times * step.added

    def _copy(self, seconds: Floats) -> None:
        self.times = self.times + seconds * self._slow
        self.story.compute += seconds


MOST_STATES = 64
"""Stages of one collective whose typical rates are found each by itself."""
MOST_STAGES = 8
"""Of one collective, whose hops are kept for its next instance."""
NUMBERS_A_HOP = 16


@dataclass(slots=True, eq=False)
class _Step:
    """The messages of one step: which of the hop's there are, their price, and what their receivers add [s]."""

    moving: NDArray[np.bool_] | slice
    size: Floats
    price: Price
    added: Floats
    extrapolated: bool


class _Hop:
    """One step of all groups: members by their place among all."""

    def __init__(self, move: Move, part: Part, lane: str, costs: Costs) -> None:
        groups, members = part.ranks.shape
        offset = np.zeros((1, 1), dtype=np.int64) if part.flat else np.arange(groups)[:, None] * members
        copies = 1 if part.flat else groups
        ranks = part.ranks.ravel()
        self.sender = (offset + move.sender).ravel()
        self.receiver = (offset + move.receiver).ravel()
        self.typical: Floats = np.zeros(0)
        self._move, self._part, self._costs, self._copies = move, part, costs, copies
        self._count = np.tile(move.count, copies)
        self._adds = np.tile(move.adds, copies)
        self._to = ranks[self.receiver]
        self.channel: Ints = costs.channels.numbers(lane, ranks[self.sender], self._to)
        self._kept: _Step | None = None

    def step(self, k: int) -> _Step:
        """The k-th step."""
        if self._kept is not None:
            return self._kept
        size = self._size(k)
        there = np.ones(len(size), dtype=bool) if self._part.empty_messages else size > 0
        moving: NDArray[np.bool_] | slice = slice(None) if there.all() else there
        pattern = _patterns(self.sender[moving], self.receiver[moving], self._part.ranks.size)
        price = self._costs.transfer(self.channel[moving], size[moving], pattern, self.typical[moving])
        added, extrapolated = self._costs.memory("add", np.where(self._adds, size, 0.0)[moving], self._to[moving])
        found = _Step(moving, size[moving], price, added, extrapolated)
        if self._part.even or not self._move.stride:
            self._kept = found
        return found

    def _size(self, k: int) -> Floats:
        """Bytes of each message."""
        edges, which, part = self._part.edges, self._part.which[self.sender], self._part
        pieces = edges.shape[1] - 1
        if part.even or part.empty_messages:
            whole: Floats = edges[which, -1] / pieces * self._count
            return whole
        first = np.tile(self._move.pieces(k, pieces), self._copies)
        if self._move.every == 1:
            end = first + self._count
            around: Floats = edges[which, np.maximum(0, end - pieces)] - edges[which, 0]
            around += edges[which, np.minimum(end, pieces)] - edges[which, first]
            return around
        size = np.zeros(len(first))
        for j in range(int(self._count.max(initial=0))):
            piece = (first + j * self._move.every) % pieces
            size += np.where(j < self._count, edges[which, piece + 1] - edges[which, piece], 0.0)
        return size


def _patterns(sender: Ints, receiver: Ints, members: int) -> Ints:
    """Whether each message goes one way (0), to and fro (1) or around (2)."""
    source = np.full(members, -1)
    source[receiver] = sender
    back = source[sender]
    return np.where(back < 0, 0, np.where(back == receiver, 1, 2))
