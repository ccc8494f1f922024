"""Benchmark of messages between ranks that share one GPU, staged through pinned host memory.

The messages and the chains of transfers are those of `quadrille calibrate` on hosts; the buffers are device arrays.

python -m quadrille.studies.gpu.staged_transfers ROWS.json      (on every rank, started by `launch`)
"""

import json
from statistics import median

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.percentiles import spread
from quadrille.runtime.arrays.cupy_library import open_cupy
from quadrille.runtime.carriers.gpu_awareness import gpu_awareness
from quadrille.runtime.carriers.staging import choose_staging
from quadrille.runtime.host.devices import number_on_host
from quadrille.runtime.measuring.chained_transfers import Pattern, measure_chain

PROGRAM = ("-m", "quadrille.studies.gpu.staged_transfers")
SIZES = (8, 1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24)
PATTERNS: tuple[Pattern, ...] = ("shift", "exchange", "one_way")


def main(path: str) -> None:
    """Measure every pattern and message size on all ranks; rank 0 writes the medians and the overheads of an op.

    Parameters
    ----------
    path : JSON file with `rows` (pattern, ranks, bytes, seconds, spread) and `overheads` (issue, compute, single-rank
        op) [s]
    """
    from quadrille.runtime.host.world import world

    communicator = world()
    library = open_cupy("float64", number_on_host(communicator))
    staging = choose_staging(library, gpu_awareness(communicator, library.device), "own")
    rows, overhead_rows = [], []
    for pattern in PATTERNS if communicator.size > 2 else ("shift", "one_way"):
        for size in SIZES:
            seconds, overheads, _ = measure_chain(communicator, pattern, size, library=library, staging=staging)
            rows.append((pattern, communicator.size, size, median(seconds), spread(seconds)))
            overhead_rows.append((overheads.issue_seconds, overheads.compute_seconds, overheads.alone_seconds))
    if communicator.rank == 0:
        overhead = [median(column) for column in zip(*overhead_rows, strict=True)]
        schema_files.write_text(path, json.dumps({"rows": rows, "overheads": overhead}))


if __name__ == "__main__":
    from quadrille.runtime.host.world import run_rank

    run_rank(main)
