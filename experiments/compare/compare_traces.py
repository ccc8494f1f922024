"""`quadrille compare PREDICTED TRACE…`: a predicted record beside the traces of one rank or of many.

The time of an iteration is the sum of products, attention, other kernels, exposed communication, exposed copies and
idle time, on both sides; so their differences add up to the difference of the iteration.  Measured times are means over
the ranks that were traced, predicted times those of the mean rank.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.field_units import Seconds, in_unit
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.compare.comparison import PredictedAndMeasured
from quadrille.experiments.compare.predicted_works import CollectiveShare, PredictedWorks, predicted_works
from quadrille.experiments.traces.busy_times import split_time
from quadrille.experiments.traces.collective_calls import CallKind
from quadrille.experiments.traces.rank_traces import AlignedRanks, RankTrace, align
from quadrille.experiments.traces.trace_summary import TraceSummary, summarise

SCHEMA = "quadrille/trace-comparison/1"
State = Literal["products", "attention", "other kernels", "exposed communication", "exposed copies", "idle"]
STATES: tuple[State, ...] = (
    "products",
    "attention",
    "other kernels",
    "exposed communication",
    "exposed copies",
    "idle",
)


class ComparedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one kind and number of members in an iteration, predicted and measured.

    Parameters
    ----------
    members : ranks of the group; null if the trace does not say
    calls, bytes : calls, and bytes of their whole buffers; measured bytes are 0 if the trace does not say
    seconds, exposed_seconds : time, waiting included, and the part beside which nothing computes [s]
    """

    kind: CallKind
    members: int | None
    calls: PredictedAndMeasured
    bytes: Annotated[PredictedAndMeasured, in_unit("B")]
    seconds: Annotated[PredictedAndMeasured, in_unit("s")]
    exposed_seconds: Annotated[PredictedAndMeasured, in_unit("s")]


class ComparedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A traced rank: its times in an iteration [s].

    Parameters
    ----------
    waiting_seconds : time in collectives before their last member arrived; null with a single trace
    transfer_seconds : the rest of the time in these collectives
    delay_seconds : waiting of all others for this rank
    path_seconds : time of the critical path on this rank
    """

    rank: int
    file: str
    seconds: Seconds
    computing_seconds: Seconds
    exposed_communication_seconds: Seconds
    hidden_communication_seconds: Seconds
    idle_seconds: Seconds
    waiting_seconds: Seconds | None = None
    transfer_seconds: Seconds | None = None
    delay_seconds: Seconds | None = None
    path_seconds: Seconds | None = None


class TraceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted record beside traces.

    Parameters
    ----------
    seconds : time of an iteration [s]
    states : time of an iteration by state, which add up to it [s]
    overlap : share of communication beside computation
    path : critical path over the ranks by state [s], of an iteration; empty with a single trace
    """

    predicted_file: str
    seconds: Annotated[PredictedAndMeasured, in_unit("s")]
    states: dict[State, Annotated[PredictedAndMeasured, in_unit("s")]]
    overlap: Annotated[PredictedAndMeasured, in_unit("share")]
    collectives: tuple[ComparedCollective, ...]
    ranks: tuple[ComparedRank, ...]
    path: dict[State, Seconds] = {}
    iterations: int = 1
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None

    @property
    def relative_error(self) -> float:
        """Predicted / measured - 1."""
        return self.seconds.predicted / self.seconds.measured - 1 if self.seconds.measured else 0.0


def compare_traces(record: Record, ranks: Sequence[RankTrace], file: str = "") -> TraceComparison:
    """A predicted record beside the traces of ranks.

    Raises
    ------
    InputError : the record is measured, or two traces are of one rank
    """
    if record.kind != "predicted":
        raise InputError(f"{file} is a measured record: a predicted one is needed beside a trace")
    numbers = [rank.rank for rank in ranks]
    if len(set(numbers)) < len(numbers):
        twice = next(rank for rank in ranks if numbers.count(rank.rank) > 1)
        raise InputError(f"{twice.file}: a second trace of rank {twice.rank}")
    summaries = [summarise(rank.trace, rank.iterations) for rank in ranks]
    predicted = predicted_works(record)
    aligned = align(ranks) if len(ranks) > 1 else None
    remarks = tuple(_remarks(record, ranks, aligned))
    aligned = aligned if aligned is not None and aligned.calls else None
    communication = predicted.by_work.get("communication", 0.0)
    return TraceComparison(
        predicted_file=file,
        seconds=PredictedAndMeasured(predicted.seconds, _mean([row.seconds for row in summaries])),
        states=_states(predicted, summaries),
        overlap=PredictedAndMeasured(
            _hidden_share(communication - predicted.exposed_communication, communication),
            _hidden_share(
                sum(row.hidden_communication_seconds for row in summaries),
                sum(row.communication_seconds for row in summaries),
            ),
        ),
        collectives=_collectives(predicted, summaries),
        ranks=_ranks(ranks, summaries, aligned),
        path=_path_states(ranks, aligned) if aligned else {},
        iterations=min(row.iterations for row in summaries),
        remarks=remarks,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _hidden_share(hidden: float, whole: float) -> float:
    return min(1.0, max(0.0, hidden / whole)) if whole > 0 else 0.0


def _states(predicted: PredictedWorks, summaries: Sequence[TraceSummary]) -> dict[State, PredictedAndMeasured]:
    """The time of an iteration by state; predicted idle time is what the others leave."""
    measured: dict[State, list[float]] = {
        "products": [row.works[0].share_seconds for row in summaries],
        "attention": [row.works[1].share_seconds for row in summaries],
        "other kernels": [row.works[2].share_seconds for row in summaries],
        "exposed communication": [row.exposed_communication_seconds for row in summaries],
        "exposed copies": [row.exposed_copy_seconds for row in summaries],
        "idle": [row.idle_seconds for row in summaries],
    }
    expected: dict[State, float] = {
        "products": predicted.by_work.get("products", 0.0),
        "attention": predicted.by_work.get("attention", 0.0),
        "other kernels": predicted.by_work.get("other kernels", 0.0),
        "exposed communication": predicted.exposed_communication,
        "exposed copies": predicted.exposed_copies,
    }
    expected["idle"] = predicted.seconds - sum(expected.values())
    return {state: PredictedAndMeasured(expected[state], _mean(measured[state])) for state in STATES}


def _collectives(predicted: PredictedWorks, summaries: Sequence[TraceSummary]) -> tuple[ComparedCollective, ...]:
    """Predicted and measured collectives by kind and number of members, those with the longest time first.

    Measured kinds whose members are unknown stand alone.
    """
    measured: dict[tuple[CallKind, int | None], CollectiveShare] = defaultdict(CollectiveShare)
    for summary in summaries:
        for row in summary.collectives:
            members = 2 if row.kind == "send_receive" else row.members
            share = measured[row.kind, members]
            share.calls += row.count / summary.iterations / len(summaries)
            share.bytes += (row.bytes or 0) * row.count / summary.iterations / len(summaries)
            share.seconds += row.seconds / len(summaries)
            share.exposed_seconds += row.exposed_seconds / len(summaries)
    keys = dict.fromkeys((*measured, *predicted.collectives))
    rows = [_collective(key, _predicted_share(predicted, *key), measured.get(key) or CollectiveShare()) for key in keys]
    return tuple(sorted(rows, key=lambda row: -max(row.seconds.measured, row.seconds.predicted)))


def _collective(
    key: tuple[CallKind, int | None], predicted: CollectiveShare, measured: CollectiveShare
) -> ComparedCollective:
    return ComparedCollective(
        kind=key[0],
        members=key[1],
        calls=PredictedAndMeasured(predicted.calls, measured.calls),
        bytes=PredictedAndMeasured(predicted.bytes, measured.bytes),
        seconds=PredictedAndMeasured(predicted.seconds, measured.seconds),
        exposed_seconds=PredictedAndMeasured(predicted.exposed_seconds, measured.exposed_seconds),
    )


def _predicted_share(predicted: PredictedWorks, kind: CallKind, members: int | None) -> CollectiveShare:
    share = None if kind == "unknown" or members is None else predicted.collectives.get((kind, members))
    return share or CollectiveShare()


def _ranks(
    ranks: Sequence[RankTrace], summaries: Sequence[TraceSummary], aligned: AlignedRanks | None
) -> tuple[ComparedRank, ...]:
    rows = []
    for place, (rank, summary) in enumerate(zip(ranks, summaries, strict=True)):
        count = summary.iterations
        over_ranks = {} if aligned is None else {
            "waiting_seconds": aligned.waiting[place] / count,
            "transfer_seconds": aligned.transfers[place] / count,
            "delay_seconds": aligned.delays[place] / count,
            "path_seconds": sum(part.end - part.start for part in aligned.path if part.place == place) / count,
        }  # fmt: skip
        rows.append(
            ComparedRank(
                rank=rank.rank,
                file=rank.file,
                seconds=summary.seconds,
                computing_seconds=summary.computing_seconds,
                exposed_communication_seconds=summary.exposed_communication_seconds,
                hidden_communication_seconds=summary.hidden_communication_seconds,
                idle_seconds=summary.idle_seconds,
                **over_ranks,
            )
        )
    return tuple(rows)


def _path_states(ranks: Sequence[RankTrace], aligned: AlignedRanks) -> dict[State, float]:
    """The time of the critical path by state [s], of an iteration."""
    totals: dict[State, float] = dict.fromkeys(STATES, 0.0)
    for place, rank in enumerate(ranks):
        parts = sorted((part.start, part.end) for part in aligned.path if part.place == place and part.end > part.start)
        if not parts:
            continue
        borders = [time for part in parts for time in part]
        split = split_time(rank.trace, borders)
        count = rank.iterations.count
        for work, seconds in split.by_work.items():
            exposed: State = (
                "exposed communication" if work == "communication" else "exposed copies" if work == "copies" else work
            )
            totals[exposed] += float(seconds[::2].sum()) / count
        totals["idle"] += float(split.idle[::2].sum()) / count
    return totals


def _remarks(record: Record, ranks: Sequence[RankTrace], aligned: AlignedRanks | None) -> list[str]:
    remarks = [f"{rank.file}: {line}" for rank in ranks for line in rank.trace.remarks]
    sizes = {rank.trace.ranks for rank in ranks if rank.trace.ranks is not None}
    if sizes and sizes != {record.ranks}:
        words = ", ".join(map(str, sorted(sizes)))
        remarks.append(f"the trace is of {words} ranks, and the prediction is for {record.ranks}: these are two jobs")
    whole = [rank.file for rank in ranks if rank.iterations.source == "whole trace"]
    if whole:
        remarks.append(f"{whole[0]}: no iterations are known, so the whole trace counts as one")
    if aligned is not None and aligned.unequal:
        words = ", ".join(call.label for call in aligned.unequal[:3])
        remarks.append(f"ranks made different numbers of these calls, which align nothing: {words}")
    if aligned is not None and aligned.unaligned:
        names = ", ".join(str(ranks[place].rank) for place in aligned.unaligned[:10])
        whose = f"rank{'s' if len(aligned.unaligned) > 1 else ''} {names}"
        remarks.append(f"no collectives in common align the clocks of {whose} with that of rank {ranks[0].rank}")
    return remarks
