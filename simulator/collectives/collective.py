"""Which programs are the same but for their peers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.runs import NOBODY
from quadrille.simulator.collectives.piece_sizes import PieceSizes
from quadrille.simulator.collectives.programs import (
    CollectiveJob,
    Floats,
    Ints,
    MemberPrograms,
    Shards,
    class_programs,
    programs_of,
)
from quadrille.simulator.collectives.run import Causes, RoutedFlows, causes_of, run
from quadrille.simulator.symmetry.fold import Folding, fold, quotient, unfolded
from quadrille.simulator.symmetry.partition import Columns, Flows, firsts


def shapes(programs: MemberPrograms) -> Ints:
    """A number for each member's program without its peers: equal numbers, equal programs, exactly.

    Which peers are the same again is part of the shape: of two runs that send
    on one flow the second names the slot of the first.
    """
    rows = _shape_rows(programs)
    lengths = np.diff(programs.offsets)
    width = int(lengths.max(initial=0))
    if width == 0:
        return np.zeros(programs.members, dtype=np.int64)
    if (lengths == width).all() and all((row.reshape(-1, width) == row[:width]).all() for row in rows):
        return np.zeros(programs.members, dtype=np.int64)
    _, found = np.unique(_shape_hashes(rows, programs), return_inverse=True)
    first = firsts(found)[found]
    assert np.array_equal(lengths, lengths[first]), "two programs of different lengths have one hash"
    likewise = np.arange(len(rows[0])) + np.repeat(programs.offsets[first] - programs.offsets[:-1], lengths)
    assert all(np.array_equal(row, row[likewise]) for row in rows), "two different programs have one hash"
    return found


def _shape_rows(programs: MemberPrograms) -> list[NDArray[np.generic]]:
    """All that two programs of one shape have in common, by run."""
    slots = []
    for side, slot in ((programs.send, programs.send_slot), (programs.receive, programs.receive_slot)):
        slots.append(np.where(side >= 0, slot[side], NOBODY) if programs.flows else side)
    rows = [programs.count, programs.cycle, *slots, programs.empty]
    if programs.pieces is None:
        return [*rows, programs.sent_bytes]
    return rows + [getattr(programs.pieces, column.name) for column in fields(PieceSizes)]


def _shape_hashes(rows: list[NDArray[np.generic]], programs: MemberPrograms) -> NDArray[np.uint64]:
    """A hash of each program: a sum over its runs of random multiples, by column and place."""
    odd = np.random.default_rng(1).integers(1, 2**63, len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    place = np.arange(len(rows[0])) - np.repeat(programs.offsets[:-1], np.diff(programs.offsets))
    mixed = place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for factor, row in zip(odd, rows, strict=True):
        mixed = (mixed ^ np.ascontiguousarray(row).view(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    hashes: NDArray[np.uint64] = running[programs.offsets[1:]] - running[programs.offsets[:-1]]
    return hashes


class Paths(Protocol):
    """Routes of flows: links offsets[f] .. offsets[f + 1] - 1 and what a byte takes of them; latency [s]."""

    @property
    def offsets(self) -> Ints: ...
    @property
    def links(self) -> Ints: ...
    @property
    def shares(self) -> Floats: ...
    @property
    def latency(self) -> Floats: ...


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How to simulate; none of it changes the result by more than rounding.

    Parameters
    ----------
    fold : one representative for what behaves alike
    fold_time : whole periods at once
    local : rates are found anew only where something changed
    causes : find also what the time is made of
    """

    fold: bool = True
    fold_time: bool = True
    local: bool = True
    causes: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveResult:
    """What came of a collective.

    Parameters
    ----------
    seconds : from the common beginning until the last member has ended
    ends : when each rank has ended; NaN for one that takes no part [ranks]
    method : `sweep` where no flow can hold back another, else `events`
    events : steps of members swept, or ends of latencies and transfers, that were simulated
    transfers : all that there are
    rank_classes, flow_classes : how many were simulated
    rounds : of refinement
    folded, why_not : whether classes are fewer than what they stand for, and if not why
    link_bytes : what went over each link [links]
    busy_seconds : how long each link carried something; of a link with several classes of flows that a sweep
        simulated, how long its busiest flow did, which is a lower bound [links]
    error_seconds : bound of what jumps in time may have cost
    causes : what `seconds` is made of, where it was asked for
    """

    seconds: float
    ends: Floats
    method: Literal["sweep", "events"]
    events: int
    transfers: int
    rank_classes: int
    flow_classes: int
    rounds: int
    folded: bool
    why_not: str
    link_bytes: Floats
    busy_seconds: Floats
    error_seconds: float
    causes: Causes | None = None


def simulate_collective(
    jobs: Sequence[CollectiveJob],
    capacities: Floats,
    route: Callable[[Ints, Ints], Paths],
    *,
    places: Ints | None = None,
    rank_columns: Mapping[str, NDArray[np.generic]] | None = None,
    shards: Shards = "even",
    ways: SimulationOptions = SimulationOptions(),
    link_name: Callable[[int], str] = "link {}".format,
) -> CollectiveResult:
    """All groups of all jobs at once, begun together.

    Parameters
    ----------
    jobs : the lowered collective and its groups; several where a library runs several rings at once
    capacities : of each link [B/s]
    route : from places to places, as `Routes.between`
    places : of each rank; by default rank i lives on place i [ranks]
    rank_columns : what tells ranks apart beside their programs, each column [ranks]
    shards : `even` or `exact` sizes of pieces
    link_name : for `why_not`

    Raises
    ------
    Deadlock : programs that do not fit each other
    """
    programs = programs_of(jobs, shards)
    moves = _moves(programs, jobs, capacities, route, places)
    columns: dict[str, NDArray[np.generic]] = {_program_name(programs): shapes(programs)}
    columns |= {name: values[programs.rank] for name, values in (rank_columns or {}).items()}
    folding = _folding(columns, moves.flows, capacities, ways, programs, link_name)
    chosen, near, capacity = programs, moves, capacities
    if folding.folded:
        few = quotient(folding, moves.flows)
        chosen = class_programs(programs, few.rank_of, few.flow_of, folding.flows, folding.ranks)
        near = RoutedFlows(few.flows, moves.latency[few.flow_of], moves.caps[few.flow_of], moves.alone[few.flow_of])
        capacity = capacities[few.link_of]
    ran = run(chosen, near, capacity, fold_time=ways.fold_time, local=ways.local)
    ends = _by_rank(programs.rank, ran.ends[folding.ranks])
    busy = np.zeros(len(capacities))
    crossed = folding.links >= 0
    busy[crossed] = ran.busy[folding.links[crossed] if folding.folded else crossed]
    carried = programs.flow_bytes()[moves.flows.entry_flows()] * moves.flows.shares
    return CollectiveResult(
        seconds=float(ran.ends.max(initial=0.0)),
        ends=ends,
        method=ran.method,
        events=ran.events,
        transfers=programs.transfers,
        rank_classes=folding.rank_classes,
        flow_classes=folding.flow_classes,
        rounds=folding.rounds,
        folded=folding.folded,
        why_not=folding.why_not,
        link_bytes=np.bincount(moves.flows.links, carried, minlength=len(capacities)).astype(np.float64),
        busy_seconds=busy,
        error_seconds=ran.error_seconds,
        causes=causes_of(chosen, near, capacity, ran, folding.ranks, fold_time=ways.fold_time) if ways.causes else None,
    )


def _program_name(programs: MemberPrograms) -> str:
    return "its program" if programs.pieces is None else "the sizes of its pieces"


def _moves(
    programs: MemberPrograms,
    jobs: Sequence[CollectiveJob],
    capacities: Floats,
    route: Callable[[Ints, Ints], Paths],
    places: Ints | None,
) -> RoutedFlows:
    """The flows of programs on their routes."""
    sender, receiver = programs.rank[programs.sender], programs.rank[programs.receiver]
    if places is not None:
        sender, receiver = places[sender], places[receiver]
    paths = route(sender, receiver)
    latency = paths.latency + np.array([job.latency for job in jobs])[programs.job]
    caps = np.array([job.cap for job in jobs], dtype=np.float64)[programs.job]
    columns: Columns = {
        "send slot": programs.send_slot,
        "receive slot": programs.receive_slot,
        "latency": latency,
        "cap": caps,
    }
    flows = Flows(programs.sender, programs.receiver, paths.offsets, paths.links, paths.shares, columns)
    alone = caps.copy()
    np.minimum.at(alone, flows.entry_flows(), capacities[paths.links] / paths.shares)
    return RoutedFlows(flows, latency, caps, alone)


def _folding(
    columns: Columns,
    flows: Flows,
    capacities: Floats,
    ways: SimulationOptions,
    programs: MemberPrograms,
    link_name: Callable[[int], str],
) -> Folding:
    if not ways.fold:
        return unfolded(programs.members, flows, len(capacities), "not asked for")

    def rank_name(member: int) -> str:
        return f"rank {programs.rank[member]}"

    return fold(columns, flows, {"bandwidth": capacities}, rank_name=rank_name, link_name=link_name)


def _by_rank(rank: Ints, ends: Floats) -> Floats:
    """The last end of each rank's members; NaN for ranks that are no member."""
    found = np.full(int(rank.max(initial=-1)) + 1, -1.0)
    np.maximum.at(found, rank, ends)
    return np.where(found < 0, np.nan, found)
