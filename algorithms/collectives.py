"""Collectives lowered to steps of point-to-point transfers.

A buffer is cut in pieces, numbered 0, 1, …; in each step a member sends at
most one run of pieces to one peer and receives at most one, which it adds to
what it holds (`reduce`) or puts in place.  Steps are functions of (member,
step): nothing is expanded for more than one member, and nothing is stored.

A member starts step s + 1 when its own send and receive of step s have ended;
a transfer starts when both its ends have reached it.

    ring all-gather of 4      recursive doubling of 4     binomial broadcast of 4
    0 → 1 → 2 → 3 → 0         0 ↔ 1   2 ↔ 3               0 → 1
    three times               then 0 ↔ 2   1 ↔ 3          then 0 → 2, 1 → 3

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005; for the doubling of other sizes than
powers of two: Bruck et al., "Efficient algorithms for all-to-all
communications in multiport message-passing systems", IEEE TPDS 8(11), 1997.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Name = Literal["ring", "doubling", "halving", "halving_doubling", "pipelined", "binomial", "pairwise", "dissemination"]


@dataclass(frozen=True, slots=True)
class Run:
    """Pieces first, first + 1, …, `count` of them, counted around the end of the buffer."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one member does in one step; a side that is None does nothing."""

    send_to: int | None = None
    send: Run | None = None
    receive_from: int | None = None
    receive: Run | None = None
    reduce: bool = False


IDLE = Step()


@dataclass(frozen=True, slots=True)
class Lowered:
    """A collective of `members` as `steps` steps over `pieces` pieces.

    `step(member, s)` is what the member does in step s, 0 <= s < steps.
    """

    algorithm: Name
    members: int
    pieces: int
    steps: int
    step: Callable[[int, int], Step]

    def program(self, member: int) -> Iterator[Step]:
        """The member's steps that do something, in order."""
        for index in range(self.steps):
            step = self.step(member, index)
            if step != IDLE:
                yield step


def all_gather(members: int, algorithm: Name) -> Lowered:
    """At the start member i holds piece i, at the end each holds all."""
    match algorithm:
        case "ring":
            return Lowered("ring", members, members, members - 1, lambda i, s: _ring_gather(members, i, s))
        case "doubling":
            return Lowered("doubling", members, members, _log2(members), lambda i, s: _doubling(members, i, s))
        case _:
            raise _unknown("all_gather", algorithm)


def reduce_scatter(members: int, algorithm: Name) -> Lowered:
    """At the start each member holds a summand of every piece, at the end member i holds the sum of piece i."""
    match algorithm:
        case "ring":
            return Lowered("ring", members, members, members - 1, lambda i, s: _ring_reduce(members, i, s))
        case "halving":
            steps = _log2(members)
            return Lowered(
                "halving", members, members, steps, lambda i, s: _backwards(_doubling(members, i, steps - 1 - s))
            )
        case _:
            raise _unknown("reduce_scatter", algorithm)


def all_reduce(members: int, algorithm: Name) -> Lowered:
    """At the start each member holds a summand, at the end each holds the sum."""
    match algorithm:
        case "ring":
            return _in_turn("ring", reduce_scatter(members, "ring"), all_gather(members, "ring"))
        case "halving_doubling":
            return _in_turn("halving_doubling", reduce_scatter(members, "halving"), all_gather(members, "doubling"))
        case "doubling":
            return _exchange_all(members)
        case _:
            raise _unknown("all_reduce", algorithm)


def broadcast(members: int, algorithm: Name, root: int, pieces: int = 1) -> Lowered:
    """At the start the root holds all pieces, at the end each member does."""
    match algorithm:
        case "binomial":
            return Lowered("binomial", members, 1, _log2(members), lambda i, s: _tree(members, root, i, s))
        case "pipelined":
            steps = pieces + members - 2
            return Lowered("pipelined", members, pieces, steps, lambda i, s: _chain(members, root, pieces, i, s))
        case _:
            raise _unknown("broadcast", algorithm)


def reduce(members: int, algorithm: Name, root: int, pieces: int = 1) -> Lowered:
    """At the start each member holds a summand, at the end the root holds the sum."""
    mirror = broadcast(members, algorithm, root, pieces)
    last = mirror.steps - 1
    return Lowered(algorithm, members, mirror.pieces, mirror.steps, lambda i, s: _backwards(mirror.step(i, last - s)))


def all_to_all(members: int, algorithm: Name) -> Lowered:
    """Member i sends piece j of its source to j, and receives piece j of its result from j."""
    if algorithm != "pairwise":
        raise _unknown("all_to_all", algorithm)
    return Lowered("pairwise", members, members, members - 1, lambda i, s: _pairwise(members, i, s))


def barrier(members: int, algorithm: Name) -> Lowered:
    """No member ends before all have begun; its messages are empty."""
    if algorithm != "dissemination":
        raise _unknown("barrier", algorithm)
    return Lowered("dissemination", members, 1, _log2(members), lambda i, s: _circulate(members, i, s))


def _unknown(kind: str, algorithm: str) -> AssertionError:
    return AssertionError(f"no {kind} by {algorithm}: algorithms are checked where the user's words enter")


def _log2(members: int) -> int:
    """Least s with 2**s >= members."""
    return (members - 1).bit_length()


def _ring_gather(members: int, i: int, s: int) -> Step:
    send, receive = Run((i - s) % members, 1), Run((i - s - 1) % members, 1)
    return Step((i + 1) % members, send, (i - 1) % members, receive)


def _ring_reduce(members: int, i: int, s: int) -> Step:
    send, receive = Run((i - s - 1) % members, 1), Run((i - s - 2) % members, 1)
    return Step((i + 1) % members, send, (i - 1) % members, receive, reduce=True)


def _doubling(members: int, i: int, s: int) -> Step:
    """Step s of the doubling all-gather: what is held doubles.

    Among 2**q members i exchanges with i XOR 2**s; among others it holds the
    pieces i .. i + 2**s - 1, hands them down and gets the next ones from above.
    """
    held = 1 << s
    if members & (members - 1) == 0:
        peer, base = i ^ held, i & ~(held - 1)
        return Step(peer, Run(base, held), peer, Run(base ^ held, held))
    count = min(held, members - held)
    below, above = (i - held) % members, (i + held) % members
    return Step(below, Run(i, count), above, Run(above, count))


def _backwards(step: Step) -> Step:
    """The step in reversed time: a gather's step becomes a reduction's."""
    reduces = step.send is not None
    return Step(step.receive_from, step.receive, step.send_to, step.send, reduce=reduces)


def _in_turn(algorithm: Name, first: Lowered, second: Lowered) -> Lowered:
    def step(i: int, s: int) -> Step:
        return first.step(i, s) if s < first.steps else second.step(i, s - first.steps)

    return Lowered(algorithm, first.members, first.pieces, first.steps + second.steps, step)


def _exchange_all(members: int) -> Lowered:
    """All-reduce of the whole buffer by recursive doubling.

    The members beyond the largest power of two add theirs to a partner before,
    and get the sum from it after.
    """
    core = 1 << (members.bit_length() - 1)
    extra, whole = members - core, Run(0, 1)
    inner = _log2(core)
    outer = 1 if extra else 0

    def step(i: int, s: int) -> Step:
        if outer and s == 0:
            return Step(i - core, whole) if i >= core else _take(i, core, extra)
        if s < outer + inner:
            peer = i ^ (1 << (s - outer))
            return Step(peer, whole, peer, whole, reduce=True) if i < core else IDLE
        if i >= core:
            return Step(receive_from=i - core, receive=whole)
        return Step(i + core, whole) if i < extra else IDLE

    def _take(i: int, core: int, extra: int) -> Step:
        return Step(receive_from=i + core, receive=whole, reduce=True) if i < extra else IDLE

    return Lowered("doubling", members, 1, inner + 2 * outer, step)


def _tree(members: int, root: int, i: int, s: int) -> Step:
    """Step s of the binomial broadcast: the first 2**s members behind the root serve the next 2**s."""
    behind, served, whole = (i - root) % members, 1 << s, Run(0, 1)
    if behind < served:
        return Step((i + served) % members, whole) if behind + served < members else IDLE
    if behind < 2 * served:
        return Step(receive_from=(i - served) % members, receive=whole)
    return IDLE


def _chain(members: int, root: int, pieces: int, i: int, s: int) -> Step:
    """Step s of the pipelined broadcast: the member r behind the root passes on piece s - r."""
    behind = (i - root) % members
    sends = behind < members - 1 and 0 <= s - behind < pieces
    receives = behind > 0 and 0 <= s - behind + 1 < pieces
    return Step(
        (i + 1) % members if sends else None,
        Run(s - behind, 1) if sends else None,
        (i - 1) % members if receives else None,
        Run(s - behind + 1, 1) if receives else None,
    )


def _pairwise(members: int, i: int, s: int) -> Step:
    to, sender = (i + s + 1) % members, (i - s - 1) % members
    return Step(to, Run(to, 1), sender, Run(sender, 1))


def _circulate(members: int, i: int, s: int) -> Step:
    distance = 1 << s
    return Step((i + distance) % members, Run(0, 1), (i - distance) % members, Run(0, 1))
