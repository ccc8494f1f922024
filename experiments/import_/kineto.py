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
from pathlib import Path
from typing import Any

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.event_lists import EventLists, open_trace
from quadrille.experiments.traces.collective_calls import CollectiveCall, collective_call
from quadrille.experiments.traces.device_trace import DeviceTrace
from quadrille.experiments.traces.trace_columns import TraceColumns

MICROSECOND = 1e-6
COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
KERNELS = frozenset({"kernel", "Kernel"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime"})
MARKS = frozenset({"user_annotation", "gpu_user_annotation"})
STEP = re.compile(r"ProfilerStep#\d{1,12}")
GPU_MARK = "gpu_user_annotation"
USUAL_TIME = 1e17
"""Times that need no closer check [us]."""


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


def read_kineto(path: str | Path) -> DeviceTrace:
    """The GPU's work in a trace of one rank.

    Raises
    ------
    InputError : a file that cannot be read, is no such trace, or has no kernels
    """
    try:
        with open_trace(path) as file:
            lists = EventLists(file, TraceEvent)
            read = _Events()
            for events in lists:
                read.add(events)
            header = lists.header(Header) or Header()
        return read.trace(header)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


class _Events:
    """The columns of the events that were read, and the calls of their collectives."""

    def __init__(self) -> None:
        self.columns = TraceColumns(MICROSECOND)
        self.calls: dict[tuple[str, ...], CollectiveCall] = {}
        self.count = 0

    def add(self, events: list[TraceEvent]) -> None:
        """Adds the events of a chunk."""
        for place, event in enumerate(events):
            category = event.cat
            if event.ph != "X":
                continue
            if category in KERNELS or category in COPIES:
                self._check(event, place)
                self._add_work(event, copy=category in COPIES)
            elif category in LAUNCHES:
                self.columns.add_launch((event.args or NO_ARGUMENTS).correlation, event.ts)
            elif category in MARKS and STEP.fullmatch(event.name):
                self._check(event, place)
                self.columns.add_mark(event.name, event.ts, event.dur, on_device=category == GPU_MARK)
        self.count += len(events)

    def _check(self, event: TraceEvent, place: int) -> None:
        if not (0 <= event.dur <= USUAL_TIME and -USUAL_TIME <= event.ts <= USUAL_TIME):
            self.columns.check_time(event.ts, event.dur, f"event {self.count + place} ({event.name[:60]!r})")

    def _add_work(self, event: TraceEvent, *, copy: bool) -> None:
        arguments = event.args or NO_ARGUMENTS
        gpu = event.pid if arguments.device is None else arguments.device
        stream = event.tid if arguments.stream is None else arguments.stream
        if self.columns.add_work(event.name, gpu, stream, event.ts, event.dur, arguments.correlation, copy=copy):
            self.columns.set_call(self._call(event.name, arguments))

    def _call(self, kernel: str, arguments: Arguments) -> CollectiveCall:
        values = (arguments.collective, arguments.sent, arguments.received, arguments.dtype, arguments.members)
        words = (kernel, *values, arguments.group, arguments.peers)
        key = tuple(map(str, words))
        if key not in self.calls:
            self.calls[key] = collective_call(*words)
        return self.calls[key]

    def trace(self, header: Header) -> DeviceTrace:
        """The trace of all events that were added."""
        if not self.columns.starts:
            raise InputError(
                f"no GPU kernels among {self.count} events: profile with ProfilerActivity.CUDA, and run on a GPU"
            )
        device = str(header.devices[0].get("name", "")) if header.devices else ""
        ranks = header.distributed or Distributed()
        return self.columns.trace("PyTorch's profiler", device, ranks.rank, ranks.world_size)
