"""A GPU made of host memory, and the part of CuPy that Quadrille uses.

Work handed to a stream is kept and done only when somebody waits for it (or asks an
event, which lets the device do one thing more), so a missing synchronisation gives wrong
numbers.  A device array has no buffer and refuses to become a NumPy array, so MPI and
NumPy cannot touch it.  What happens is written to `cupy.history` in its order.
"""

import ctypes
import sys
import types
from collections import deque
from functools import partial

import numpy as np

from quadrille.runtime.host.devices import GpuDevice
from tests.support.fake_arrays import FUNCTIONS, Array, Function

FAKE = GpuDevice(0, "Fake GPU", "ab" * 16, "0000:01:00.0", "here", 1 << 30, (9, 0))
CUDA_TYPES = {14: np.uint16, 2: np.float16, 0: np.float32, 1: np.float64}
NCCL_TYPES = {6: np.float16, 7: np.float32, 8: np.float64, 9: np.uint16}


class Stream:
    """A queue of work, done in order when somebody waits for it."""

    def __init__(self, cupy, number):
        self._cupy, self._queue = cupy, deque()
        self.ptr = number
        self.handed = self.done = 0

    def hand(self, name, act):
        self._queue.append((name, act))
        self.handed += 1

    def step(self):
        """Does the next piece of work if it can be done yet."""
        if not self._queue:
            return False
        name, act = self._queue[0]
        try:
            act()
        except NotYet:
            return False
        self._queue.popleft()
        self._cupy.history.append(name)
        self.done += 1
        return True

    def until(self, number):
        while self.done < number:
            assert self.step(), "waits for a partner that cannot come"

    def synchronize(self):
        self.until(self.handed)
        self._cupy.history.append("synchronise")

    def record(self, event):
        event.stream, event.number = self, self.handed
        return event

    def __enter__(self):
        self._cupy.streams_in_use.append(self)

    def __exit__(self, *_):
        self._cupy.streams_in_use.pop()


class Event:
    def __init__(self, cupy, disable_timing=False):
        self._cupy = cupy
        self.stream = self.number = None
        cupy.events.append(self)
        self.ptr = len(cupy.events) - 1

    def query(self):
        """CUDA's status: the error of a failed device, else whether the stream has reached the event."""
        if self._cupy.fault:
            return self._cupy.fault
        if self.stream.done >= self.number:
            return 0
        self.stream.step()
        return 600

    def synchronize(self):
        if self._cupy.fault:
            raise CudaError(f"cudaError {self._cupy.fault}")
        self.stream.until(self.number)


class CudaError(RuntimeError):
    pass


class Cupy(types.ModuleType):
    """The module: streams, events, copies, cuBLAS, pinned memory, NCCL."""

    def __init__(self, devices=(FAKE,)):
        super().__init__("cupy")
        self.devices, self.current_device = devices, 0
        self.history, self.streams, self.streams_in_use, self.pinned_sizes = [], {}, [], []
        self.math_modes, self.kept, self.events = [], [], []
        self.fault = 0  # cudaError_t of a device that has failed
        self.memory = (1000, 2000)  # free, and all [B]
        self.null_stream = self._stream()
        self.nccl_world = {}
        for name in ("add", *FUNCTIONS):
            setattr(self, name, Function(self, name))
        self.inf, self.float32, self.uint16, self.uint32 = np.inf, np.float32, np.uint16, np.uint32
        self.cuda = self._cuda()

    def current_stream(self):
        return self.streams_in_use[-1] if self.streams_in_use else self.null_stream

    def _stream(self, non_blocking=False):
        number = len(self.streams) + 1
        self.streams[number] = Stream(self, number)
        return self.streams[number]

    def empty(self, shape, dtype):
        memory = np.empty(shape, dtype)
        memory.view(np.uint8)[...] = 0xFF  # NaN, so that nobody relies on what was there
        self.kept.append(memory)  # CuPy's pool lets nobody else have it before the stream is through with it
        return Array(self, memory)

    def ascontiguousarray(self, array):
        copied = self.empty(array.shape, array.dtype)
        self.copyto(copied, array)
        return copied

    def copyto(self, into, source):
        assert into.shape == source.shape and into.dtype == source.dtype, (into.shape, source.shape)
        self.current_stream().hand("copy", partial(np.copyto, into._memory, source._memory))

    def hand(self, name, act):
        """Hands work to the stream in use."""
        self.current_stream().hand(name, act)

    def ElementwiseKernel(self, inputs, outputs, code, name):
        assert name == "add_bfloat16"

        def act(one, other, out):
            out[...] = to_bits(from_bits(one) + from_bits(other))

        def kernel(*arrays):
            self.current_stream().hand(name, partial(act, *(array._memory for array in arrays)))

        return kernel

    def _cuda(self):
        names = types.SimpleNamespace
        cublas = names(
            gemmEx=self._gemm, setMathMode=lambda handle, mode: self.math_modes.append(mode),
            CUBLAS_OP_N=0, CUBLAS_OP_T=1, CUBLAS_COMPUTE_32F=68, CUBLAS_COMPUTE_64F=70, CUBLAS_GEMM_DEFAULT=-1,
            CUBLAS_COMPUTE_32F_FAST_TF32=77, getVersion=lambda handle: 130000,
        )  # fmt: skip
        runtime = names(
            getDeviceCount=lambda: len(self.devices), getDeviceProperties=self._properties,
            deviceGetPCIBusId=lambda number: self.devices[number].pci_address,
            eventQuery=lambda number: self.events[number].query(),
            memGetInfo=lambda: self.memory, memcpyAsync=self._memcpy, CUDARuntimeError=CudaError,
            driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
            memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3,
        )  # fmt: skip
        cuda = types.ModuleType("cupy.cuda")
        cuda.cublas, cuda.runtime = cublas, runtime
        cuda.device = names(get_cublas_handle=lambda: 1)
        cuda.Device, cuda.Stream, cuda.Event = partial(CurrentDevice, self), self._stream, partial(Event, self)
        cuda.alloc_pinned_memory = self._pinned
        cuda.nccl = Nccl(self)
        return cuda

    def _properties(self, number):
        device = self.devices[number]
        major, minor = device.compute_capability
        uuid = bytes.fromhex(device.uuid).split(b"\0")[0]
        return {"name": device.name.encode() + b"\0", "uuid": uuid, "totalGlobalMem": device.memory_bytes,
                "major": major, "minor": minor}  # fmt: skip

    def _pinned(self, size):
        self.pinned_sizes.append(size)
        return bytearray(size)

    def _memcpy(self, to, source, size, kind, stream):
        name = {1: "to device", 2: "to host", 3: "on device"}[kind]
        self.streams[stream].hand(name, partial(ctypes.memmove, to, source, size))

    def _gemm(self, handle, turn_a, turn_b, m, n, k, alpha, a, a_type, a_step, b, b_type, b_step, beta, c, c_type,
              c_step, compute, algorithm):  # fmt: skip
        """cuBLAS's product of matrices stored by columns: C_mn = op(A)_mk op(B)_kn."""
        assert (compute, CUDA_TYPES[c_type]) in {
            (70, np.float64),
            (77, np.float32),
            *((68, kind) for kind in FLOATS_32),
        }
        assert at(alpha, 1, np.float64 if compute == 70 else np.float32) == 1
        left = columns_at(a, (k, m) if turn_a else (m, k), a_step, CUDA_TYPES[a_type])
        right = columns_at(b, (n, k) if turn_b else (k, n), b_step, CUDA_TYPES[b_type])
        into = columns_at(c, (m, n), c_step, CUDA_TYPES[c_type])
        cublas_tf32 = self.cuda.cublas.CUBLAS_COMPUTE_32F_FAST_TF32

        def act():
            one, other = (values(matrix.T if turn else matrix) for matrix, turn in ((left, turn_a), (right, turn_b)))
            if compute == cublas_tf32:
                one, other = to_tf32(one), to_tf32(other)
            with np.errstate(invalid="ignore"):  # BLAS multiplies lanes beside a small matrix too, and drops them
                product = one @ other
            into[...] = to_bits(product) if into.dtype == np.uint16 else product

        self.current_stream().hand("gemm", act)


FLOATS_32 = (np.float32, np.float16, np.uint16)


class CurrentDevice:
    def __init__(self, cupy, number):
        self._cupy, self._number = cupy, number

    def use(self):
        self._cupy.current_device = self._number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Nccl(types.ModuleType):
    """NCCL among ranks of this process: a call ends when its partners have made their calls."""

    NCCL_SUM, NCCL_MAX, NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = 0, 2, 6, 7, 8, 9

    def __init__(self, cupy):
        super().__init__("cupy.cuda.nccl")
        self.available, self._cupy = True, cupy
        self.ids, self.group = 0, None
        self.groups = []
        self.NcclCommunicator = partial(FakeNcclCommunicator, self)

    def get_unique_id(self):
        self.ids += 1
        return self.ids

    def groupStart(self):
        assert self.group is None
        self.group = []

    def groupEnd(self):
        """Ends a group: its calls advance together, as one piece of work on their stream."""
        calls, self.group = self.group, None
        if not calls:
            return
        self.groups.append([name for name, *_ in calls])
        (stream,) = {stream for _, stream, _, _ in calls}
        for _, _, post, _ in calls:
            self._cupy.streams[stream].hand("post", post)
        for name, _, _, end in calls:
            self._cupy.streams[stream].hand(name, end)


class NotYet(Exception):
    """A partner has not made its call yet."""


class FakeNcclCommunicator:
    """A communicator: `post` announces a call, and `end` executes it once all partners have posted."""

    def __init__(self, nccl, size, unique_id, rank):
        self._nccl, self._size, self.rank = nccl, size, rank
        self._shared = nccl._cupy.nccl_world.setdefault(unique_id, {})
        self._counts = {}
        self.is_destroyed = False

    def destroy(self):
        self.is_destroyed = True

    def check_async_error(self):
        """Nothing has failed."""

    def _call(self, name, stream, key, mine, end):
        """A call whose partners are found under a key and the number of such calls so far."""
        number = self._counts[key] = self._counts.get(key, -1) + 1
        meeting = self._shared.setdefault((key, number), {})
        self._nccl.group.append((name, stream, partial(meeting.__setitem__, self.rank, mine), partial(end, meeting)))

    def send(self, address, count, kind, peer, stream):
        mine = at(address, count, NCCL_TYPES[kind])

        def end(meeting):
            if "taken" not in meeting:
                raise NotYet

        self._call("send", stream, ("message", self.rank, peer), mine, end)

    def recv(self, address, count, kind, peer, stream):
        room = at(address, count, NCCL_TYPES[kind])

        def end(meeting):
            if peer not in meeting:
                raise NotYet
            assert meeting[peer].size == room.size and meeting[peer].dtype == room.dtype
            room[...] = meeting[peer]
            meeting["taken"] = True

        self._call("receive", stream, ("message", peer, self.rank), room, end)

    def _meet(self, name, stream, address, count, kind, finish):
        """A collective: its data is copied when all ranks have made the call."""

        def end(meeting):
            if len([key for key in meeting if isinstance(key, int)]) < self._size:
                raise NotYet
            came = meeting.setdefault("came", {rank: meeting[rank].copy() for rank in range(self._size)})
            finish(came)

        self._call(name, stream, name, at(address, count, NCCL_TYPES[kind]), end)

    def allGather(self, source, into, count, kind, stream):
        room = at(into, count * self._size, NCCL_TYPES[kind]).reshape(self._size, count)
        self._meet("all-gather", stream, source, count, kind,
                   lambda came: [np.copyto(room[rank], piece) for rank, piece in came.items()])  # fmt: skip

    def bcast(self, address, count, kind, root, stream):
        room = at(address, count, NCCL_TYPES[kind])
        self._meet("broadcast", stream, address, count, kind, lambda came: np.copyto(room, came[root]))

    def reduce(self, source, into, count, kind, operation, root, stream):
        room = at(into, count, NCCL_TYPES[kind])
        act = (lambda came: np.copyto(room, total(came))) if root == self.rank else (lambda came: None)
        self._meet("reduce", stream, source, count, kind, act)

    def allReduce(self, source, into, count, kind, operation, stream):
        room = at(into, count, NCCL_TYPES[kind])
        combined = largest if operation == self._nccl.NCCL_MAX else total
        self._meet("all-reduce", stream, source, count, kind, lambda came: np.copyto(room, combined(came)))

    def reduceScatter(self, source, into, count, kind, operation, stream):
        room, mine = at(into, count, NCCL_TYPES[kind]), slice(self.rank * count, (self.rank + 1) * count)
        self._meet("reduce-scatter", stream, source, count * self._size, kind,
                   lambda came: np.copyto(room, total(came)[mine]))  # fmt: skip


def total(came):
    summands = [values(came[rank]) for rank in sorted(came)]
    result = sum(summands[1:], start=summands[0])
    return to_bits(result) if came[0].dtype == np.uint16 else result


def largest(came):
    return np.maximum.reduce([came[rank] for rank in sorted(came)])


def at(address, count, dtype):
    """Host memory at an address."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype) if size else np.empty(0, dtype)


def columns_at(address, shape, step, dtype):
    """A matrix stored by columns, with `step` elements between the starts of two columns."""
    rows, columns = shape
    assert step >= max(1, rows), f"columns of {rows} elements cannot begin every {step}"
    item = np.dtype(dtype).itemsize
    memory = at(address, step * (columns - 1) + rows, dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, (item, step * item))


def from_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bits(floats):
    """The nearest bfloat16, ties to even: the closer of the two neighbours."""
    exact = np.asarray(floats, np.float32)
    below = (exact.view(np.uint32) >> 16).astype(np.uint16)
    above = below + np.uint16(1)
    down, up = (np.abs(from_bits(bits).astype(np.float64) - exact) for bits in (below, above))
    return np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)


def to_tf32(floats):
    """The nearest number with 10 bits of mantissa, ties to even."""
    bits = np.ascontiguousarray(floats, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def values(array):
    if array.dtype == np.uint16:
        return from_bits(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array.copy()


AS_A_MODULE = """
import sys
from tests.support import fake_device
fake = fake_device.Cupy()
fake.__spec__, fake.__path__, fake.memory = __spec__, [], (1 << 30, 1 << 30)
sys.modules |= {"cupy": fake, "cupy.cuda": fake.cuda, "cupy.cuda.nccl": fake.cuda.nccl}
"""
"""A cupy.py by which processes that a test starts get the fake."""


def install(monkeypatch, cupy=None):
    """Let `import cupy` give the fake."""
    fake = cupy or Cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", fake.cuda)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", fake.cuda.nccl)
    return fake
