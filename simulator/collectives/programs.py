"""`MemberPrograms`: the step programs of all members of a collective as arrays, and the flows that they use.

A *member* is one rank in one group; where several collectives run at once (the
rings of a library, say), a rank is a member of each. A member executes its *runs* in
order: a run is a number of steps with the same peers and sizes. A *flow* is all traffic
from one member to another; it carries one transfer at a time.

    3 members in a ring     member   runs             flow   sender  receiver
    all-gather              0        2 x (0, 2)       0      0       1
                            1        2 x (1, 0)       1      1       2
                            2        2 x (2, 1)       2      2       0
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.run_length_programs import NOBODY, Runs
from quadrille.simulator.collectives.piece_sizes import PieceSizes, select, together, total_bytes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PairBytes = tuple[tuple[float, ...], ...]
"""Bytes from each member of a group (row) to each member."""
Shards = Literal["even", "exact"]


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveJob:
    """One collective by one algorithm, executed by many groups of the same size at once.

    Parameters
    ----------
    runs : runs of the members of one group
    groups : rank of each member; no rank twice [groups, members]
    bytes : size of the whole buffer that is cut into pieces
    item_bytes : size of an element, for exact sizes
    wire_factor : bytes on the link for one byte of the buffer (more than 1 for protocols with flags)
    cap : highest rate of a transfer; infinite if only links limit it [B/s]
    latency : latency of each step beside that of its route [s]
    empty_messages : whether transfers of no bytes are executed, as in a barrier
    crosswise : whether it is an all-to-all, in which a member receives its own piece of others' buffers
    at_once : whether a member posts all its messages together; all jobs of a simulation do, or none
    """

    runs: Runs
    groups: Ints
    bytes: float
    item_bytes: int = 1
    wire_factor: float = 1.0
    cap: float = float("inf")
    latency: float = 0.0
    empty_messages: bool = False
    crosswise: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MemberPrograms:
    """The programs of all members: member i has the runs offsets[i] .. offsets[i + 1] - 1.

    Parameters
    ----------
    rank : rank of each member [members]
    offsets : first run of each member [members + 1]
    count : steps of each run [runs]
    cycle : 1 for a run by itself; 2 if its steps alternate with those of the next run, which then has 0 [runs]
    send, receive : flow of each step of a run; NOBODY if nothing is sent or received [runs]
    sent_bytes : bytes of each step on the links, if pieces are even [runs]
    empty : whether transfers of no bytes are executed [runs]
    sender, receiver : member at each end of a flow [flows]
    send_slot, receive_slot : first run in which the sender (receiver) uses the flow, counted from the member's first;
        NOBODY if it never does [flows]
    job : job of each flow [flows]
    pieces : sizes of pieces if they differ from step to step; else None
    """

    rank: Ints
    offsets: Ints
    count: Ints
    cycle: Ints
    send: Ints
    receive: Ints
    sent_bytes: Floats
    empty: Ints
    sender: Ints
    receiver: Ints
    send_slot: Ints
    receive_slot: Ints
    job: Ints
    pieces: PieceSizes | None = None

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.offsets) - 1

    @property
    def flows(self) -> int:
        """Number of flows."""
        return len(self.sender)

    @property
    def transfers(self) -> int:
        """Number of transfers of all members, those of no bytes included."""
        return int(self.count[self.send >= 0].sum())

    def run_members(self) -> Ints:
        """The member of each run."""
        return np.repeat(np.arange(self.members), np.diff(self.offsets))

    def flow_bytes(self) -> Floats:
        """Bytes that each flow carries over its links in all [flows]."""
        used = self.send >= 0
        sizes = self.count * self.sent_bytes if self.pieces is None else total_bytes(self.pieces, self.count)
        sent: Floats = np.bincount(self.send[used], sizes[used], minlength=self.flows).astype(np.float64)
        return sent


def programs_of(jobs: Sequence[CollectiveJob], shards: Shards = "even") -> MemberPrograms:
    """The programs of the members of all groups of all jobs, job by job and group by group.

    Parameters
    ----------
    shards : `even` gives all pieces the mean size; `exact` gives whole elements, and the first pieces one more each if
        the size is not divisible
    """
    uneven = shards == "exact" and any((job.bytes / job.item_bytes) % job.runs.pieces for job in jobs)
    parts = [_job_programs(number, job, uneven=uneven) for number, job in enumerate(jobs)]
    if len(parts) == 1:
        return parts[0]
    runs = np.cumsum([0, *(len(part.count) for part in parts)])
    members = np.cumsum([0, *(part.members for part in parts)])
    flows = np.cumsum([0, *(part.flows for part in parts)])
    shifted = [
        replace(
            part,
            offsets=part.offsets[:-1] + runs[i],
            send=np.where(part.send >= 0, part.send + flows[i], NOBODY),
            receive=np.where(part.receive >= 0, part.receive + flows[i], NOBODY),
            sender=part.sender + members[i],
            receiver=part.receiver + members[i],
        )
        for i, part in enumerate(parts)
    ]
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in shifted])
        for column in fields(MemberPrograms)
        if column.name != "pieces"
    }
    columns["offsets"] = np.append(columns["offsets"], runs[-1])
    exact = [part.pieces for part in parts if part.pieces is not None]
    return MemberPrograms(**columns, pieces=together(exact) if exact else None)


def _job_programs(number: int, job: CollectiveJob, *, uneven: bool) -> MemberPrograms:
    """The programs of one group, repeated with the ranks of each group."""
    runs, (groups, members) = job.runs, job.groups.shape
    if job.bytes == 0 and not job.empty_messages:
        runs = _empty_programs(runs)
    owner = np.repeat(np.arange(members), np.diff(runs.offsets))
    send, receive, sender, receiver = _numbered(runs, owner, members)
    flows = len(sender)
    local = np.arange(len(owner)) - runs.offsets[owner]
    slots = [_first_use(side, local, flows) for side in (send, receive)]

    def for_all_groups(values: NDArray[np.generic]) -> NDArray:  # type: ignore[type-arg]
        return np.tile(values, groups)

    def shifted(values: Ints, step: int) -> Ints:
        """Numbers of one group, repeated for all groups and shifted by `step` from group to group; -1 stays."""
        spread = values + step * np.arange(groups)[:, None]
        return np.where(values < 0, NOBODY, spread).ravel() if len(values) and values.min() < 0 else spread.ravel()

    piece_bytes = job.bytes / runs.pieces * job.wire_factor
    return MemberPrograms(
        rank=job.groups.ravel(),
        offsets=np.append(shifted(runs.offsets[:-1], len(owner)), groups * len(owner)),
        count=for_all_groups(runs.count),
        cycle=for_all_groups(runs.cycle),
        send=shifted(send, flows),
        receive=shifted(receive, flows),
        sent_bytes=for_all_groups(runs.pieces_sent * piece_bytes),
        empty=np.full(groups * len(owner), int(job.empty_messages)),
        sender=shifted(sender, members),
        receiver=shifted(receiver, members),
        send_slot=for_all_groups(slots[0]),
        receive_slot=for_all_groups(slots[1]),
        job=np.full(groups * flows, number),
        pieces=_piece_sizes(job, runs, groups) if uneven else None,
    )


def _numbered(runs: Runs, owner: Ints, members: int) -> tuple[Ints, Ints, Ints, Ints]:
    """The flow that each run sends on and receives on, and the sender and receiver of each flow."""
    sends = np.where(runs.send_to >= 0, owner * members + runs.send_to, NOBODY)
    receives = np.where(runs.receive_from >= 0, runs.receive_from * members + owner, NOBODY)
    keys = _distinct(sends)
    missing = np.setdiff1d(_distinct(receives), keys) if not _all_in(receives, keys) else keys[:0]
    if len(missing):
        keys = np.union1d(keys, missing)
    return _positions(keys, sends), _positions(keys, receives), keys // max(1, members), keys % max(1, members)


def _distinct(keys: Ints) -> Ints:
    """The different keys from 0, sorted; neighbours are often equal, or already sorted."""
    kept = keys[np.flatnonzero(keys != np.concatenate([[NOBODY], keys[:-1]]))]
    kept = kept[kept >= 0]
    return kept if (kept[1:] > kept[:-1]).all() else np.unique(kept)


def _all_in(keys: Ints, sorted_keys: Ints) -> bool:
    """Whether all keys from 0 are among these sorted keys."""
    if not len(sorted_keys):
        return not (keys >= 0).any()
    nearest = sorted_keys[np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)]
    return bool(((nearest == keys) | (keys < 0)).all())


def _positions(sorted_keys: Ints, keys: Ints) -> Ints:
    """The index of each key in these sorted keys; NOBODY for a key below 0."""
    return np.where(keys < 0, NOBODY, np.searchsorted(sorted_keys, keys))


def _first_use(side: Ints, local: Ints, flows: int) -> Ints:
    """The first run, within its member, that uses each flow on this side."""
    slot = np.full(flows, NOBODY)
    used = np.flatnonzero(side >= 0)[::-1]
    slot[side[used]] = local[used]
    return slot


def _empty_programs(runs: Runs) -> Runs:
    """Programs in which no member does anything."""
    nothing = {column.name: getattr(runs, column.name)[:0] for column in fields(Runs) if column.name != "pieces"}
    return replace(runs, **nothing | {"offsets": np.zeros_like(runs.offsets)})


def _piece_sizes(job: CollectiveJob, runs: Runs, groups: int) -> PieceSizes:
    """The pieces that each run of all groups moves, and their sizes."""
    elements = round(job.bytes / job.item_bytes)
    member = np.repeat(np.arange(runs.members), np.diff(runs.offsets))
    own = np.where(runs.receive_from >= 0, member, NOBODY)

    def everywhere(value: int) -> Ints:
        return np.full(groups * len(runs.count), value)

    return PieceSizes(
        sent=np.tile(runs.pieces_sent, groups),
        received=np.tile(runs.pieces_received, groups),
        first_sent=np.tile(runs.first_piece_sent, groups),
        first_received=np.tile(own if job.crosswise else runs.first_piece_received, groups),
        stride=np.tile(runs.piece_stride, groups),
        spacing=np.tile(runs.piece_spacing, groups),
        origin=np.tile(runs.origin, groups),
        around=np.tile(runs.modulus, groups),
        pieces=everywhere(runs.pieces),
        elements=everywhere(elements // runs.pieces),
        longer=everywhere(elements % runs.pieces),
        element_bytes=np.full(groups * len(runs.count), float(job.item_bytes * job.wire_factor)),
    )


def class_programs(
    programs: MemberPrograms, member_of: Ints, flow_of: Ints, classes: Ints, members: Ints
) -> MemberPrograms:
    """The programs of one member of each class, in terms of classes of flows and members.

    Parameters
    ----------
    member_of, flow_of : a member, and a flow, of each class
    classes, members : class of each flow, and of each member
    """
    lengths = np.diff(programs.offsets)[member_of]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(offsets[-1]) + np.repeat(programs.offsets[member_of] - offsets[:-1], lengths)

    def side(flows: Ints) -> Ints:
        return np.where(flows >= 0, classes[flows], NOBODY)

    return MemberPrograms(
        rank=programs.rank[member_of],
        offsets=offsets,
        count=programs.count[rows],
        cycle=programs.cycle[rows],
        send=side(programs.send[rows]),
        receive=side(programs.receive[rows]),
        sent_bytes=programs.sent_bytes[rows],
        empty=programs.empty[rows],
        sender=members[programs.sender[flow_of]],
        receiver=members[programs.receiver[flow_of]],
        send_slot=programs.send_slot[flow_of],
        receive_slot=programs.receive_slot[flow_of],
        job=programs.job[flow_of],
        pieces=None if programs.pieces is None else select(programs.pieces, rows),
    )
