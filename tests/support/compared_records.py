"""A predicted and a measured record of one problem, which tests of comparisons share."""

import msgspec

from quadrille.algorithms.formats.record import (
    OpRecord,
    Options,
    Record,
    Reference,
)
from quadrille.algorithms.formats.workload import MatmulSizes, Workload

replace = msgspec.structs.replace


GEMM = OpRecord(name="multiply", kind="gemm", seconds=0.070, seconds_by_part={"compute": 0.070})


GATHER = OpRecord(
    name="gather B",
    kind="all_gather",
    axis="z",
    algorithm="ring",
    seconds=0.020,
    exposed_seconds=0.020,
    seconds_by_part={"transfer": 0.015, "latency": 0.005},
)


PREDICTED = Record(
    kind="predicted",
    workload=Workload(MatmulSizes(307, 211, 103)),
    dtype="float32",
    passes="forward",
    algorithm="4d",
    grid={"data": 1, "z": 2, "y": 1, "x": 3},
    order=("x", "y", "z", "data"),
    ranks=6,
    options=Options(),
    backend="numpy",
    seconds=0.095,
    seconds_low=0.090,
    seconds_high=0.101,
    flops_per_rank_max=7,
    bytes_sent_per_rank_max=5,
    bytes_sent_total=30,
    peak_bytes_per_rank_max=11,
    ops=(GEMM, GATHER),
    reference=Reference((1.0,), (2.0,), (3.0,)),
)


MEASURED = replace(
    PREDICTED,
    kind="measured",
    seconds=0.100,
    seconds_low=0.098,
    seconds_high=0.104,
    repeats=3,
    seconds_of_repeats=(0.100, 0.098, 0.104),
    ops=(
        replace(GEMM, seconds=0.075, seconds_by_part={}, seconds_of_repeats=(0.075, 0.074, 0.079)),
        replace(GATHER, seconds=0.016, exposed_seconds=0.016, waiting_seconds=0.005, seconds_by_part={}),
    ),
    reference=Reference((1.1, 1.1, 1.1), (2.0, 2.0, 2.0), (3.0, 3.0, 3.0)),
)


BUSY = replace(MEASURED, reference=Reference((18.86,) * 3, (2.1,) * 3, (3.0,) * 3))
