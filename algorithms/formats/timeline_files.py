"""Timeline files: a timeline as columns of numbers over a table of distinct ops, which keeps 100,000 spans small."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.renamed_keys import Renames
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.timelines.spans import RepeatedIterations, Span
from quadrille.algorithms.timelines.timeline import Source, Timeline

SCHEMA = "quadrille/timeline/2"
OLDER = {
    "quadrille/timeline/1": Renames(
        {
            "turns[].turn_seconds": "turns[].iteration_seconds",
            "turns[].per_turn": "turns[].per_iteration",
            "turns": "repeated",
        }
    )
}
"""Older schemas, with the keys that were renamed since."""

Count = Annotated[int, Meta(ge=0)]


class _Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: str
    lane: str
    axis: Axis | None = None


class _Columns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry i of every column belongs to span i; `op` is an index into the table of ops."""

    op: list[Count]
    rank: list[Count]
    index: list[Count]
    group: list[Annotated[int, Meta(ge=-1)]]
    ready_seconds: list[float]
    start_seconds: list[float]
    arrival_seconds: list[float]
    end_seconds: list[float]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in self.__struct_fields__}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"columns of different lengths: {', '.join(f'{n} {length}' for n, length in lengths.items())}"
            )
        for index, (start, end) in enumerate(zip(self.start_seconds, self.end_seconds, strict=True)):
            if end < start:
                raise ValueError(f"end_seconds[{index}] = {end}: a time from its start, {start}, is needed")


Stride = tuple[Count, Count, Annotated[int, Meta(gt=0)]]
"""Start, stop and step of a range of ranks."""


class _Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks that one rank represents."""

    rank: Count
    ranges: list[Stride]


class _Repeated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run-length encoded loop iterations."""

    start_seconds: float
    iteration_seconds: Annotated[float, Meta(gt=0)]
    times: Annotated[int, Meta(gt=0)]
    per_iteration: dict[str, Annotated[int, Meta(gt=0)]]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: Source
    ranks: Annotated[int, Meta(gt=0)]
    name: str = ""
    copies: list[tuple[Count, Annotated[int, Meta(gt=0)]]] = []
    members: list[_Members] = []
    repeated: list[_Repeated] = []
    ops: list[_Op]
    spans: _Columns
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        for column, count in (("op", len(self.ops)), ("rank", self.ranks)):
            largest = max(getattr(self.spans, column), default=-1)
            if largest >= count:
                raise ValueError(f"spans.{column} = {largest}: below {count} is needed")
        for index, represented in enumerate(self.members):
            stop = max((range(*ends)[-1] + 1 for ends in represented.ranges if range(*ends)), default=0)
            if stop > self.ranks:
                raise ValueError(f"members[{index}].ranges = {represented.ranges}: ranks below {self.ranks} are needed")


def load_timeline(path: str | Path) -> Timeline:
    """Returns the timeline in the file at `path`; InputError names the first fault."""
    file = schema_files.read(path, _File, SCHEMA, OLDER)
    columns = file.spans
    spans = tuple(
        Span(rank, op.name, op.kind, op.lane, ready, start, arrival, end, op.axis, index, group)
        for op, rank, index, group, ready, start, arrival, end in zip(
            (file.ops[index] for index in columns.op),
            columns.rank,
            columns.index,
            columns.group,
            columns.ready_seconds,
            columns.start_seconds,
            columns.arrival_seconds,
            columns.end_seconds,
            strict=True,
        )
    )
    members = {represented.rank: tuple(range(*ends) for ends in represented.ranges) for represented in file.members}
    repeated = tuple(
        RepeatedIterations(
            represented.start_seconds, represented.iteration_seconds, represented.times, represented.per_iteration
        )
        for represented in file.repeated
    )
    return Timeline(
        spans, file.kind, file.ranks, file.name, dict(file.copies) or None, file.provenance, members or None, repeated
    )


def save_timeline(timeline: Timeline, path: str | Path) -> None:
    """Writes `timeline` as JSON, atomically; `-` is stdout."""
    ops = {(span.op, span.kind, span.lane, span.axis): 0 for span in timeline.spans}
    index_by_op = {op: index for index, op in enumerate(ops)}
    spans = timeline.spans
    columns = _Columns(
        op=[index_by_op[span.op, span.kind, span.lane, span.axis] for span in spans],
        rank=[span.rank for span in spans],
        index=[span.index for span in spans],
        group=[span.group for span in spans],
        ready_seconds=[span.ready for span in spans],
        start_seconds=[span.start for span in spans],
        arrival_seconds=[span.arrival for span in spans],
        end_seconds=[span.end for span in spans],
    )
    file = _File(
        kind=timeline.kind,
        ranks=timeline.ranks,
        name=timeline.name,
        copies=sorted((timeline.copies or {}).items()),
        members=[
            _Members(rank, [(represented.start, represented.stop, represented.step) for represented in ranges])
            for rank, ranges in sorted((timeline.members or {}).items())
        ],
        repeated=[
            _Repeated(iterations.start, iterations.seconds, iterations.times, dict(iterations.per_iteration))
            for iterations in timeline.repeated
        ],
        ops=[_Op(*op) for op in ops],
        spans=columns,
        provenance=timeline.provenance,
    )
    schema_files.write_json(path, file, SCHEMA, indent=-1)
