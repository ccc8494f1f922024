"""Chrome trace of timelines, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Each rank is a process and each lane a thread.  Several timelines, such as the predicted and the measured one, appear
one below the other in one file, each from its own time 0.  Only representative ranks are shown.  Times are microseconds
with nanosecond resolution.  Waiting for the last member of a group is a slice inside the op's slice.  An arrow leads
from each send to the receive that it meets.  Counters of a rank are tracks of its process, and those of the network are
tracks of a process of their own, below the ranks.

Slices of a thread must nest.  Spans of a lane that overlap partially (several library transfers in flight) move to
further threads.

Source: "Trace Event Format", Google, 2016, sections "Duration Events", "Complete Events", "Counter Events",
"Flow Events" and "Metadata Events".
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.timelines.counters import Counter
from quadrille.algorithms.timelines.messages import messages
from quadrille.algorithms.timelines.spans import COMPUTE, Span
from quadrille.algorithms.timelines.timeline import Timeline

SCHEMA = "quadrille/trace/1"

Event = dict[str, Any]


def chrome_trace(
    timelines: Sequence[Timeline], provenance: Provenance | None = None, counters: Sequence[Counter] = ()
) -> dict[str, Any]:
    """Returns the trace of `timelines`; the processes of each timeline follow those of the previous one.

    Parameters
    ----------
    counters : counters of the first timeline, on its clock

    >>> span = Span(0, "multiply", "gemm", "compute", ready=0, start=1, arrival=1, end=3)
    >>> events = chrome_trace([Timeline((span,), "predicted", ranks=1)])["traceEvents"]
    >>> [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    [('multiply', 0.0, 2000000.0)]
    """
    events: list[Event] = []
    first_pid = 0
    for number, timeline in enumerate(timelines):
        counters_here = () if number else counters
        events += _events(timeline, first_pid)
        events += _counted(timeline, first_pid, counters_here)
        first_pid += timeline.ranks + any(counter.rank is None for counter in counters_here)
    # Perfetto reads no further than a key that it does not know, so ours stay inside otherData, last.
    about = {"schema": SCHEMA, **({"provenance": schema_files.plain_tables(provenance)} if provenance else {})}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write_chrome_trace(
    path: str | Path,
    timelines: Sequence[Timeline],
    provenance: Provenance | None = None,
    counters: Sequence[Counter] = (),
) -> None:
    """Writes the trace of `timelines`, with counters of the first one, as JSON, atomically; `-` is stdout."""
    trace = chrome_trace(timelines, provenance, counters)
    schema_files.write_text(path, json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n")


def _events(timeline: Timeline, first_pid: int) -> Iterator[Event]:
    origin = timeline.start
    label = timeline.name or timeline.kind
    ranks: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.unrolled().spans:
        ranks[span.rank].append(span)
    threads: dict[Span, int] = {}
    for rank, spans in sorted(ranks.items()):
        pid = first_pid + rank
        more = (timeline.copies or {}).get(rank, 1) - 1
        yield _metadata("process_name", pid, 0, name=f"{label} rank {rank}" + (f" and {more} like it" if more else ""))
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        for tid, (lane, nested) in enumerate(_threads(spans, origin)):
            yield _metadata("thread_name", pid, tid, name=lane)
            yield _metadata("thread_sort_index", pid, tid, sort_index=tid)
            for span in nested:
                threads[span] = tid
                yield from _slices(span, pid, tid, origin)
    shown = (pair for pair in messages(chain(*ranks.values())) if pair[0].start < pair[1].end)
    for number, (send, receive) in enumerate(shown):
        arrow = {"name": "message", "cat": "message", "id": f"{first_pid}.{number}"}
        at = max(send.start, receive.start)
        yield {"ph": "s", **arrow, **_place(send, send.start - origin, first_pid, threads)}
        yield {"ph": "f", "bp": "e", **arrow, **_place(receive, at - origin, first_pid, threads)}


def _counted(timeline: Timeline, first_pid: int, counters: Sequence[Counter]) -> Iterator[Event]:
    """Yields the counters of a timeline, without equal values in a row.

    The last value within a nanosecond counts, and the last one before the timeline's start is that of its start.
    """
    network_pid, origin = first_pid + timeline.ranks, timeline.start
    if any(counter.rank is None for counter in counters):
        yield _metadata("process_name", network_pid, 0, name=f"{timeline.name or timeline.kind} network")
        yield _metadata("process_sort_index", network_pid, 0, sort_index=network_pid)
    for counter in counters:
        place = {"pid": network_pid if counter.rank is None else first_pid + counter.rank, "tid": 0}
        values: Mapping[str, float] | None = None
        latest = {max(0, _nanoseconds(time - origin)): changed for time, changed in counter.changes}
        for time, changed in latest.items():
            if changed != values:
                values = changed
                yield {"ph": "C", "name": counter.name, **place, "ts": time / 1000, "args": dict(changed)}


def _place(span: Span, time: float, first_pid: int, threads: Mapping[Span, int]) -> Event:
    """The process, the thread and the time of an end of an arrow."""
    return {"pid": first_pid + span.rank, "tid": threads[span], "ts": _microseconds(time)}


def _metadata(kind: str, pid: int, tid: int, **arguments: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments}


def _threads(spans: Sequence[Span], origin: float) -> Iterator[tuple[str, list[Span]]]:
    """Yields the lanes of one rank, compute first, each as one thread or as many as nesting requires."""
    lanes: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        lanes[span.lane].append(span)
    for lane in sorted(lanes, key=lambda lane: (lane != COMPUTE, lane)):
        for number, nested in enumerate(_nested(lanes[lane], origin), start=1):
            yield (lane if number == 1 else f"{lane} ({number})"), nested


def _nested(spans: Sequence[Span], origin: float) -> list[list[Span]]:
    """Returns the spans distributed so that any two slices of one list are disjoint or nested."""
    threads: list[list[Span]] = []
    open_ends: list[list[int]] = []  # of each list, the ends of its slices under way, outermost first
    times = [(_nanoseconds(span.start - origin), _nanoseconds(span.end - origin), span) for span in spans]
    for start, end, span in sorted(times, key=lambda entry: (entry[0], -entry[1])):
        thread = next((thread for thread, ends in enumerate(open_ends) if _fits(ends, start, end)), len(threads))
        if thread == len(threads):
            threads.append([])
            open_ends.append([])
        threads[thread].append(span)
        open_ends[thread] += [end, _nanoseconds(_waited(span) - origin)]
    return threads


def _fits(ends: list[int], start: int, end: int) -> bool:
    """Whether a slice nests in the open slices; removes from `ends` those over by `start`."""
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or end <= ends[-1]


def _waited(span: Span) -> float:
    """Time until which the span waits for the last member of its group."""
    return max(span.start, min(span.arrival, span.end))


def _slices(span: Span, pid: int, tid: int, origin: float) -> Iterator[Event]:
    arguments: Event = {"kind": span.kind, "index": span.index, "ready_us": _microseconds(span.ready - origin)}
    if span.axis is not None:
        arguments |= {"axis": span.axis, "waiting_us": _microseconds(span.waiting_seconds)}
    yield _slice(span.op, span.kind, pid, tid, span.start - origin, span.end - origin, args=arguments)
    if _nanoseconds(span.waiting_seconds) > 0:
        yield _slice("waiting", "waiting", pid, tid, span.start - origin, _waited(span) - origin)


def _slice(name: str, category: str, pid: int, tid: int, start: float, end: float, **more: Event) -> Event:
    begin, stop = _nanoseconds(start), _nanoseconds(end)
    times = {"ts": begin / 1000, "dur": (stop - begin) / 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times, **more}


def _microseconds(seconds: float) -> float:
    return _nanoseconds(seconds) / 1000


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
