"""`DeviceTrace`: what a profiler saw on one rank's GPU: kernels and copies on streams, and marks of iterations.

Readers of formats make it (`import_/kineto.py`, `import_/nsight.py`).
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quadrille.experiments.traces.collective_calls import CollectiveCall

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]
Work = Literal["products", "attention", "other kernels", "communication", "copies"]
WORKS: tuple[Work, ...] = ("products", "attention", "other kernels", "communication", "copies")
"""Kinds of work; at an instant with several kinds, the first one counts."""
COMPUTING: tuple[Work, ...] = ("products", "attention", "other kernels")
NO_CALL = -1


@dataclass(frozen=True, slots=True)
class Marks:
    """The annotated iterations of a trace.

    Parameters
    ----------
    names : name of each iteration
    starts, ends : begin and end [s]
    on_device : whether they are times of the GPU; otherwise of the thread that launches its work
    """

    names: tuple[str, ...] = ()
    starts: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """The work of one GPU, by start.

    Parameters
    ----------
    program : program that wrote the trace
    starts, seconds : start and duration of each piece of work [s]; the first starts at 0
    names : name of each piece of work, an index into `kernels`
    lanes : stream of each piece of work, an index into `streams`
    calls : collective of each kernel, an index into `collectives`; `NO_CALL` for other work
    launches : time of the launch [s]; NaN if it is unknown
    kernels, works : each name once, and its kind of work
    origin : time of the first piece of work on the trace's clock [s]
    rank, ranks : rank of the process, and number of ranks; None if the trace does not say
    device : name of the GPU
    remarks : what was ignored
    """

    program: str
    starts: Floats
    seconds: Floats
    names: Integers
    lanes: Integers
    calls: Integers
    launches: Floats
    kernels: tuple[str, ...]
    works: tuple[Work, ...]
    streams: tuple[str, ...]
    collectives: tuple[CollectiveCall, ...]
    marks: Marks = field(default_factory=Marks)
    origin: float = 0.0
    rank: int | None = None
    ranks: int | None = None
    device: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def ends(self) -> Floats:
        """The end of each piece of work [s]."""
        ends: Floats = self.starts + self.seconds
        return ends

    def of_work(self, *works: Work) -> NDArray[np.bool_]:
        """Which pieces of work are of these kinds."""
        member = np.array([work in works for work in self.works], dtype=bool)
        return member[self.names]
