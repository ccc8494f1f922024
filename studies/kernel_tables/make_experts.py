"""Add tables of experts' grouped products to the tables of measured kernels, and print how far they are from others.

    python -m quadrille.studies.kernel_tables.make_experts FOLDER

FOLDER holds moe_SYSTEM.csv.gz (dtype, distribution, hidden, inter, topk, experts, tp, ep, tokens, gated, seconds), as
taken from aiconfigurator.  Only 16 bits, balanced experts and at least `LEAST_ROWS` rows of an expert count, as in
training.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.studies.kernel_tables.make_tables import SYSTEMS, Measurements, rows_of, table_of
from quadrille.topologies.nodes.kernel_tables import FOLDER, KernelTable, experts_bound, kernel_table

WITHOUT = ("a100_sxm",)
"""Systems whose measured experts are 10 times slower than SimuMax's grouped products, and therefore in no table."""
LEAST_ROWS = 16
"""Least rows of an expert."""
LEAST_INNER = 64
"""Least columns of the hidden layer of an expert on a rank."""
AXES = {
    "rows": (16, 64, 256, 1024, 4096, 16384),
    "experts": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "columns": (1024, 2048, 4096, 7168),
    "hidden": (256, 512, 1024, 2048, 4096, 14336),
}


def main(folder: str = "") -> None:
    """Add the experts of every GPU to its table.

    Raises
    ------
    InputError : no folder, or files that are missing
    """
    paths = {system: Path(folder) / f"moe_{system}.csv.gz" for system in SYSTEMS if system not in WITHOUT}
    missing = [path.name for path in paths.values() if not folder or not path.is_file()]
    if missing:
        raise InputError(f"folder {folder!r}: {missing[0]} is missing; a folder with moe_SYSTEM.csv.gz is accepted")
    lines = []
    for system, path in paths.items():
        name, _ = SYSTEMS[system]
        kernels = kernel_table(name)
        experts = table_of(AXES, experts_measured(path, kernels))
        kernels = msgspec.structs.replace(kernels, experts=experts)
        schema_files.write_bytes(Path(FOLDER, f"{name}.json"), msgspec.json.encode(kernels) + b"\n")
        lines.append([name, str(experts.rows), percent(experts.median_error), percent(experts.most_error)])
    print_tables(table("", ("table", "measurements", "median error", "90th percentile"), lines, names=1))


def experts_measured(path: Path, kernels: KernelTable) -> Measurements:
    """The measured experts of a file: rows of an expert, experts, columns and hidden columns, and measured / bound."""
    peak, rate = kernels.peak_flops_per_second["bfloat16"], kernels.memory_bytes_per_second
    sizes, logarithms = [], []
    for of_rank, gated, seconds in _ranks(path):
        per_expert, experts, columns, hidden = of_rank
        bound = experts_bound(per_expert * experts, experts, columns, hidden, peak, rate, gated=gated)
        sizes.append(of_rank)
        logarithms.append(np.log(seconds / bound))
    return Measurements(np.array(sizes), np.array(logarithms))


def _ranks(path: Path) -> Iterator[tuple[tuple[float, float, float, float], bool, float]]:
    """Rows of an expert, experts, columns and hidden columns of a rank; whether experts are gated; seconds."""
    for row in rows_of(path):
        if row["dtype"] != "bfloat16" or row["distribution"] != "balanced":
            continue
        experts, hidden = int(row["experts"]) / int(row["ep"]), int(row["inter"]) / int(row["tp"])
        rows = int(row["tokens"]) * int(row["topk"]) / int(row["ep"])
        if rows >= LEAST_ROWS * experts and hidden >= LEAST_INNER:
            yield (rows / experts, experts, float(row["hidden"]), hidden), row["gated"] == "1", float(row["seconds"])


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
