"""`Explanation`: where the time of a run goes, on its critical path and on the mean rank, and which links are full.

Two views divide the same makespan; they need not agree:

critical path   the chain of ops that determines the end (`records/path_segments.py`); known for predictions only
mean rank       the mean over ranks: makespan = computing + exposed communication + exposed waiting + idle time

For a collective the views are the last rank and the mean rank (`simulator/collectives/causes.py`); for flows, the last
flow and the mean flow (`network/late_flows.py`).

Measured runs have the view of the mean rank too, but the causes of their communication time are unknown: all of it is
`transfer`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from quadrille.algorithms.formats.record import OpRecord, PathPart, PathSegment, Record
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER
from quadrille.algorithms.timelines.spans import OutsideOps
from quadrille.algorithms.units import format_percent, format_seconds
from quadrille.experiments.compare.attribution import cause_shares, charged_by_cause, charged_seconds, charged_waiting
from quadrille.experiments.network.late_flows import LateFlow
from quadrille.experiments.records.path_segments import path_seconds_by_cause
from quadrille.experiments.workloads.training_lines import (
    approximation_lines,
    expert_load_lines,
    offload_lines,
    workload_flags,
)

SCHEMA = "quadrille/explanation/1"
MeanPart = Literal["compute", "latency", "bandwidth", "transfer", "contention", "waiting", OutsideOps, "other"]
Amount = Annotated[float, Meta(ge=0)]
ROUNDING = 1e-12
"""Share of the makespan below which a remainder counts as zero."""
FULL = 0.9
"""Utilisation from which a link limits a run."""


class ExplainedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link and its load.

    Parameters
    ----------
    link : name of the link
    bytes : bytes that the link carries
    utilisation : bytes / (bandwidth · makespan)
    busy_s : time in which the link is in use [s]; None if unknown
    alike : number of links with the same load
    """

    link: str
    bytes: Amount
    utilisation: Amount
    busy_s: Amount | None = None
    alike: Annotated[int, Meta(gt=0)] = 1


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The explanation of a run: its time by cause, its critical path, and its busiest links.

    Parameters
    ----------
    what : kind of the file: a predicted or measured record, a collective, flows
    path_seconds_by_part : time of the critical path by cause [s], whose sum is `seconds`; empty if the path is unknown
    mean_seconds_by_part : time of the mean rank by cause [s], whose sum is `seconds`; `other` < 0 if times overlap
    flows : flows of a traffic file that ended last
    summary : the main causes, in one or two sentences
    lacking : information that the file lacks, and the command that makes a file that has it
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


def explain_record(record: Record) -> Explanation:
    """The explanation of a predicted or measured record."""
    path = path_seconds_by_cause(record.critical_path) if record.critical_path else {}
    links = tuple(ExplainedLink(link.link, link.bytes, link.utilisation, link.busy_s) for link in record.links)
    if record.kind == "predicted":
        mean = mean_seconds_by_cause(record.ops, record.seconds, predicted=True)
    else:
        mean = _measured_seconds_by_cause(record)
    return Explanation(
        what=f"{record.kind} record",
        seconds=record.seconds,
        path_seconds_by_part=path,
        critical_path=record.critical_path,
        mean_seconds_by_part=mean,
        links=links,
        summary=(
            *summary_sentences(record.seconds, path or mean, record.critical_path, links),
            *offload_lines(record),
            *expert_load_lines(record),
            *approximation_lines(record),
        ),
        lacking=tuple(_lacking_information(record)),
    )


def mean_seconds_by_cause(ops: Iterable[OpRecord], makespan: float, *, predicted: bool) -> dict[MeanPart, float]:
    """The time of the mean rank by cause [s]; the sum over causes is the makespan, and `other` is the rest.

    >>> parts = {"transfer": 3.0, "latency": 1.0}
    >>> gather = OpRecord(
    ...     name="gather B",
    ...     kind="all_gather",
    ...     seconds=4.0,
    ...     exposed_seconds=2.0,
    ...     seconds_by_part=parts,
    ...     contention_seconds=2.0,
    ... )
    >>> mean_seconds_by_cause([gather], 5.0, predicted=True)
    {'compute': 0.0, 'latency': 0.5, 'bandwidth': 0.5, 'contention': 1.0, 'waiting': 0.0, 'other': 3.0}
    """
    if not predicted:
        return _with_rest(charged_by_cause(ops).items(), makespan)
    seconds_by_part: dict[MeanPart, float] = dict.fromkeys(
        ("compute", "latency", "bandwidth", "contention", "waiting", "other"), 0.0
    )
    for op in ops:
        seconds = charged_seconds(op)
        seconds_by_part["waiting"] += charged_waiting(op)
        contended = min(seconds, seconds * op.contention_seconds / op.seconds) if op.seconds else 0.0
        for cause, share in cause_shares(op).items():
            if cause == "transfer":
                seconds_by_part["bandwidth"] += share * seconds - contended
                seconds_by_part["contention"] += contended
            else:
                seconds_by_part[cause] += share * seconds
    return _with_rest(seconds_by_part.items(), makespan)


def _measured_seconds_by_cause(record: Record) -> dict[MeanPart, float]:
    """The time of the mean rank by cause [s], in and outside ops.

    A record without `ops_seconds_by_part` has ops as medians over repeats alone, whose sum is not quite the median of
    the makespan.
    """
    in_ops = charged_by_cause(record.ops) if record.ops_seconds_by_part is UNSET else record.ops_seconds_by_part
    outside = {} if record.outside_ops_seconds is UNSET else record.outside_ops_seconds
    return _with_rest([*in_ops.items(), *outside.items()], record.seconds)


def _with_rest(seconds_by_part: Iterable[tuple[MeanPart, float]], makespan: float) -> dict[MeanPart, float]:
    """The times by cause with what is left of the makespan in `other`; rounding is left out [s]."""
    complete: dict[MeanPart, float] = dict(seconds_by_part)
    rest = makespan - sum(complete.values())
    charged = complete.pop("other", 0.0)
    return complete | {"other": charged + (rest if abs(rest) > ROUNDING * makespan else 0.0)}


def summary_sentences(
    seconds: float,
    parts: Mapping[PathPart, float] | Mapping[MeanPart, float],
    path: Iterable[PathSegment],
    links: Iterable[ExplainedLink],
) -> Iterable[str]:
    """The main causes of the makespan, in one or two sentences.

    >>> busy = ExplainedLink("leaf:0>spine:0", bytes=9e9, utilisation=0.95)
    >>> for line in summary_sentences(1.0, {"bandwidth": 0.75, "compute": 0.25}, [], [busy]):
    ...     print(line)
    most of the time is bandwidth: 750 ms of 1.00 s (75 %)
    leaf:0>spine:0 is used to 95 %, a mean over the run: it limits the run
    at full bandwidth its bytes take 950 ms of 1.00 s
    """
    if parts and seconds > 0:
        largest, most = max(parts.items(), key=lambda part: part[1])
        share = most / seconds
        amount = "most of the time is" if share > 0.5 else "the largest part of the time is"
        share_text, where = format_percent(share, digits=0), _largest_op_text(largest, path)
        yield f"{amount} {largest}: {format_seconds(most)} of {format_seconds(seconds)} ({share_text}){where}"
    first = next((link for link in links if is_link(link.link)), None)
    if first is not None:
        others = f" (and {first.alike - 1} more like it)" if first.alike > 1 else ""
        verdict = "it limits the run" if first.utilisation >= FULL else "no link is full all the time"
        busy_text = format_seconds(first.utilisation * seconds)
        use = format_percent(first.utilisation, digits=0)
        yield f"{first.link}{others} is used to {use}, a mean over the run: {verdict}"
        yield f"at full bandwidth its bytes take {busy_text} of {format_seconds(seconds)}"


def limiting_link_sentences(flows: Iterable[LateFlow]) -> Iterable[str]:
    """Sentences that name the links that limited the last flows, one for each flow."""
    for flow in flows:
        flow_seconds = flow.finish_s - flow.start_s
        if not flow.held_by or flow_seconds <= 0:
            continue
        by, lost = flow.held_by[0], flow.seconds_by_part.get("contention", 0.0)
        share = f"{format_percent(lost / flow_seconds, digits=0)} of its {format_seconds(flow_seconds)}"
        link = f"{by.link}, which was used to {format_percent(by.utilisation, digits=0)}"
        yield f"row {flow.row}, {flow.source} > {flow.destination}, ends last: sharing takes {share}, mostly on {link}"


def is_link(name: str) -> bool:
    """Whether a resource is a link of the network; else it is the cores or the memory of a host.

    >>> is_link("leaf:0>spine:1"), is_link("cores of host:0")
    (True, False)
    """
    return ">" in name


def _largest_op_text(part: str, path: Iterable[PathSegment]) -> str:
    """The op with most of the time of a cause, as text; empty if the path has none."""
    by_op: dict[str, float] = {}
    for segment in path:
        seconds = {str(name): amount for name, amount in segment.seconds_by_part.items()}.get(part, 0.0)
        by_op[segment.op] = by_op.get(segment.op, 0.0) + seconds
    op = max(by_op, key=lambda name: by_op[name], default=None)
    return f", most of it in {op!r}" if op is not None and by_op[op] > 0 else ""


def _lacking_information(record: Record) -> Iterable[str]:
    """Information that a record lacks, and the command that makes a record that has it."""
    missing = [noun for noun, there in (("links", record.links), ("critical path", record.critical_path)) if not there]
    if not missing or (record.ranks == 1 and missing == ["links"]):
        return
    if record.kind == "measured":
        yield f"a measured record knows no {' and no '.join(missing)}; the prediction does: {simulate_command(record)}"
    elif record.simulation is not None and record.simulation.granularity == "passes" and missing == ["links"]:
        command = f"{simulate_command(record)} --granularity collective"
        yield f"a prediction by passes counts no links; whole steps do: {command}"
    else:
        lacking = " and no ".join(missing)
        yield f"this record is of an older version and has no {lacking}; make it again: {simulate_command(record)}"


def simulate_command(record: Record) -> str:
    """The `quadrille simulate` command that predicts a recorded run.

    >>> from pathlib import Path
    >>> from quadrille.algorithms.formats.record import Options
    >>> from quadrille.algorithms.formats.workload import MatmulSizes, Workload
    >>> simulate_command(
    ...     Record(
    ...         kind="measured",
    ...         workload=Workload(MatmulSizes(64, 32, 16)),
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
    'quadrille simulate --matmul 64,32,16 --algorithm 4d --grid z=2,x=2 --collectives own:ring --machine … --json …'
    """
    words = ["quadrille simulate", *workload_flags(record)]
    words.append("--grid " + (",".join(f"{axis}={n}" for axis, n in record.grid.items() if n > 1) or "x=1"))
    if record.order != tuple(axis for axis in DEFAULT_ORDER if axis in record.grid):
        words.append(f"--order {','.join(record.order)}")
    usual = {"dtype": "float32", "passes": "forward"} if record.workload.matmul is not None else {"dtype": ""}
    words += [f"--{flag} {getattr(record, flag)}" for flag, word in usual.items() if getattr(record, flag) != word]
    options = record.options
    words += [f"--gathered {options.gathered}"] if options.gathered != "again" else []
    words += [f"--overlap {','.join(options.overlap)}"] if options.overlap else []
    words += [f"--panel {options.panel}"] if options.panel is not None else []
    words += [f"--collectives {options.collectives}"]
    return " ".join([*words, f"--machine {record.machine.name if record.machine else '…'} --json …"])
