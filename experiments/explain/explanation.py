"""Why a run takes as long as it does: where the time goes on its critical path and on the mean rank, and full links.

Two views of the same makespan, which need not agree:

critical path   the chain of ops that determines the end (`records/path_segments.py`); only predictions know it
mean rank       what a rank does on average: makespan = computing + exposed communication + exposed waiting + idle

Of a collective they are the last rank and the mean rank (`simulator/collectives/causes.py`), of flows the last flow and
the mean flow (`network/late_flows.py`).

The mean rank is known of measured runs too, but what a message waits for is not:
all of its time is `transfer`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from quadrille.algorithms.formats.record import OpRecord, PathPart, PathSegment, Record
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.compare.attribution import COMPUTING, charged_seconds, charged_waiting, shares
from quadrille.experiments.network.late_flows import LateFlow
from quadrille.experiments.records.path_segments import by_part
from quadrille.experiments.workloads.training_lines import workload_flags

SCHEMA = "quadrille/explanation/1"
MeanPart = Literal["compute", "latency", "bandwidth", "transfer", "contention", "waiting", "other"]
Amount = Annotated[float, Meta(ge=0)]
ROUNDING = 1e-12
"""Part of the makespan below which a rest is none."""
FULL = 0.9
"""A link of which so much is used holds back the run."""


class ExplainedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link, how many carry as much, what each carries [B], how long it is in use if known, bytes / capacity."""

    link: str
    bytes: Amount
    utilisation: Amount
    busy_s: Amount | None = None
    alike: Annotated[int, Meta(gt=0)] = 1


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the time of a run goes.

    Parameters
    ----------
    what : of which kind the file is: a predicted or measured record, a collective, flows
    path_seconds_by_part : of the critical path; adds up to `seconds` where it is known, else empty
    mean_seconds_by_part : of the mean rank; adds up to `seconds`; `other` is below 0 where charged times overlap
    flows : of traffic, those that ended last
    summary : the same in a sentence or two
    lacking : what the file does not say, and how to make one that does
    """

    file: str = ""
    what: str
    seconds: Amount
    path_seconds_by_part: dict[PathPart, Amount] = {}
    critical_path: tuple[PathSegment, ...] = ()
    mean_seconds_by_part: dict[MeanPart, float] = {}
    links: tuple[ExplainedLink, ...] = ()
    flows: tuple[LateFlow, ...] = ()
    summary: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    provenance: Provenance | None = None


def explain_record(made: Record) -> Explanation:
    """Where the time of a recorded run goes."""
    path = by_part(made.critical_path) if made.critical_path else {}
    links = tuple(ExplainedLink(one.link, one.bytes, one.utilisation, one.busy_s) for one in made.links)
    mean = mean_by_part(made.ops, made.seconds, predicted=made.kind == "predicted")
    return Explanation(
        what=f"{made.kind} record",
        seconds=made.seconds,
        path_seconds_by_part=path,
        critical_path=made.critical_path,
        mean_seconds_by_part=mean,
        links=links,
        summary=tuple(summary(made.seconds, path or mean, made.critical_path, links)),
        lacking=tuple(_lacking(made)),
    )


def mean_by_part(ops: Iterable[OpRecord], makespan: float, *, predicted: bool) -> dict[MeanPart, float]:
    """Seconds of the mean rank by part; they add up to the makespan.

    >>> parts = {"transfer": 3.0, "latency": 1.0}
    >>> gather = OpRecord(
    ...     name="gather B",
    ...     kind="all_gather",
    ...     seconds=4.0,
    ...     exposed_seconds=2.0,
    ...     seconds_by_part=parts,
    ...     contention_seconds=2.0,
    ... )
    >>> mean_by_part([gather], 5.0, predicted=True)
    {'compute': 0.0, 'latency': 0.5, 'bandwidth': 0.5, 'contention': 1.0, 'waiting': 0.0, 'other': 3.0}
    """
    found: dict[MeanPart, float] = dict.fromkeys(
        ("compute", "latency", "bandwidth", "contention", "waiting", "other")
        if predicted
        else ("compute", "transfer", "waiting", "other"),
        0.0,
    )
    charged = 0.0
    for op in ops:
        seconds = charged_seconds(op)
        charged += seconds + charged_waiting(op)
        found["waiting"] += charged_waiting(op)
        if not predicted:
            found["compute" if op.kind in COMPUTING else "transfer"] += seconds
            continue
        contended = min(seconds, seconds * op.contention_seconds / op.seconds) if op.seconds else 0.0
        for cause, share in shares(op).items():
            if cause == "transfer":
                found["bandwidth"] += share * seconds - contended
                found["contention"] += contended
            else:
                found[cause] += share * seconds
    idle = makespan - charged
    found["other"] += idle if abs(idle) > ROUNDING * makespan else 0.0
    return found


def summary(
    seconds: float,
    parts: Mapping[PathPart, float] | Mapping[MeanPart, float],
    path: Iterable[PathSegment],
    links: Iterable[ExplainedLink],
) -> Iterable[str]:
    """What stands out, in a sentence or two.

    >>> busy = ExplainedLink("leaf:0>spine:0", bytes=9e9, utilisation=0.95)
    >>> for line in summary(1.0, {"bandwidth": 0.75, "compute": 0.25}, [], [busy]):
    ...     print(line)
    most of the time is bandwidth: 750 ms of 1 s (75 %)
    leaf:0>spine:0 is used to 95 %: it holds the run back
    at full bandwidth its bytes take 950 ms of 1 s
    """
    if parts and seconds > 0:
        largest, most = max(parts.items(), key=lambda part: part[1])
        share = most / seconds
        amount = "most of the time is" if share > 0.5 else "the largest part of the time is"
        where = _where(largest, path)
        yield f"{amount} {largest}: {format_seconds(most)} of {format_seconds(seconds)} ({100 * share:.0f} %){where}"
    first = next((one for one in links if is_link(one.link)), None)
    if first is not None:
        others = f" (and {first.alike - 1} more like it)" if first.alike > 1 else ""
        verdict = "it holds the run back" if first.utilisation >= FULL else "no link is full"
        least = format_seconds(first.utilisation * seconds)
        yield f"{first.link}{others} is used to {100 * first.utilisation:.0f} %: {verdict}"
        yield f"at full bandwidth its bytes take {least} of {format_seconds(seconds)}"


def held(flows: Iterable[LateFlow]) -> Iterable[str]:
    """What held up flows, a sentence for each."""
    for one in flows:
        took = one.finish_s - one.start_s
        if not one.held_by or took <= 0:
            continue
        by, lost = one.held_by[0], one.seconds_by_part.get("contention", 0.0)
        yield (
            f"row {one.row}, {one.source} > {one.destination}, ends last: sharing takes {100 * lost / took:.0f} % "
            f"of its {format_seconds(took)}, most on {by.link}, used to {100 * by.utilisation:.0f} % meanwhile"
        )


def is_link(name: str) -> bool:
    """Whether a resource is a link of the network, not the cores or the memory of a host.

    >>> is_link("leaf:0>spine:1"), is_link("cores of host:0")
    (True, False)
    """
    return ">" in name


def _where(part: str, path: Iterable[PathSegment]) -> str:
    """The op in which most of a part lies."""
    by_op: dict[str, float] = {}
    for one in path:
        seconds = {str(name): amount for name, amount in one.seconds_by_part.items()}.get(part, 0.0)
        by_op[one.op] = by_op.get(one.op, 0.0) + seconds
    op = max(by_op, key=lambda name: by_op[name], default=None)
    return f", most of it in {op!r}" if op is not None and by_op[op] > 0 else ""


def _lacking(made: Record) -> Iterable[str]:
    """What a record does not say, and the command that makes one that does."""
    missing = [what for what, there in (("links", made.links), ("critical path", made.critical_path)) if not there]
    if not missing or (made.ranks == 1 and missing == ["links"]):
        return
    if made.kind == "measured":
        yield f"a measured record knows no {' and no '.join(missing)}; the prediction does: {predicting(made)}"
    else:
        yield f"this record, an older one, has no {' and no '.join(missing)}; make it again: {predicting(made)}"


def predicting(made: Record) -> str:
    """The command that predicts a recorded run.

    >>> from pathlib import Path
    >>> from quadrille.algorithms.formats.record import Options
    >>> from quadrille.algorithms.formats.workload import Matmul, Workload
    >>> predicting(
    ...     Record(
    ...         kind="measured",
    ...         workload=Workload(Matmul(64, 32, 16)),
    ...         dtype="float32",
    ...         passes="forward",
    ...         algorithm="4d",
    ...         grid={"data": 1, "z": 2, "y": 1, "x": 2},
    ...         order=("x", "y", "z", "data"),
    ...         ranks=4,
    ...         options=Options(),
    ...         backend="numpy",
    ...         seconds=1,
    ...         seconds_low=1,
    ...         seconds_high=1,
    ...         flops_per_rank_max=1,
    ...         bytes_sent_per_rank_max=1,
    ...         bytes_sent_total=1,
    ...         peak_bytes_per_rank_max=1,
    ...     )
    ... )
    'quadrille simulate --matmul 64,32,16 --algorithm 4d --grid z=2,x=2 --machine … --json …'
    """
    words = ["quadrille simulate", *workload_flags(made)]
    words.append("--grid " + (",".join(f"{axis}={n}" for axis, n in made.grid.items() if n > 1) or "x=1"))
    if made.order != tuple(axis for axis in DEFAULT_ORDER if axis in made.grid):
        words.append(f"--order {','.join(made.order)}")
    usual = {"dtype": "float32", "passes": "forward"} if made.workload.matmul is not None else {"dtype": ""}
    words += [f"--{flag} {getattr(made, flag)}" for flag, word in usual.items() if getattr(made, flag) != word]
    options = made.options
    words += [f"--gathered {options.gathered}"] if options.gathered != "again" else []
    words += [f"--overlap {','.join(options.overlap)}"] if options.overlap else []
    words += [f"--panel {options.panel}"] if options.panel is not None else []
    words += [f"--collectives {options.collectives}"] if options.collectives != "own:ring" else []
    return " ".join([*words, f"--machine {made.machine.name if made.machine else '…'} --json …"])
