"""Compiled twins of kernels: the same functions for small problems and, by Numba, for large ones.

A kernel is a plain function over named tuples of arrays that Numba could compile.
Numba takes 0.5 s to import and a set of kernels 5 to 10 s to compile (kept on disk),
so it is imported only when a problem is large enough to earn that.

Kernels call each other by name.  A twin is therefore compiled in a namespace
where the other kernels of its set are twins too.  Numba renews what it keeps on
disk when a kernel's own file changes, but not when one that it calls does, or a
constant, or the options; the twins' names hold a sum of all that.

It keeps them next to their modules, or where that cannot be written in the user's
cache folder; NUMBA_CACHE_DIR names another.
"""

import sys
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

Kernel = Callable[..., Any]

OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
COLUMNS = 2
"""To be raised when `columns.py` compiles to something else than before."""
KERNEL_SECONDS = 0.2
"""What a kernel takes to compile, on average; only told."""

_seconds = 0.0
_kept: dict[tuple[str, Kernel], Mapping[str, Kernel]] = {}
"""The twins of this process, by a sum over their code and the last of their kernels."""


def compiled(kernels: Sequence[Kernel], called: Collection[str] = ()) -> Mapping[str, Kernel]:
    """The compiled twins that Python calls, by name; a kernel may call those before it.

    Arguments that are named tuples are passed as `columns.ColumnTable`.  Kernels make no
    arrays, so their twins count no references.

    >>> from quadrille.simulator.engine.filling import KERNELS
    >>> sorted(compiled(KERNELS, ["fill"]))
    ['fill']

    Parameters
    ----------
    called : those that Python calls, all if none is named; only these are kept on disk
    """
    global _seconds
    began = time.perf_counter()
    mark = f"{_code_sum(kernels):08x}"
    if called:
        mark += f"_{zlib.crc32(repr(sorted(called)).encode()):08x}"
    if (mark, kernels[-1]) not in _kept:
        _kept[mark, kernels[-1]] = _twins(kernels, called, mark)
    _seconds += time.perf_counter() - began
    return _kept[mark, kernels[-1]]


def _twins(kernels: Sequence[Kernel], called: Collection[str], mark: str) -> Mapping[str, Kernel]:
    """The compiled twins that Python calls."""
    numba = import_module("numba")
    twins: dict[str, Kernel] = {}
    for kernel in kernels:
        assert isinstance(kernel, FunctionType)
        names = {**kernel.__globals__, **twins}
        twin = FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__)
        twin.__qualname__ = f"{kernel.__qualname__}_{mark}"
        twin.__module__ = kernel.__module__
        inner = bool(called) and kernel.__name__ not in called
        twins[kernel.__name__] = numba.njit(no_cpython_wrapper=inner, **OPTIONS)(twin)
        if not inner:
            with suppress(RuntimeError):  # no folder can be written: compiled anew in every process
                twins[kernel.__name__].enable_caching()  # type: ignore[attr-defined]
    return {name: _entry(twin, len(kernels)) for name, twin in twins.items() if not called or name in called}


def as_column_table(columns: tuple[Any, ...]) -> object:
    """A named tuple of arrays as twins take it; to be kept by those who call often."""
    return import_module("quadrille.simulator.engine.column_table").ColumnTable(columns)


def loading_seconds() -> float:
    """Seconds that this process has spent so far on importing Numba and on loading or compiling kernels."""
    return _seconds


def _entry(twin: Any, kernels: int) -> Kernel:
    """A twin that Python calls with named tuples, loaded at its first call; with the same table again it is at once."""
    latest: object = None

    def call(*arguments: Any) -> Any:
        global _seconds
        nonlocal latest
        if arguments[0] is latest:
            return twin(*arguments)
        began = time.perf_counter()
        table, typeof = (
            import_module("quadrille.simulator.engine.column_table").ColumnTable,
            import_module("numba").typeof,
        )
        packed = [table(argument) if isinstance(argument, tuple) else argument for argument in arguments]
        signature = tuple(typeof(argument) for argument in packed)
        if signature not in twin.overloads:
            _load(twin, signature, kernels)
            _seconds += time.perf_counter() - began
        latest = packed[0] if packed[0] is arguments[0] else None
        return twin(*packed)

    return call


def _load(twin: Any, signature: tuple[Any, ...], kernels: int) -> None:
    """Loads a twin from disk, or compiles it and tells so at once."""
    event = import_module("numba.core.event")
    often = "once on this machine" if twin.stats.cache_path else "in every run, as no cache folder can be written"
    lines = [f"quadrille: compiling the flow kernels, {often}: about {max(1, round(KERNEL_SECONDS * kernels))} s\n"]

    class Tell(event.Listener):  # type: ignore[misc, name-defined]
        """Hears of each kernel that is compiled, the first time with something to tell."""

        def on_start(self, _: Any) -> None:
            while lines:
                sys.stderr.write(lines.pop())
                sys.stderr.flush()

        def on_end(self, _: Any) -> None: ...

    with event.install_listener("numba:compile", Tell()), suppress(OSError):  # of a full disk: compiled, not kept
        twin.compile(signature)


def _code_sum(kernels: Sequence[Kernel]) -> int:
    """A sum over the code of all kernels and the constants that it names; it differs when any of them does."""
    total = zlib.crc32(repr((OPTIONS, COLUMNS)).encode())
    for kernel in kernels:
        assert isinstance(kernel, FunctionType)
        named = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
        constants = [(name, value) for name, value in named.items() if isinstance(value, int | float)]
        total = zlib.crc32(repr((_parts(kernel.__code__), constants)).encode(), total)
    return total


def _parts(code: CodeType) -> tuple[object, ...]:
    """What a piece of code is made of, the same in every process."""
    constants = tuple(_parts(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, constants
