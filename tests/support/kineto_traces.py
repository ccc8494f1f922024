"""A writer of profiler traces whose times are known: the oracle of the tests that read traces."""

import gzip
import json
from dataclasses import dataclass

GEMM = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, cutlass::bfloat16_t>>(Flash_fwd_params)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pageable -> Device)"
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 20


@dataclass(frozen=True)
class Work:
    """A kernel or a copy of an iteration; times are in microseconds from the iteration's first kernel."""

    name: str
    start: float
    duration: float
    stream: int = COMPUTE_STREAM
    category: str = "kernel"
    arguments: tuple = ()


def all_reduce(start, duration, elements=2**20, members=8, group="0", stream=COMMUNICATION_STREAM):
    """An all-reduce of bfloat16 elements."""
    arguments = (
        ("Collective name", "allreduce"), ("In msg nelems", elements), ("Out msg nelems", elements),
        ("Group size", members), ("dtype", "BFloat16"), ("Process Group Name", group),
    )  # fmt: skip
    return Work(ALL_REDUCE, start, duration, stream, "kernel", arguments)


ITERATION = (
    Work(GEMM, 0, 100),
    Work(FLASH, 100, 50),
    all_reduce(120, 100),
    Work(NORM, 220, 20),
    Work(COPY, 240, 10, category="gpu_memcpy"),
)
"""Products 100 us, attention 50, an all-reduce of 100 (30 hidden, 70 exposed), other kernels 20, a copy of 10."""
PERIOD = 300.0
BUSY = 250.0


def events(iteration=ITERATION, count=3, period=PERIOD, origin=1e9, annotated=True, launched=True, lead=150.0):
    """The events of a trace; the launching thread runs `lead` microseconds ahead of the GPU."""
    rows, correlation = [], 100
    for number in range(count):
        begin = origin + number * period
        if annotated:
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number + 5}", "pid": 1, "tid": 1}
            rows.append(mark | {"ts": begin - lead - 1, "dur": period, "args": {"External id": number}})
        for work in iteration:
            correlation += 1
            start = round(begin + work.start, 3)
            if launched:
                launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
                rows.append(launch | {"ts": start - lead, "dur": 3.0, "args": {"correlation": correlation}})
            arguments = {"device": 0, "stream": work.stream, "correlation": correlation} | dict(work.arguments)
            kernel = {"ph": "X", "cat": work.category, "name": work.name, "pid": 0, "tid": work.stream}
            rows.append(kernel | {"ts": start, "dur": work.duration, "args": arguments})
    return rows


def trace_text(rows, *, indent=None, rank=0, ranks=8, keys_behind=True):
    """The text of a trace.

    Parameters
    ----------
    rows : its events
    indent : spaces of a level; None for one line
    keys_behind : whether some keys are behind the list of events
    """
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
    }
    return json.dumps(
        head | {"traceEvents": rows} | ({"traceName": "t"} if keys_behind else {}), indent=indent
    ).encode()


def write_trace(path, rows=None, **options):
    """The path of a trace, compressed if its name ends in .gz."""
    text = trace_text(events() if rows is None else rows, **options)
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path
