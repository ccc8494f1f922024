"""`simulate_collective`: exact simulation of one collective, executed by many groups at once on a network.

Theory of operation
-------------------
The algorithm of the collective gives each member a program of steps
(`programs.py`). Members, the flows between them and the links are folded into
equivalence classes (`symmetry/fold.py`). Then

    no flow can slow another     step times are a recurrence, swept over all members (`sweep.py`)
    otherwise                    members go from event to event (`event_walk.py`)

(`run.py` chooses), and if asked for, two more runs tell latency, bandwidth and
contention apart. NCCL's rings and trees are run in this way, too (`nccl/`).

Reductions take no time of their own: libraries fuse them with the transfer that
brings the operand. The cost of a step beside its route is the job's `latency`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.run_length_programs import NOBODY
from quadrille.simulator.collectives.event_walk import PLAIN_EVENTS
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
from quadrille.topologies.routes.paths import Paths


def shapes(programs: MemberPrograms) -> Ints:
    """A label for each member's program without its peers: equal labels if and only if equal programs.

    Whether two runs have the same peer is part of the shape: if two runs send on
    one flow, the second names the slot of the first.
    """
    rows = _shape_rows(programs)
    lengths = np.diff(programs.offsets)
    width = int(lengths.max(initial=0))
    if width == 0:
        return np.zeros(programs.members, dtype=np.int64)
    if (lengths == width).all() and all((row.reshape(-1, width) == row[:width]).all() for row in rows):
        return np.zeros(programs.members, dtype=np.int64)
    _, labels = np.unique(_shape_hashes(rows, programs), return_inverse=True)
    first = firsts(labels)[labels]
    assert np.array_equal(lengths, lengths[first]), "two programs of different lengths have one hash"
    counterpart = np.arange(len(rows[0])) + np.repeat(programs.offsets[first] - programs.offsets[:-1], lengths)
    assert all(np.array_equal(row, row[counterpart]) for row in rows), "two different programs have one hash"
    return labels


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
    """A hash of each program: a sum over its runs of random multiples, by column and position."""
    odd = np.random.default_rng(1).integers(1, 2**63, len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    place = np.arange(len(rows[0])) - np.repeat(programs.offsets[:-1], np.diff(programs.offsets))
    mixed = place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for factor, row in zip(odd, rows, strict=True):
        mixed = (mixed ^ np.ascontiguousarray(row).view(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    hashes: NDArray[np.uint64] = running[programs.offsets[1:]] - running[programs.offsets[:-1]]
    return hashes


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Shortcuts of the simulation, which change results by no more than rounding, and whether causes are found.

    Parameters
    ----------
    fold : simulate one representative of each equivalence class
    fold_time : skip whole periods of time
    local : recompute rates only where something changed
    causes : find latency, bandwidth and contention, too
    plain_events : number of events, or of flows, from which compiled kernels are used
    """

    fold: bool = True
    fold_time: bool = True
    local: bool = True
    causes: bool = False
    plain_events: int = PLAIN_EVENTS


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveResult:
    """The end times of a collective, the use of links, and how it was simulated.

    Parameters
    ----------
    seconds : from the common begin until the last member has ended
    ends : when each rank ends; NaN for a rank that takes no part [ranks]
    method : `sweep` where no flow can slow another, else `events`
    events : number of steps swept, or of ends of latencies and transfers simulated
    transfers : number of all transfers
    rank_classes, flow_classes : number of classes simulated
    rounds : rounds of refinement
    folded : whether there are fewer classes than members
    not_folded_reason : why not, in words
    link_bytes : bytes over each link [links]
    busy_seconds : seconds in which each link carried something; of a link with several classes of flows in a sweep,
        those of its busiest flow, a lower bound [links]
    error_seconds : bound of the error of skipped periods
    causes : parts of `seconds` by cause, if asked for
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
    not_folded_reason: str
    link_bytes: Floats
    busy_seconds: Floats
    error_seconds: float
    causes: Causes | None = None


def simulate_collective(
    jobs: Sequence[CollectiveJob],
    capacities: Floats,
    route: Callable[[Ints, Ints], Paths],
    *,
    endpoints: Ints | None = None,
    rank_columns: Mapping[str, NDArray[np.generic]] | None = None,
    shards: Shards = "even",
    options: SimulationOptions = SimulationOptions(),
    link_name: Callable[[int], str] = "link {}".format,
) -> CollectiveResult:
    """Simulates all groups of all jobs, which begin together.

    Parameters
    ----------
    jobs : the collective and its groups; several jobs if a library runs several rings at once
    capacities : capacity of each link [B/s]
    route : routes from endpoints to endpoints, as `Routes.between`
    endpoints : endpoint of each rank; by default rank i is on endpoint i [ranks]
    rank_columns : attributes that distinguish ranks beside their programs, each [ranks]
    shards : `even` or `exact` sizes of pieces
    link_name : name of a link, for `not_folded_reason`

    Raises
    ------
    Deadlock : the programs do not fit each other
    """
    programs = programs_of(jobs, shards)
    routed = _routed_flows(programs, jobs, capacities, route, endpoints)
    columns: dict[str, NDArray[np.generic]] = {_program_name(programs): shapes(programs)}
    columns |= {name: values[programs.rank] for name, values in (rank_columns or {}).items()}
    folding = _folding(columns, routed.flows, capacities, options, programs, link_name)
    simulated, flows, capacity = programs, routed, capacities
    if folding.folded:
        representatives = quotient(folding, routed.flows)
        simulated = class_programs(
            programs, representatives.rank_of, representatives.flow_of, folding.flows, folding.ranks
        )
        flows = RoutedFlows(
            representatives.flows,
            routed.latency[representatives.flow_of],
            routed.caps[representatives.flow_of],
            routed.alone[representatives.flow_of],
        )
        capacity = capacities[representatives.link_of]
    run_result = run(
        simulated,
        flows,
        capacity,
        fold_time=options.fold_time,
        local=options.local,
        plain_events=options.plain_events,
    )
    ends = _by_rank(programs.rank, run_result.ends[folding.ranks])
    busy = np.zeros(len(capacities))
    crossed = folding.links >= 0
    busy[crossed] = run_result.busy[folding.links[crossed] if folding.folded else crossed]
    carried = programs.flow_bytes()[routed.flows.entry_flows()] * routed.flows.shares
    return CollectiveResult(
        seconds=float(run_result.ends.max(initial=0.0)),
        ends=ends,
        method=run_result.method,
        events=run_result.events,
        transfers=programs.transfers,
        rank_classes=folding.rank_classes,
        flow_classes=folding.flow_classes,
        rounds=folding.rounds,
        folded=folding.folded,
        not_folded_reason=folding.not_folded_reason,
        link_bytes=np.bincount(routed.flows.links, carried, minlength=len(capacities)).astype(np.float64),
        busy_seconds=busy,
        error_seconds=run_result.error_seconds,
        causes=causes_of(simulated, flows, capacity, run_result, folding.ranks, fold_time=options.fold_time)
        if options.causes
        else None,
    )


def _program_name(programs: MemberPrograms) -> str:
    """The name of the attribute in which programs differ."""
    return "its program" if programs.pieces is None else "the sizes of its pieces"


def _routed_flows(
    programs: MemberPrograms,
    jobs: Sequence[CollectiveJob],
    capacities: Floats,
    route: Callable[[Ints, Ints], Paths],
    endpoints: Ints | None,
) -> RoutedFlows:
    """The flows of the programs on their routes."""
    sender, receiver = programs.rank[programs.sender], programs.rank[programs.receiver]
    if endpoints is not None:
        sender, receiver = endpoints[sender], endpoints[receiver]
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
    options: SimulationOptions,
    programs: MemberPrograms,
    link_name: Callable[[int], str],
) -> Folding:
    """The equivalence classes, or every member by itself if folding is switched off."""
    if not options.fold:
        return unfolded(programs.members, flows, len(capacities), "not asked for")

    def rank_name(member: int) -> str:
        return f"rank {programs.rank[member]}"

    return fold(columns, flows, {"bandwidth": capacities}, rank_name=rank_name, link_name=link_name)


def _by_rank(rank: Ints, ends: Floats) -> Floats:
    """The last end of each rank's members; NaN for ranks that are no member."""
    last = np.full(int(rank.max(initial=-1)) + 1, -1.0)
    np.maximum.at(last, rank, ends)
    return np.where(last < 0, np.nan, last)
