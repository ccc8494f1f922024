"""Judge predicted steps with products in small numbers by Megatron Bridge's performance tables.

    python -m quadrille.studies.small_numbers.study

Each row is predicted twice: with the table of measured kernels of its GPU, and with shares of the peaks.  Nothing is
fitted to a row.  Beside it stands the same step in bfloat16, which the tables do not print.

The options are those of the benchmark recipes: weights in small numbers alone, 16-bit gradients, no layer in 16 bits,
no recomputation, ZeRO 1, for Llama 3 70B and 405B sequence parallelism where there is tensor parallelism.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b, docs/performance-summary.md and -archive.md (tokens per second and
GPU; a step is batch · sequence / (tokens/s · GPUs)), perf_recipes/_common.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.tabular import comma_separated
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine

RESULTS = Path(__file__).resolve().parent / "results" / "rows.csv"
TABLES = {
    "h100-superpod": "h100-sxm",
    "b200-node": "b200-sxm",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
}
"""Table of measured kernels by machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """A published step.

    Parameters
    ----------
    release : release of the container
    batch, micro_batch : sequences of a step, and of a microbatch
    grid : tensor parallelism over x
    chunks : layer chunks of a pipeline stage
    seconds : published time of a step [s]
    """

    release: str
    model: str
    machine: str
    products: Products
    batch: int
    micro_batch: int
    grid: Grid
    chunks: int
    seconds: float


EIGHT = Grid(data=8)
ROWS = (
    Row("25.11", "llama3-8b", "gb300-nvl72", "fp8", 128, 2, EIGHT, 1, 3.49),
    Row("25.11", "llama3-8b", "gb300-nvl72", "mxfp8", 128, 2, EIGHT, 1, 3.63),
    Row("25.11", "llama3-8b", "gb200-nvl72", "fp8", 128, 2, EIGHT, 1, 4.16),
    Row("25.11", "llama3-8b", "gb200-nvl72", "mxfp8", 128, 2, EIGHT, 1, 4.40),
    Row("25.11", "llama3-8b", "b200-node", "fp8", 128, 2, EIGHT, 1, 4.28),
    Row("25.11", "llama3-8b", "b200-node", "mxfp8", 128, 2, EIGHT, 1, 4.44),
    Row("26.02.01", "llama3-70b", "gb300-nvl72", "mxfp8", 256, 2, Grid(pipeline=4, data=16), 1, 6.83),
    Row("26.02.01", "llama3-70b", "gb300-nvl72", "nvfp4", 256, 2, Grid(data=64), 1, 4.68),
    Row("26.04.01", "llama3-70b", "h100-superpod", "fp8", 256, 1, Grid(pipeline=8, data=2, x=4), 5, 19.69),
)


COLUMNS = ("release", "model", "machine", "gpus", "products", "measured", "table", "shares", "bfloat16 table")


def main() -> None:
    """Predict all rows, and write them."""
    cells = [(row.release, row.model, row.machine, row.grid.size, row.products, row.seconds, *of(row)) for row in ROWS]
    schema_files.write_text(RESULTS, comma_separated(COLUMNS, cells))


def of(row: Row) -> Iterator[str]:
    """Predicted seconds of a row: with the table, with shares, and in bfloat16 with the table."""
    machine = find_machine(row.machine)
    device = msgspec.structs.replace(machine.device, kernel_table=TABLES[row.machine])
    with_table = msgspec.structs.replace(machine, device=device)
    yield predicted(experiment_of(row), with_table)
    yield predicted(experiment_of(row), machine)
    yield predicted(experiment_of(replace(row, products="dtype")), with_table)


def predicted(experiment: TrainingExperiment, machine: Machine) -> str:
    """Predicted seconds of a step."""
    return f"{simulated_step(experiment, machine).seconds:.4g}"


def experiment_of(row: Row) -> TrainingExperiment:
    """The step of a row, with the options of the benchmark recipes."""
    problem: Gpt = gpt_from_shape(
        SHAPES[row.model],
        row.batch,
        dtype="bfloat16",
        micro_batch=row.micro_batch,
        zero=1,
        gradient_bytes=2,
        products=row.products,
        fp8_param_gather=row.products != "dtype",
        interleave=row.chunks,
        pipeline_schedule="interleaved" if row.chunks > 1 else "1f1b",
    )
    scheme = find_scheme("megatron", sequence_parallel=row.grid.x > 1)
    return TrainingExperiment(problem, row.grid, scheme, shape=SHAPES[row.model])


if __name__ == "__main__":
    run_as_program(main)
