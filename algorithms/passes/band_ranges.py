"""Stretches of ops that are cut in bands together, and the order in which their bands are written.

The last band of a stretch that goes on from sums waits longest for its own, and behind it
the wire has nothing to do until the next stretch has multiplied something.  So what needs
nothing of that band comes before it: the first band of the next stretch, as in a pipeline's
steady turns, and local work from further down, such as the update of a weight whose gradient is there:

    gelu, 2 of 3; multiply C, 2 of 3          sum C, 1 of 3
    multiply D, 1 of 3                        sum C, 2 of 3
    update W
    gelu, 3 of 3; multiply C, 3 of 3          sum D, 1 of 3
    multiply D, 2 of 3                        sum C, 3 of 3
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from quadrille.algorithms.passes.banded_ops import BandedOps, Footprint
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Communication, Compute, Op, lane
from quadrille.algorithms.schedule.program import Program, Repeat, ops

LEAST_BANDS_AHEAD = 3
"""Bands from which on the next stretch may begin early: the sum that it goes on from has a product beside it."""


@dataclass(slots=True)
class BandRange:
    """Ops that are written band by band.

    Parameters
    ----------
    goes_on_from : the sum whose bands it uses
    before : what came later but uses nothing of this: gathers of weights, local work
    aside : what comes behind them: local work that needs all rows, gathers into what they use
    followed : whether what comes next uses the last sum row by row
    """

    goes_on_from: AllReduce | None = None
    before: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    aside: list[Op] = field(default_factory=list)
    followed: bool = False

    @property
    def body(self) -> list[Op]:
        """What an op that comes before it has passed."""
        return [*self.ops, *self.aside]

    @property
    def sum(self) -> AllReduce | None:
        """The sum that ends it, if one does."""
        last = self.ops[-1]
        return last if isinstance(last, AllReduce) else None

    @property
    def awaited(self) -> bool:
        """Whether the sum that ends it is over before anything else begins."""
        return self.sum is not None and not (self.sum.concurrent or self.followed or self.aside)

    def band(self, bands: BandedOps, index: int) -> Iterator[Op]:
        """One band of its ops."""
        for op in self.ops:
            beside = bands.adds_ranks_up(op) and not (self.awaited and index == bands.count - 1)
            yield from bands.band(replace(op, concurrent=True) if isinstance(op, AllReduce) and beside else op, index)


def may_come_before(op: Op, stretch: BandRange, bands: BandedOps) -> bool:
    """Whether an op is local work or a gather that uses nothing of a stretch, nor passes another on its lane."""
    if not isinstance(op, Compute | AllGather) or bands.conflicts(op, *stretch.body):
        return False
    return isinstance(op, Compute) or lane(op) not in map(lane, stretch.body)


def banded_program(parts: Sequence[Op | Repeat | BandRange], bands: BandedOps) -> Program:
    """The parts of a program in order, stretches band by band."""
    program: list[Op | Repeat] = []
    left = list(parts)
    begun: BandRange | None = None
    in_flight = Footprint(bands)
    while left:
        part = left.pop(0)
        in_flight.add(*_released(part, bands))
        if not isinstance(part, BandRange):
            program.append(part)
            continue
        if part is not begun:
            program += [*part.before, *part.band(bands, 0)]
        for index in range(1, bands.count - 1):
            program += part.band(bands, index)
        following = left[0] if left else None
        if isinstance(following, BandRange) and _may_begin(following, part, bands):
            program += [*following.before, *following.band(bands, 0)]
            begun = following
        if part.goes_on_from is not None:
            meanwhile = _meanwhile(part, left, bands, in_flight)
            program += meanwhile
            left = [one for one in left if not any(one is op for op in meanwhile)]
        program += [*part.band(bands, bands.count - 1), *part.aside]
    return tuple(program)


def _ops(part: Op | Repeat | BandRange) -> Iterator[Op]:
    if isinstance(part, BandRange):
        yield from (*part.before, *part.body)
    else:
        yield from ops((part,))


def _released(part: Op | Repeat | BandRange, bands: BandedOps) -> Iterator[Op]:
    """The communication that nothing waits for except what uses its results."""
    for op in _ops(part):
        if isinstance(op, Communication) and not bands.is_local(op) and (op.concurrent or isinstance(part, BandRange)):
            yield op


def _may_begin(following: BandRange, stretch: BandRange, bands: BandedOps) -> bool:
    """Whether a stretch may begin before the last band of the one that it goes on from.

    Their sums are on different lanes: else its own would queue behind what the last band waits for.
    """
    before, between = stretch.goes_on_from, stretch.sum
    if before is None or between is None or following.goes_on_from is not between or lane(before) == lane(between):
        return False
    if bands.count < LEAST_BANDS_AHEAD:
        return False
    return all(may_come_before(op, stretch, bands) for op in following.before) and all(
        bands.go_together(op, *stretch.ops) and not bands.conflicts(op, *stretch.aside) for op in following.ops
    )


def _meanwhile(
    stretch: BandRange, left: Sequence[Op | Repeat | BandRange], bands: BandedOps, in_flight: Footprint
) -> list[Op]:
    """Local work up to the next loop that waits for nothing, and uses nothing of a stretch nor of what it passes."""
    found: list[Op] = []
    passed = Footprint(bands, *stretch.body)
    for part in left:
        if isinstance(part, Repeat):
            break
        if isinstance(part, BandRange) or not bands.is_local(part) or passed.conflicts(part) or in_flight.fills(part):
            passed.add(*_ops(part))
        else:
            found.append(part)
    return found
