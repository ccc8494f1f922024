"""Make the tables of measured kernels from measurements of inference kernels, and print how far they are from others.

    python -m quadrille.studies.kernel_tables.make_tables FOLDER

FOLDER holds gemm_SYSTEM.csv.gz (dtype, m, n, k, seconds), attention_SYSTEM.csv.gz (batch, seq, heads, kv_heads,
head_dim, dtype, causal, source, seconds) and systems.json (peaks and memory bandwidths), as taken from aiconfigurator.

A point of a table is a weighted mean over measurements near it: the weight falls by e within `REACH` of the logarithm
of a size, and outliers count less.  The errors come from a second table, made without a random quarter of the
measurements, which is compared with that quarter.
"""

import csv
import gzip
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.nodes.kernel_tables import (
    FOLDER,
    PRODUCT_BYTES,
    SCHEMA,
    KernelTable,
    RatioTable,
    attention_bound,
    kernel_table,
    product_bound,
    table_of_ratios,
)

Floats = NDArray[np.float64]

SYSTEMS = {
    "a100_sxm": ("a100-sxm", "A100 SXM"),
    "h100_sxm": ("h100-sxm", "H100 SXM"),
    "h200_sxm": ("h200-sxm", "H200 SXM"),
    "b200_sxm": ("b200-sxm", "B200 SXM"),
    "b300_sxm": ("b300-sxm", "B300 SXM"),
    "gb200": ("gb200", "GB200"),
    "gb300": ("gb300", "GB300"),
}
"""Name of the table and of the GPU, by the name of the system in the source."""
SOURCE = "aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0): kernels timed alone in three inference frameworks"
PEAKS = {
    "bfloat16": "bfloat16_tc_flops",
    "fp8": "fp8_tc_flops",
    "fp8_block": "fp8_tc_flops",
    "nvfp4": "fp4_tc_flops",
}
INNER = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
PRODUCT_AXES = {"m": (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768), "n": INNER, "k": INNER}
ATTENTION_AXES = {
    "sequence": (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "count": (1, 4, 16, 64, 256, 1024, 4096),
    "head": (64, 128, 256),
}
FALLBACKS = ("triton",)
"""Implementations of attention that a framework uses where its own kernels cannot."""
REACH = 0.1
FLOOR = 1e-12
"""Weight of far measurements, which fill points without near ones."""
OUTLIER = 0.1
"""Distance of a logarithm from its neighbours at which a measurement's weight falls."""
SEED, LEFT_OUT = 1, 0.25
BLOCK = 100


@dataclass(frozen=True)
class Measurements:
    """Measured kernels: their sizes [rows, axes] and the logarithms of measured / bound."""

    sizes: Floats
    logarithms: Floats

    def chosen(self, rows: NDArray[np.bool_]) -> "Measurements":
        return Measurements(self.sizes[rows], self.logarithms[rows])


def main(folder: str = "") -> None:
    """Make all tables from the files of a folder.

    Raises
    ------
    InputError : no folder, or files that are missing
    """
    source = Path(folder)
    needed = ["systems.json", *(f"{kernel}_{system}.csv.gz" for system in SYSTEMS for kernel in ("gemm", "attention"))]
    missing = [name for name in needed if not folder or not (source / name).is_file()]
    if missing:
        raise InputError(
            f"folder {folder!r}: {missing[0]} is missing; a folder with systems.json, gemm_SYSTEM.csv.gz and "
            f"attention_SYSTEM.csv.gz of {', '.join(SYSTEMS)} is accepted"
        )
    systems = json.loads((source / "systems.json").read_text())["systems"]
    FOLDER.mkdir(exist_ok=True)
    lines = []
    for system, (name, gpu) in SYSTEMS.items():
        kernels = kernels_of(source, system, gpu, systems[system]["gpu"])
        path = Path(FOLDER, f"{name}.json")
        if path.is_file():  # `make_experts` adds experts to a table
            kernels = msgspec.structs.replace(kernels, experts=kernel_table(name).experts)
        schema_files.write_bytes(path, msgspec.json.encode(kernels) + b"\n")
        ratios = {**kernels.products, "attention": kernels.attention}
        lines += [
            [name, key, str(of.rows), percent(of.median_error), percent(of.most_error)] for key, of in ratios.items()
        ]
    columns = ("table", "kernels", "measurements", "median error", "90th percentile")
    print_tables(table("", columns, lines, names=2))


def kernels_of(source: Path, system: str, gpu: str, sheet: dict[str, float]) -> KernelTable:
    """The tables of one GPU.

    Parameters
    ----------
    source : folder of the measurements
    system : name of the system in the source
    gpu : name of the GPU
    sheet : peaks and memory bandwidth of the data sheet
    """
    rows = list(rows_of(source / f"gemm_{system}.csv.gz"))
    precisions = [precision for precision in PRODUCT_BYTES if any(row["dtype"] == precision for row in rows)]
    peaks = {precision: float(sheet[PEAKS[precision]]) for precision in precisions}
    empty = RatioTable(axes={}, thousandths=(), rows=0, median_error=0, most_error=0)
    bounds = KernelTable(
        schema=SCHEMA,
        gpu=gpu,
        source=SOURCE,
        peak_flops_per_second=peaks,
        memory_bytes_per_second=float(sheet["mem_bw"]),
        products={},
        attention=empty,
    )
    products = {p: table_of(PRODUCT_AXES, products_measured(rows, p, bounds)) for p in precisions}
    attention = table_of(ATTENTION_AXES, attention_measured(source / f"attention_{system}.csv.gz", bounds))
    return msgspec.structs.replace(bounds, products=products, attention=attention)


def products_measured(rows: Sequence[dict[str, str]], precision: str, bounds: KernelTable) -> Measurements:
    """The measured products of one precision."""
    chosen, peak = [row for row in rows if row["dtype"] == precision], bounds.peak_flops_per_second[precision]
    return measurements(
        chosen,
        ("m", "n", "k"),
        lambda row: product_bound(row["m"], row["k"], row["n"], precision, peak, bounds.memory_bytes_per_second),
    )


def attention_measured(path: Path, bounds: KernelTable) -> Measurements:
    """The measured causal forward passes of attention in 16 bits."""
    rows = [
        {**row, "sequence": row["seq"], "count": str(int(row["batch"]) * int(row["heads"])), "head": row["head_dim"]}
        for row in rows_of(path)
        if row["dtype"] == "bfloat16" and row["causal"] == "1" and int(row["head_dim"]) in ATTENTION_AXES["head"]
        if not row["source"].endswith(FALLBACKS)
    ]
    return measurements(rows, tuple(ATTENTION_AXES), lambda row: measured_attention_bound(row, bounds))


def measured_attention_bound(row: dict[str, float], bounds: KernelTable) -> float:
    """The data sheet's bound of a measured forward pass [s]."""
    elements = row["batch"] * row["seq"] * row["head_dim"] * 2 * (row["heads"] + row["kv_heads"])
    peak, rate = bounds.peak_flops_per_second["bfloat16"], bounds.memory_bytes_per_second
    return attention_bound(row["seq"] ** 2, row["count"], row["head"], ITEM_BYTES["bfloat16"] * elements, peak, rate)


def rows_of(path: Path) -> "csv.DictReader[str]":
    """The rows of a compressed CSV file."""
    return csv.DictReader(gzip.open(path, "rt", encoding="utf-8"))


def measurements(
    rows: Sequence[dict[str, str]], axes: Sequence[str], bound: Callable[[dict[str, float]], float]
) -> Measurements:
    """The rows as sizes and logarithms of measured / bound."""
    numbers = [{key: float(value) for key, value in row.items() if key not in ("dtype", "source")} for row in rows]
    sizes = np.array([[row[axis] for axis in axes] for row in numbers])
    return Measurements(sizes, np.log([row["seconds"] / bound(row) for row in numbers]))


def table_of(axes: dict[str, tuple[int, ...]], measured: Measurements) -> RatioTable:
    """The table of some measurements, with its errors on a quarter that a second table leaves out."""
    left_out = np.random.default_rng(SEED).random(len(measured.sizes)) < LEFT_OUT
    trial = table_of_ratios(axes, ratios_on(axes, measured.chosen(~left_out)), 0, (0, 0))
    judged = measured.chosen(left_out)
    predicted = np.log([trial.ratio(*sizes)[0] for sizes in judged.sizes])
    errors = np.abs(np.exp(predicted - judged.logarithms) - 1)
    spread = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return table_of_ratios(axes, ratios_on(axes, measured), len(measured.sizes), spread)


def ratios_on(axes: dict[str, tuple[int, ...]], measured: Measurements) -> list[float]:
    """Logarithms of the ratios at the points of a grid."""
    points = np.stack(np.meshgrid(*(np.log(sizes) for sizes in axes.values()), indexing="ij"), -1)
    flat, where = points.reshape(-1, len(axes)), np.log(measured.sizes)
    return [
        float(value)
        for block in np.array_split(flat, len(flat) // BLOCK + 1)
        for value in _means(block, where, measured.logarithms)
    ]


def _means(points: Floats, where: Floats, logarithms: Floats) -> Floats:
    """Means of the measured logarithms around points [points, axes]."""
    distances = np.sqrt(((points[:, None, :] - where[None]) ** 2).sum(-1))
    weights = np.exp(-distances / REACH) + FLOOR / (1 + distances**2)
    mean = (weights * logarithms).sum(1) / weights.sum(1)
    weights /= np.sqrt(1 + ((logarithms - mean[:, None]) / OUTLIER) ** 2)
    return np.asarray((weights * logarithms).sum(1) / weights.sum(1))


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
