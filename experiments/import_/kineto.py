"""Reader of Kineto's traces, which PyTorch's profiler writes for each rank: JSON of Chrome's format, often in gzip.

| read | of |
|---|---|
| complete events (`"ph": "X"`) of category kernel, gpu_memcpy, gpu_memset | name, device, stream, start, duration |
| arguments `Collective name`, `In msg nelems`, `Out msg nelems`, `dtype`, `Group size`, `Process Group Name` | call |
| events of category cuda_runtime, cuda_driver with a correlation | when the work was launched |
| annotations `ProfilerStep#N` | iterations |
| `distributedInfo`, `deviceProperties` | rank, number of ranks, GPU |

All else is ignored: operators of the CPU, stacks, arrows, counters.

Source: kineto, libkineto/src/output_json.cpp (keys); PyTorch, torch/profiler/profiler.py (`ProfilerStep#`).
"""

import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.event_lists import EventLists, open_trace
from quadrille.experiments.traces.collective_calls import CollectiveCall, collective_call
from quadrille.experiments.traces.device_trace import NO_CALL, DeviceTrace, Floats, Integers, Marks, Work
from quadrille.experiments.traces.kernel_works import kernel_work

MICROSECOND = 1e-6
COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
KERNELS = frozenset({"kernel", "Kernel"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime"})
MARKS = frozenset({"user_annotation", "gpu_user_annotation"})
STEP = re.compile(r"ProfilerStep#\d{1,12}")
MOST_TIME = 1e18
"""Latest time and longest duration that is accepted [us]."""
MOST_WORK = 50_000_000
"""Most kernels and copies of a trace."""
MOST_MARKS = 100_000


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event that are read."""

    stream: Any = None
    device: Any = None
    correlation: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    sent: Any = msgspec.field(name="In msg nelems", default=None)
    received: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    members: Any = msgspec.field(name="Group size", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    peers: Any = msgspec.field(name="Process Group Ranks", default=None)


class TraceEvent(msgspec.Struct, frozen=True, gc=False):
    """The keys of an event that are read."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    args: Arguments | None = None


class Distributed(msgspec.Struct, frozen=True):
    """The rank of a trace."""

    rank: int | None = None
    world_size: int | None = None


class Header(msgspec.Struct, frozen=True):
    """The keys beside the list of events that are read."""

    distributed: Distributed | None = msgspec.field(name="distributedInfo", default=None)
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)


NO_ARGUMENTS = Arguments()
Places = NDArray[np.intp]


def read_kineto(path: str | Path) -> DeviceTrace:
    """The GPU's work in a trace of one rank.

    Raises
    ------
    InputError : a file that cannot be read, is no such trace, or has no kernels
    """
    try:
        with open_trace(path) as file:
            lists = EventLists(file, TraceEvent)
            columns = _Columns()
            for events in lists:
                columns.add(events)
            header = lists.header(Header) or Header()
        return columns.trace(header)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


class _Columns:
    """The columns of a trace while it is read."""

    def __init__(self) -> None:
        self.starts, self.durations = array("d"), array("d")
        self.correlations, self.launch_correlations, self.launch_times = array("q"), array("q"), array("d")
        self.names, self.lanes, self.calls = array("i"), array("i"), array("i")
        self.kernels: dict[tuple[str, bool], int] = {}
        self.streams: dict[tuple[str, str], int] = {}
        self.collectives: dict[CollectiveCall, int] = {}
        self.call_of_arguments: dict[tuple[object, ...], int] = {}
        self.works: list[Work] = []
        self.marks: dict[str, list[tuple[float, float, str]]] = {}
        self.count = 0

    def add(self, events: list[TraceEvent]) -> None:
        """Adds the events of a chunk."""
        for place, event in enumerate(events):
            category = event.cat
            if event.ph != "X":
                continue
            if category in KERNELS or category in COPIES:
                self._check(event, place)
                self._add_work(event, is_copy=category in COPIES)
            elif category in LAUNCHES:
                correlation = (event.args or NO_ARGUMENTS).correlation
                if type(correlation) is int and 0 <= correlation < 2**63:
                    self.launch_correlations.append(correlation)
                    self.launch_times.append(event.ts)
            elif category in MARKS and STEP.fullmatch(event.name):
                self._check(event, place)
                self.marks.setdefault(category, []).append((event.ts, event.ts + event.dur, event.name))
        self.count += len(events)
        if len(self.starts) > MOST_WORK or sum(map(len, self.marks.values())) > MOST_MARKS:
            raise InputError(f"more than {MOST_WORK} kernels or {MOST_MARKS} iterations")

    def _check(self, event: TraceEvent, place: int) -> None:
        """Checks the times of an event; the comparisons are false for NaN, too."""
        if not 0 <= event.dur <= MOST_TIME:
            fault = f"dur {event.dur:g}"
        elif not -MOST_TIME <= event.ts <= MOST_TIME:
            fault = f"ts {event.ts:g}"
        else:
            return
        raise InputError(
            f"event {self.count + place} ({event.name[:60]!r}): {fault}: a duration from 0 us and times up to "
            f"{MOST_TIME:g} us are accepted"
        )

    def _add_work(self, event: TraceEvent, *, is_copy: bool) -> None:
        arguments = event.args or NO_ARGUMENTS
        name = self.kernels.setdefault((event.name, is_copy), len(self.kernels))
        if name == len(self.works):
            self.works.append("copies" if is_copy else kernel_work(event.name))
        lane = (
            _word(event.pid if arguments.device is None else arguments.device),
            _word(event.tid if arguments.stream is None else arguments.stream),
        )
        correlation = arguments.correlation
        self.starts.append(event.ts)
        self.durations.append(event.dur)
        self.names.append(name)
        self.lanes.append(self.streams.setdefault(lane, len(self.streams)))
        self.calls.append(self._call(event.name, arguments) if self.works[name] == "communication" else NO_CALL)
        self.correlations.append(correlation if type(correlation) is int and 0 <= correlation < 2**63 else -1)

    def _call(self, kernel: str, arguments: Arguments) -> int:
        """The index of a kernel's collective."""
        values = (arguments.collective, arguments.sent, arguments.received, arguments.dtype, arguments.members)
        words = (kernel, *values, arguments.group, arguments.peers)
        key = tuple(map(str, words))
        if key not in self.call_of_arguments:
            call = collective_call(*words)
            self.call_of_arguments[key] = self.collectives.setdefault(call, len(self.collectives))
        return self.call_of_arguments[key]

    def trace(self, header: Header) -> DeviceTrace:
        """The trace of all events that were added."""
        if not self.starts:
            raise InputError(
                f"no GPU kernels among {self.count} events: profile with ProfilerActivity.CUDA, and run on a GPU"
            )
        starts = np.frombuffer(self.starts, dtype=np.float64)
        order = np.argsort(starts, kind="stable").astype(np.intp)
        origin = float(starts[order[0]])
        marks = self._marks(origin)
        device = self._main_device(order)
        kept = order if device is None else order[self._on_device(order, device)]
        return DeviceTrace(
            program="PyTorch's profiler",
            starts=(starts[kept] - origin) * MICROSECOND,
            seconds=np.frombuffer(self.durations, dtype=np.float64)[kept] * MICROSECOND,
            names=_integers(self.names, kept),
            lanes=_integers(self.lanes, kept),
            calls=_integers(self.calls, kept),
            launches=(self._launches()[kept] - origin) * MICROSECOND,
            kernels=tuple(name for name, _ in self.kernels),
            works=tuple(self.works),
            streams=tuple(stream if gpu == "?" else f"{gpu}/{stream}" for gpu, stream in self.streams),
            collectives=tuple(self.collectives),
            marks=marks,
            origin=origin * MICROSECOND,
            rank=header.distributed.rank if header.distributed else None,
            ranks=header.distributed.world_size if header.distributed else None,
            device=str(header.devices[0].get("name", ""))[:60] if header.devices else "",
            remarks=() if device is None else (f"the work of GPU {device} counts; other GPUs of this process do not",),
        )

    def _main_device(self, order: Places) -> str | None:
        """The GPU with most work, if the process used several."""
        devices = Counter[str]()
        for (gpu, _), count in zip(self.streams, np.bincount(_integers(self.lanes, order)), strict=True):
            devices[gpu] += int(count)
        return devices.most_common(1)[0][0] if len(devices) > 1 else None

    def _on_device(self, order: Places, device: str) -> Any:
        return np.array([gpu == device for gpu, _ in self.streams], dtype=bool)[_integers(self.lanes, order)]

    def _launches(self) -> Floats:
        """The time of each launch [us]; NaN if it is unknown."""
        launches: Floats = np.full(len(self.starts), np.nan)
        if not self.launch_times:
            return launches
        correlations = np.frombuffer(self.launch_correlations, dtype=np.int64)
        times = np.frombuffer(self.launch_times, dtype=np.float64)
        order = np.argsort(correlations, kind="stable")
        asked = np.frombuffer(self.correlations, dtype=np.int64)
        places = np.minimum(np.searchsorted(correlations[order], asked), len(correlations) - 1)
        return np.where(correlations[order][places] == asked, times[order][places], launches)

    def _marks(self, origin: float) -> Marks:
        """The iterations: those of the launching thread if launches are known, otherwise those of the GPU."""
        thread, gpu = (self.marks.get(category, []) for category in ("user_annotation", "gpu_user_annotation"))
        on_device = not thread or (bool(gpu) and not self.launch_times)
        marks = sorted({name: (start, end, name) for start, end, name in sorted(gpu if on_device else thread)}.values())
        return Marks(
            tuple(name for *_, name in marks),
            tuple((start - origin) * MICROSECOND for start, _, _ in marks),
            tuple((end - origin) * MICROSECOND for _, end, _ in marks),
            on_device,
        )


def _word(value: object) -> str:
    """The number or name of a GPU or a stream; `?` for any other value."""
    is_word = isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**63)
    return str(value)[:40] if is_word else "?"


def _integers(values: "array[int]", order: Places) -> Integers:
    taken: Integers = np.frombuffer(values, dtype=np.int32)[order]
    return taken
