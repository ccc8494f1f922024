"""Compare the tables of measured kernels with products and attention that other projects measured.

    python -m quadrille.studies.kernel_tables.compare_sources simumax_kernels.csv

The file has the columns gpu_kind, op, shape, efficiency and nominal_tflops of SimuMax's `configs/system`: the achieved
share of the nominal rate, for attention with full squares of scores.  The table of A100 is compared with the products
of the EleutherAI cookbook, too, from which the shares of peaks come (`peak_shares.py`).
"""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.experiments.output.tables import print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.nodes.attention_kernels import SECOND
from quadrille.topologies.nodes.kernel_tables import KernelTable, kernel_table
from quadrille.topologies.nodes.peak_shares import A100_PRODUCTS

TABLES = {"B200 SXM": "b200-sxm", "A100 PCIe": "a100-sxm"}
LEAST_FLOPS = 1e10
"""Flop of a product from which it is compared; launches are part of shorter ones."""
TERA = 1e12
COLUMNS = ("source", "kernel", "samples", "10th percentile", "median", "90th percentile")
Sample = tuple[str, str, float]
"""Source, kernel, and measured seconds / seconds of the table."""


def main(path: str = "") -> None:
    """Print the median and the spread of measured / table by source and kernel.

    Raises
    ------
    InputError : no file
    """
    print_tables(table("measured seconds / seconds of the table", COLUMNS, compared_rows(path), names=2))


def compared_rows(path: str) -> list[list[str]]:
    """Number of samples, and percentiles of measured seconds / seconds of the table, by source and kernel.

    Raises
    ------
    InputError : no file
    """
    if not Path(path).is_file():
        raise InputError(f"file {path!r}: a CSV file of SimuMax's kernels is accepted")
    samples: dict[tuple[str, str], list[float]] = {}
    for source, kernel, ratio in (*cookbook_samples(), *simumax_samples(Path(path))):
        samples.setdefault((source, kernel), []).append(ratio)
    return [
        [*key, str(len(ratios)), *(f"{np.quantile(ratios, share):.2f}" for share in (0.1, 0.5, 0.9))]
        for key, ratios in samples.items()
    ]


def cookbook_samples() -> Iterator[Sample]:
    """The single products of the EleutherAI cookbook on A100."""
    kernels = kernel_table("a100-sxm")
    for row in A100_PRODUCTS:
        if row.count == 1:
            measured = 2.0 * row.m * row.k * row.n / row.flops_per_second
            yield "EleutherAI cookbook, A100", "product", measured / product_seconds(kernels, row.m, row.k, row.n)


def simumax_samples(path: Path) -> Iterator[Sample]:
    """The products and the attention of SimuMax."""
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", row["shape"])}
            rate = float(row["efficiency"]) * float(row["nominal_tflops"]) * TERA
            kernels = kernel_table(TABLES[row["gpu_kind"]])
            source = f"SimuMax, {row['gpu_kind']}"
            if row["op"] == "matmul":
                m, k, n = sizes["m"], sizes["k"], sizes["n"]
                if 2.0 * m * k * n >= LEAST_FLOPS:
                    layout = re.findall(r"layout=(\w+)", row["shape"])[0]
                    yield source, f"product {layout}", 2.0 * m * k * n / rate / product_seconds(kernels, m, k, n)
            elif row["op"] == "group_matmul" and kernels.experts is not None:
                seconds = 2.0 * sizes["ng"] * sizes["M"] * sizes["K"] * sizes["N"] / rate
                pass_name = re.findall(r"stage=(\w+)", row["shape"])[0]
                yield source, f"experts {pass_name}", seconds / grouped_seconds(kernels, sizes)
            elif row["op"].startswith("sdp") and sizes["qk_head_dim"] == sizes["v_head_dim"]:
                yield source, row["op"], attention_ratio(kernels, sizes, rate, backward=row["op"] == "sdp_bwd")


def product_seconds(kernels: KernelTable, m: int, k: int, n: int) -> float:
    """Seconds of a 16-bit product of m x k by k x n."""
    peak, rate = kernels.peak_flops_per_second["bfloat16"], kernels.memory_bytes_per_second
    return kernels.product_seconds((m, k, n), "bfloat16", peak, rate)[0]


def grouped_seconds(kernels: KernelTable, sizes: dict[str, int]) -> float:
    """Seconds of a grouped product of gated experts, whose hidden layers are narrower than their rows in this source.

    Parameters
    ----------
    sizes : ng experts, with M x K by K x N each
    """
    k, n = sizes["K"], sizes["N"]
    expert = (k, n // 2) if n < k else (n, k)
    peak, rate = kernels.peak_flops_per_second["bfloat16"], kernels.memory_bytes_per_second
    return kernels.grouped_seconds({sizes["M"]: sizes["ng"]}, expert, (k, n), peak, rate)[0]


def attention_ratio(kernels: KernelTable, sizes: dict[str, int], rate: float, *, backward: bool) -> float:
    """Measured seconds of attention / seconds of the table.

    Parameters
    ----------
    sizes : batch, seq_len, head_num, kv_head_num and qk_head_dim
    rate : measured rate, with full squares of scores [flop/s]
    backward : whether it is the backward pass, of five products instead of two
    """
    sequence, count, head = sizes["seq_len"], sizes["batch"] * sizes["head_num"], sizes["qk_head_dim"]
    full = 2.0 * count * sequence**2 * head * (5 if backward else 2)
    touched = 4.0 * sizes["batch"] * sequence * head * (sizes["head_num"] + sizes["kv_head_num"])
    peak, bandwidth = kernels.peak_flops_per_second["bfloat16"], kernels.memory_bytes_per_second
    forward, _ = kernels.attention_seconds((sequence, count, head), sequence**2, touched, peak, bandwidth)
    seconds = forward * (SECOND.backward if backward else 1.0)
    return full / rate / seconds


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
