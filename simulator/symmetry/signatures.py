"""What the ranks that follow one program do, op by op and turn by turn.

A loop is known by where it stands: `i#0` is the first loop over i of a program, and
`i#0[3]/j#1` the second loop over j in the fourth turn of that one.  So the loops of two
programs can be told to be the same.
"""

from collections.abc import Callable, Hashable

from quadrille.algorithms.analysis.coordinate_dependence import Dependence, OpDependences
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule

Key = Hashable
LoopPosition = str
"""Where a loop stands."""


def loop_position(program: Program, at: int, within: str = "") -> LoopPosition:
    """Where the loop stands that is an entry of a program, or of the body of a loop.

    >>> body = Repeat("j", 2, ())
    >>> loop_position((body, Repeat("i", 3, ()), body), 2, within="k#0[1]/")
    'k#0[1]/j#1'
    """
    entry = program[at]
    assert isinstance(entry, Repeat)
    before = sum(isinstance(other, Repeat) and other.loop == entry.loop for other in program[:at])
    return f"{within}{entry.loop}#{before}"


def in_turn(loop: LoopPosition, number: int) -> str:
    """Within a turn of a loop: what stands before the names of the loops there."""
    return f"{loop}[{number}]/"


def outer_loops(loop: LoopPosition) -> list[LoopPosition]:
    """The loops around a loop, the outermost first.

    >>> outer_loops("i#0[3]/j#1[0]/k#0")
    ['i#0', 'i#0[3]/j#1']
    """
    ends = [place for place, letter in enumerate(loop) if letter == "["]
    return [loop[:end] for end in ends]


class Looks:
    """What was seen of the ops of one program, each looked at once for each value of the loops that it depends on.

    Parameters
    ----------
    look_at : says what an op does at a moment, as far as it must know; the same for moments that are alike
    """

    def __init__(self, schedule: Schedule, look_at: Callable[[Op, Coordinates, Dependence], Key]) -> None:
        self._needs = schedule.once(OpDependences)
        self._look_at = look_at
        self._seen: dict[Key, int] = {}
        self._numbers: dict[Key, int] = {}

    def turns(self, program: Program, place: Coordinates) -> dict[LoopPosition, list[int]]:
        """A number for what is done in each turn of each loop; an outer loop comes before those in it."""
        found: dict[LoopPosition, list[int]] = {}
        self._through(program, place, "", found)
        return found

    def _through(self, program: Program, place: Coordinates, within: str, found: dict[LoopPosition, list[int]]) -> int:
        """A number for all that is done in a program."""
        done = []
        for at, entry in enumerate(program):
            if not isinstance(entry, Repeat):
                done.append(self.seen(entry, place))
                continue
            loop = loop_position(program, at, within)
            turns = found.setdefault(loop, [])
            for number, index in enumerate(entry.indices(place)):
                turns.append(self._through(entry.body, place.during(entry.loop, index), in_turn(loop, number), found))
            done.append(self._number((id(entry), *turns)))
        return self._number(tuple(done))

    def seen(self, op: Op, moment: Coordinates) -> int:
        """A number for what the op does at that moment."""
        needed = self._needs.of(op)
        key = (id(op), *(moment.indices.get(loop) for loop in sorted(needed.loops)))
        if key not in self._seen:
            self._seen[key] = self._number((id(op), self._look_at(op, moment, needed)))
        return self._seen[key]

    def _number(self, what: Key) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def turning(program: Program) -> set[Axis]:
    """Axes on whose coordinate it depends how often something is repeated, and from which index on."""
    found: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            counts = {entry.count.shared_over} if isinstance(entry.count, Panel) else variables(entry.count)
            told = {*variables(entry.first), *counts}
            found |= {axis for axis in AXES if axis in told} | turning(entry.body)
    return found
