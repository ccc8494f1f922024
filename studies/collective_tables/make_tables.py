"""Make the tables of measured collectives inside a node, and print how far they are from measurements left out.

    python -m quadrille.studies.collective_tables.make_tables FOLDER

FOLDER holds nccl.csv.gz (system, nccl, op, dtype, gpus, bytes, seconds), as taken from aiconfigurator.

A point of a table is the logarithm of measured / bound: the median over versions of NCCL, and the mean over element
types.  Two further tables are made for judging: one without a random quarter of the measurements, and one without every
fourth size, at which it has to interpolate.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path

import msgspec
import numpy as np

from quadrille.algorithms.formats import schema_files
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.studies.collective_tables.measured_rows import MeasuredCollective, measured_collectives
from quadrille.topologies.nodes.collective_tables import (
    FOLDER,
    MEASURED,
    SCHEMA,
    CollectiveTable,
    MeasuredKind,
    collective_bound,
)
from quadrille.topologies.nodes.kernel_tables import RatioTable, table_of_ratios

SYSTEMS = {
    "a100_sxm": ("a100-sxm", "A100 SXM", 300e9),
    "h100_sxm": ("h100-sxm", "H100 SXM", 450e9),
    "h200_sxm": ("h200-sxm", "H200 SXM", 450e9),
    "b200_sxm": ("b200-sxm", "B200 SXM", 900e9),
    "b300_sxm": ("b300-sxm", "B300 SXM", 900e9),
    "gb200": ("gb200", "GB200", 900e9),
    "gb300": ("gb300", "GB300", 900e9),
}
"""Name of the table and of the GPU, and its NVLink bandwidth [B/s], by the name of the system in the source.

Source of the bandwidths: NVIDIA's data sheets (`gpu_node.py`, NVLINK3 to NVLINK5).
"""
SOURCE = "aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0): nccl-tests on one node, NCCL 2.23 to 2.29"
SEED, LEFT_OUT, EVERY = 1, 0.25, 4
WIDE = "half"
"""The 2-byte element type of the source; the other one has 1 byte."""
SUMS: tuple[MeasuredKind, ...] = ("all_reduce", "reduce_scatter")
LARGE = 1 << 20
"""Size from which the errors are stated [B]."""
Rows = Sequence[MeasuredCollective]


def main(folder: str = "") -> None:
    """Make all tables from the rows of a folder.

    Raises
    ------
    InputError : no folder, or no file in it
    """
    rows = measured_collectives(folder)
    FOLDER.mkdir(exist_ok=True)
    lines: list[list[str]] = []
    judged: tuple[list[float], list[float]] = [], []
    for system, (name, gpu, rate) in SYSTEMS.items():
        collectives: dict[MeasuredKind, RatioTable] = {}
        wide: dict[MeasuredKind, RatioTable] = {}
        for kind in MEASURED:
            of_kind = [row for row in rows if (row.system, row.kind) == (system, kind)]
            errors = errors_of(quarter_left_out(of_kind), rate), errors_of(sizes_left_out(of_kind), rate)
            axes, ratios = ratios_of(of_kind, rate)
            collectives[kind] = table_of_ratios(axes, ratios, len(of_kind), spread(errors[0]))
            if kind in SUMS:
                wide[kind] = table_of_ratios(*ratios_of(of_kind, rate, wide=True), len(of_kind), (0, 0))
            lines.append([name, kind, str(len(of_kind)), *_words(errors)])
            for every, new in zip(judged, errors, strict=True):
                every.extend(new)
        of_gpu = CollectiveTable(
            schema=SCHEMA, gpu=gpu, source=SOURCE, nvlink_bytes_per_second=rate, collectives=collectives, wide=wide
        )
        schema_files.write_bytes(Path(FOLDER, f"{name}.json"), msgspec.json.encode(of_gpu) + b"\n")
    lines.append(["all", "", str(sum(int(line[2]) for line in lines)), *_words(judged)])
    columns = ("table", "collective", "measurements", "rows: median", "90th", "sizes: median", "90th")
    print_tables(table("errors from 1 MiB, on rows and on sizes left out", columns, lines, names=2))


def _words(errors: tuple[list[float], list[float]]) -> list[str]:
    """Median and 90th percentile of the errors on rows and on sizes left out, as texts."""
    return [percent(value, signed=False) for values in errors for value in spread(values)]


def spread(errors: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile."""
    return float(np.median(errors)), float(np.quantile(errors, 0.9))


def quarter_left_out(rows: Rows) -> tuple[Rows, Rows]:
    """The rows without a random quarter, and this quarter."""
    left_out = np.random.default_rng(SEED).random(len(rows)) < LEFT_OUT
    chosen = [(row, bool(out)) for row, out in zip(rows, left_out, strict=True)]
    return [row for row, out in chosen if not out], [row for row, out in chosen if out]


def sizes_left_out(rows: Rows) -> tuple[Rows, Rows]:
    """The rows without every fourth size, and the rows of these sizes."""
    sizes = sorted({row.bytes for row in rows})[2:-1:EVERY]
    return [row for row in rows if row.bytes not in sizes], [row for row in rows if row.bytes in sizes]


def errors_of(split: tuple[Rows, Rows], rate: float) -> list[float]:
    """Errors of a table of the first rows on the second rows, from 1 MiB.

    Parameters
    ----------
    split : rows of one kind and system
    rate : bandwidth of a GPU's NVLinks [B/s]
    """
    axes, ratios = ratios_of(split[0], rate)
    trial = table_of_ratios(axes, ratios, 0, (0, 0))
    return [
        abs(
            trial.ratio(row.gpus, row.bytes)[0] * collective_bound(row.kind, row.gpus, row.bytes, rate) / row.seconds
            - 1
        )
        for row in split[1]
        if row.bytes >= LARGE
    ]


def ratios_of(rows: Rows, rate: float, *, wide: bool = False) -> tuple[dict[str, tuple[int, ...]], list[float]]:
    """The grid of the measured numbers of GPUs and sizes, and the logarithms of the ratios at its points.

    Sums of 1-byte elements take longer than sums of 2-byte elements of the same size.  The table is in the middle, and
    points at which only one type was measured are corrected by half the median difference of the other points.

    Parameters
    ----------
    wide : whether the table is of 2-byte elements instead of the middle
    """
    ratios = {row: log(row.seconds / collective_bound(row.kind, row.gpus, row.bytes, rate)) for row in rows}
    between = _between_types(ratios)
    samples: dict[tuple[int, int], dict[str, list[float]]] = {}
    for row, ratio in ratios.items():
        samples.setdefault((row.gpus, row.bytes), {}).setdefault(row.dtype, []).append(ratio)
    counts, sizes = (tuple(sorted({key[axis] for key in samples})) for axis in (0, 1))
    middles: dict[tuple[int, int], float] = {}
    for (gpus, size), by_type in samples.items():
        if wide and WIDE in by_type:
            middles[gpus, size] = float(np.median(by_type[WIDE]))
            continue
        middle = float(np.mean([np.median(values) for values in by_type.values()]))
        if len(by_type) == 1 and size >= LARGE:
            middle += between.get(gpus, 0.0) * (-1 if wide else 0.5 if WIDE in by_type else -0.5)
        middles[gpus, size] = middle
    return {"gpus": counts, "bytes": sizes}, [_at(middles, count)(size) for count in counts for size in sizes]


def _between_types(ratios: Mapping[MeasuredCollective, float]) -> dict[int, float]:
    """Median logarithm of the seconds of 1-byte over those of 2-byte elements from 1 MiB, by the number of GPUs."""
    differences: dict[int, list[float]] = {}
    for row, ratio in ratios.items():
        of_one_byte = [
            ratios[narrow]
            for narrow in ratios
            if (narrow.gpus, narrow.bytes, narrow.version) == (row.gpus, row.bytes, row.version)
            if narrow.dtype != WIDE
        ]
        if row.dtype == WIDE and row.bytes >= LARGE and of_one_byte:
            differences.setdefault(row.gpus, []).append(of_one_byte[0] - ratio)
    return {gpus: float(np.median(values)) for gpus, values in differences.items()}


def _at(medians: dict[tuple[int, int], float], count: int) -> Callable[[int], float]:
    """The ratio of a number of GPUs by size; between measured sizes it is linear in the logarithm."""
    points = sorted((log(size), value) for (gpus, size), value in medians.items() if gpus == count)
    places, values = zip(*points, strict=True)
    return lambda size: float(np.interp(log(size), places, values))


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
