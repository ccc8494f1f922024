"""`TraceColumns`: the columns of a trace while a reader fills them."""

from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.experiments.traces.collective_calls import CollectiveCall
from quadrille.experiments.traces.device_trace import NO_CALL, DeviceTrace, Floats, Integers, Marks, Work
from quadrille.experiments.traces.kernel_works import kernel_work

Places = NDArray[np.intp]
NO_GPU = "?"
MOST_TIME = 1e12
"""Latest time and longest duration that is accepted [s]."""
MOST_WORK = 50_000_000
"""Most kernels and copies of a trace."""
MOST_MARKS = 100_000
MOST_IDENTIFIER = 2**63


class TraceColumns:
    """The columns of a trace.

    Parameters
    ----------
    unit : seconds of the reader's unit of time
    """

    def __init__(self, unit: float) -> None:
        self.unit = unit
        self.starts, self.durations = array("d"), array("d")
        self.correlations, self.launch_correlations, self.launch_times = array("q"), array("q"), array("d")
        self.names, self.lanes, self.calls = array("i"), array("i"), array("i")
        self.kernels: dict[tuple[str, bool], int] = {}
        self.streams: dict[tuple[str, str], int] = {}
        self.collectives: dict[CollectiveCall, int] = {}
        self.works: list[Work] = []
        self.marks: dict[bool, list[tuple[float, float, str]]] = {True: [], False: []}

    def check_time(self, start: float, duration: float, place: str) -> None:
        """Checks the times of an event; the comparisons are false for NaN, too.

        Raises
        ------
        InputError : a negative duration, or a time beyond `MOST_TIME`; `place` begins the message
        """
        most = MOST_TIME / self.unit
        if not 0 <= duration <= most:
            fault = f"duration {duration:g}"
        elif not -most <= start <= most:
            fault = f"start {start:g}"
        else:
            return
        raise InputError(f"{place}: {fault}: durations from 0 and times up to {most:g} are accepted")

    def add_work(
        self, name: str, gpu: object, stream: object, start: float, duration: float, correlation: object, *, copy: bool
    ) -> bool:
        """Adds a kernel or a copy; whether it is a collective's kernel, whose call `set_call` then adds."""
        number = self.kernels.setdefault((name, copy), len(self.kernels))
        if number == len(self.works):
            self.works.append("copies" if copy else kernel_work(name))
        self.starts.append(start)
        self.durations.append(duration)
        self.names.append(number)
        self.lanes.append(self.streams.setdefault((_word(gpu), _word(stream)), len(self.streams)))
        self.calls.append(NO_CALL)
        self.correlations.append(correlation if _is_identifier(correlation) else -1)  # type: ignore[arg-type]
        if len(self.starts) > MOST_WORK:
            raise InputError(f"more than {MOST_WORK} kernels and copies")
        return self.works[number] == "communication"

    def set_call(self, call: CollectiveCall) -> None:
        """Sets the collective of the kernel that was added last."""
        self.calls[-1] = self.collectives.setdefault(call, len(self.collectives))

    def add_launch(self, correlation: object, start: float) -> None:
        """Adds the launch of a kernel or a copy."""
        if _is_identifier(correlation):
            self.launch_correlations.append(correlation)  # type: ignore[arg-type]
            self.launch_times.append(start)

    def add_mark(self, name: str, start: float, duration: float, *, on_device: bool) -> None:
        """Adds an annotated iteration."""
        self.marks[on_device].append((start, start + duration, name))
        if len(self.marks[on_device]) > MOST_MARKS:
            raise InputError(f"more than {MOST_MARKS} annotated iterations")

    def trace(self, program: str, device: str, rank: int | None = None, ranks: int | None = None) -> DeviceTrace:
        """The trace of all work that was added, of which there is some."""
        starts = np.frombuffer(self.starts, dtype=np.float64)
        order = np.argsort(starts, kind="stable").astype(np.intp)
        origin = float(starts[order[0]])
        gpu = self._main_gpu()
        kept = order if gpu is None else order[self._on_gpu(gpu)[order]]
        return DeviceTrace(
            program=program,
            starts=(starts[kept] - origin) * self.unit,
            seconds=np.frombuffer(self.durations, dtype=np.float64)[kept] * self.unit,
            names=_integers(self.names, kept),
            lanes=_integers(self.lanes, kept),
            calls=_integers(self.calls, kept),
            launches=(self._launches()[kept] - origin) * self.unit,
            kernels=tuple(name for name, _ in self.kernels),
            works=tuple(self.works),
            streams=tuple(stream if gpu == NO_GPU else f"{gpu}/{stream}" for gpu, stream in self.streams),
            collectives=tuple(self.collectives),
            marks=self._marks(origin),
            origin=origin * self.unit,
            rank=rank,
            ranks=ranks,
            device=device[:60],
            remarks=() if gpu is None else (f"the work of GPU {gpu} counts; other GPUs of this trace do not",),
        )

    def _main_gpu(self) -> str | None:
        """The GPU with most work, if the trace has several."""
        gpus = Counter[str]()
        for (gpu, _), count in zip(self.streams, np.bincount(np.frombuffer(self.lanes, dtype=np.int32)), strict=True):
            gpus[gpu] += int(count)
        return gpus.most_common(1)[0][0] if len(gpus) > 1 else None

    def _on_gpu(self, gpu: str) -> NDArray[np.bool_]:
        streams = np.array([stream_gpu == gpu for stream_gpu, _ in self.streams], dtype=bool)
        return streams[np.frombuffer(self.lanes, dtype=np.int32)]

    def _launches(self) -> Floats:
        """The time of each launch, in the reader's unit; NaN if it is unknown."""
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
        thread, gpu = self.marks[False], self.marks[True]
        on_device = not thread or (bool(gpu) and not self.launch_times)
        marks = sorted({name: (start, end, name) for start, end, name in sorted(gpu if on_device else thread)}.values())
        return Marks(
            tuple(name for *_, name in marks),
            tuple((start - origin) * self.unit for start, _, _ in marks),
            tuple((end - origin) * self.unit for _, end, _ in marks),
            on_device,
        )


def _is_identifier(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_IDENTIFIER


def _word(value: object) -> str:
    """The number or name of a GPU or a stream; `?` for any other value."""
    is_word = isinstance(value, str) or (isinstance(value, int) and abs(value) < MOST_IDENTIFIER)
    return str(value)[:40] if is_word else NO_GPU


def _integers(values: "array[int]", order: Places) -> Integers:
    taken: Integers = np.frombuffer(values, dtype=np.int32)[order]
    return taken
