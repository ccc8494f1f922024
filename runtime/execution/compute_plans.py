"""Plans of compute ops: each op becomes a function on the rank's arrays, made once and called in every repeat."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import assert_never

from quadrille.algorithms.analysis.traffic import written_coordinates
from quadrille.algorithms.schedule.kernel_signatures import SIGNATURES, WHOLE_BLOCKS
from quadrille.algorithms.schedule.ops import Compute, Gemm, HostCopy, Kernel, Pointwise
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.runtime.arrays.array_library import ArrayLibrary
from quadrille.runtime.execution.buffers import Buffers, viewed_as


class ComputePlanner:
    """The maker of one rank's plans of compute ops: GEMMs, pointwise functions, kernels and host copies."""

    def __init__(self, schedule: Schedule, library: ArrayLibrary, buffers: Buffers) -> None:
        self._schedule = schedule
        self._library = library
        self._buffers = buffers

    def plan(self, op: Compute, coordinates: Coordinates) -> Callable[[], None]:
        """The local work of an op at these coordinates, as a function without arguments."""
        match op:
            case Gemm() if op.counts:
                return partial(self._expert_products, op, coordinates)
            case Gemm():
                return self._gemm(op, coordinates)
            case HostCopy():
                return partial(self.submit_host_copy, op, coordinates, self._library)
            case Pointwise():
                return self._pointwise(op, coordinates)
            case Kernel():
                return self._kernel(op, coordinates)
            case _:
                assert_never(op)

    def _library_of(self, op: Kernel | Pointwise) -> ArrayLibrary:
        """The array library that runs an op: NumPy on the cores of the host, or that of the device."""
        if not op.on_host:
            return self._library
        from quadrille.runtime.arrays.numpy_library import NumpyLibrary

        return NumpyLibrary()

    def submit_host_copy(self, op: HostCopy, coordinates: Coordinates, stream: ArrayLibrary) -> None:
        """Submit a copy between the device and pinned host memory to a stream."""
        source, into = self._buffers.flat(op.source, coordinates), self._buffers.flat(op.into, coordinates)
        if op.to_host:
            stream.copy_to_host(into, source)
        else:
            stream.copy_to_device(into, source)

    def _pointwise(self, op: Pointwise, coordinates: Coordinates) -> Callable[[], None]:
        into = self._buffers.flat(op.into, written_coordinates(op, self._schedule, coordinates))
        sources, library = [self._buffers.flat(source, coordinates) for source in op.sources], self._library_of(op)
        match op.function:
            case "zero":
                return partial(library.zero, into)
            case "copy":
                return partial(library.copy, into, *sources)
            case "add":
                first, second = sources
                return partial(library.add, first, second, into)
            case _:
                assert_never(op.function)

    def _kernel(self, op: Kernel, coordinates: Coordinates) -> Callable[[], None]:
        from quadrille.runtime.kernels.layer_kernels import KernelArguments, carry_out

        signature, library = SIGNATURES[op.function], self._library_of(op)
        into, updates, sources = (
            tuple(
                self._buffers.flat(name, coordinates)
                if shape in WHOLE_BLOCKS
                else self._buffers.matrix(name, coordinates)
                for name, shape in zip(names, shapes, strict=True)
            )
            for names, shapes in (
                (op.into, signature.into),
                (op.updates, signature.updates),
                (op.sources, signature.sources),
            )
        )
        blocks, written = (
            tuple(self._buffers.block(name, coordinates) for name in names)
            for names in ((*op.sources, *op.updates), op.into)
        )
        scalars = dict(op.scalars)
        names = (*op.sources, *op.updates) if "context" in scalars else ()
        sequences = tuple(self._sequences(name, coordinates) for name in names)
        count = coordinates.indices[op.counter] if op.counter is not None else 0
        arguments = KernelArguments(
            library.module,
            into,
            updates,
            sources,
            blocks,
            scalars,
            count,
            dict(coordinates.indices),
            sequences,
            written,
        )
        return partial(library.carry_out, partial(carry_out, op.function, arguments))

    def _sequences(self, name: str, coordinates: Coordinates) -> tuple[int, int]:
        """The rows of the whole sequences from which axes cut the rows of a tensor's block."""
        rows = self._schedule.tensors[name].rows
        return replace(rows, finer=(), rotated_by=(), band=None).bounds(coordinates)

    def _expert_products(self, op: Gemm, coordinates: Coordinates) -> None:
        """Multiply the rows of each expert of the rank."""
        a, b, c = (self._buffers.matrix(name, coordinates) for name in (op.a, op.b, op.c))
        height = self._schedule.tensors[op.weights].rows.unit
        first, stop = (row // height for row in self._buffers.block(op.weights, coordinates).rows)
        counts = self._buffers.counts(op.counts, coordinates).sum(axis=0)
        start = 0
        for number, rows in enumerate(counts[first:stop].tolist()):
            of_expert, weights = slice(start, start + rows), slice(number * height, (number + 1) * height)
            match op.layout:
                case "TN" if not rows:
                    self._library.zero(c[weights])
                case _ if not rows:
                    continue
                case "NN":
                    self._library.matmul(a[of_expert], b[weights], c[of_expert])
                case "NT":
                    self._library.matmul(a[of_expert], b[weights].T, c[of_expert])
                case "TN":
                    self._library.matmul(a[of_expert].T, b[of_expert], c[weights])
            start += rows
        if op.layout != "TN":
            self._library.zero(c[start:])  # rows that no expert takes

    def _gemm(self, op: Gemm, coordinates: Coordinates) -> Callable[[], None]:
        a, b = self._buffers.matrix(op.a, coordinates), self._buffers.matrix(op.b, coordinates)
        left = a.T if op.layout == "TN" else a
        right = b.T if op.layout == "NT" else b
        c = self._buffers.matrix(op.c, coordinates)
        if not op.accumulate:
            return partial(self._library.matmul, left, right, c)
        product = viewed_as(self._buffers.scratch.product, c.dtype)[: c.size].reshape(c.shape)

        def accumulate() -> None:
            self._library.matmul(left, right, product)
            self._library.add(c, product, c)

        return accumulate
