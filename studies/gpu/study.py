"""`quadrille study gpu`, which is `make bench-gpu`: how fast one GPU is, and whether ranks that share it are predicted.

Question: how near do products come to a GPU's best by shape and dtype, what do copies, staging and launches cost, how
long do 1, 2, 4 and 8 ranks on one GPU take beside their prediction from these, and what does the executor cost?
"""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import files
from quadrille.algorithms.formats.measured_rows import Dtype
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.measure.batch import Case, measure
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import Row, percent, print_tables, table
from quadrille.experiments.predict.predict import prediction_of
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.arrays.cupy_library import open_cupy
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.runtime.host.devices import load_cupy
from quadrille.runtime.measuring.device_benchmarks import DeviceBench, DeviceProduct, DeviceStream, LaunchCost
from quadrille.studies.gpu.calibration import DTYPES, measure_device, only_first_gpu
from quadrille.topologies.machines.machine import Machine, save_machine

SCHEMA = "quadrille/gpu/1"
RESULTS = Path(__file__).resolve().parent / "results"
GRIDS = {1: Grid(), 2: Grid(z=2), 4: Grid(z=2, x=2), 8: Grid(z=2, y=2, x=2)}
SHARED = 4096, 4096, 4096
SHARED_DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
EXECUTED_SIZE = 8192
EXECUTED: tuple[DType, ...] = ("float16", "bfloat16")
LEAST_SHARE = 0.95
"""Of the speed of a bare product that a whole run of one rank is to reach."""


class Shared(msgspec.Struct, frozen=True):
    """A product on so many ranks of the GPU: predicted from what was measured, and run."""

    ranks: int
    dtype: str
    predicted_seconds: float
    seconds: float


class Executed(msgspec.Struct, frozen=True):
    """A product by CuPy alone, and as a whole run of one rank, in turns."""

    size: int
    dtype: str
    bare_seconds: float
    seconds: float

    @property
    def share(self) -> float:
        return self.bare_seconds / self.seconds


class GpuSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The study's answer, as it is written."""

    device: str
    products: tuple[DeviceProduct, ...]
    streams: tuple[DeviceStream, ...]
    launch: LaunchCost
    executed: tuple[Executed, ...]
    shared: tuple[Shared, ...]
    provenance: Provenance


def main() -> None:
    """Ask as usual, and keep the answer and the machine file; say so where there is no GPU."""
    try:
        load_cupy()
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{date.today()}"
    gpu(json=f"{kept}.json", out=f"{kept}.toml", command=["quadrille", "study", "gpu"])


def gpu(*, json: str = "", out: str = "", ranks: Sequence[int] = tuple(GRIDS), command: Sequence[str] = ()) -> GpuSpeed:
    """Measures the GPU, predicts and runs ranks that share it, and prints the tables.

    Parameters
    ----------
    json, out : where the answer and the machine file go
    ranks : numbers of ranks that share the GPU, of `GRIDS`

    Raises
    ------
    InputError : no CuPy, no GPU, a file that cannot be written
    """
    Destinations(json=json).check({"--out": out} if out else {})
    if out:
        files.check_writable(out)
    library = open_cupy("bfloat16", 0)
    bench, made = DeviceBench(library), provenance(list(command))
    executed = tuple(Executed(EXECUTED_SIZE, one, *bench.executor_ratio(EXECUTED_SIZE, one)) for one in EXECUTED)
    with only_first_gpu():
        measured = measure_device(library, ranks, made)
        shared = tuple(_shared(measured.machine, ranks))
    answer = GpuSpeed(
        device=str(library.device),
        products=measured.products,
        streams=measured.streams,
        launch=measured.launch,
        executed=executed,
        shared=shared,
        provenance=made,
    )
    if out:
        save_machine(measured.machine, out)
    if json:
        files.write_json(json, answer, SCHEMA)
    if json != files.STDOUT:
        show(answer)
    return answer


def _shared(machine: Machine, counts: Sequence[int]) -> Iterator[Shared]:
    """The same product on numbers of ranks, predicted and run."""
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            cases = [
                Case(
                    MatmulExperiment(Matmul(*SHARED, dtype=dtype), GRIDS[count]),
                    str(Path(folder) / f"{count} {dtype}.json"),
                    RunOptions(backend="cupy", carrier="mpi"),
                )
                for dtype in SHARED_DTYPES
            ]
            measure(count, cases)
            for case in cases:
                predicted, _ = prediction_of(case.experiment, machine, backend="cupy")
                yield Shared(count, case.experiment.dtype, predicted.seconds, load_record(case.record).seconds)


def show(answer: GpuSpeed) -> None:
    """Prints what was found, a table for each part."""
    best = {dtype: max(one.flops_per_second for one in answer.products if one.dtype == dtype) for dtype in DTYPES}
    print_tables(
        table(
            f"Products on {answer.device}; tf32 is float32 multiplied in TF32",
            ["m x k x n", "layout", *(f"{dtype} Tflop/s (of its best)" for dtype in DTYPES)],
            list(_product_rows(answer.products, best)),
        ),
        table("Memory and staging", ["operation", "written", "rate"], list(map(_stream_row, answer.streams))),
        table(
            "Handing work over",
            ["what", "time"],
            [
                ("one after the other", format_seconds(answer.launch.seconds)),
                ("alone, until its end is known", format_seconds(answer.launch.alone_seconds)),
            ],
        ),
        table(
            f"A whole run of one rank beside a bare product; at least {LEAST_SHARE:.0%} of its speed is to be reached",
            ["product", "bare", "run", "share"],
            [
                (f"{one.size}^3 {one.dtype}", *map(format_seconds, (one.bare_seconds, one.seconds)), f"{one.share:.1%}")
                for one in answer.executed
            ],
        ),
        table(
            f"{','.join(map(str, SHARED))} on ranks that share the GPU, staged through the host",
            ["ranks", "dtype", "predicted", "measured", "error"],
            [
                (
                    str(one.ranks),
                    one.dtype,
                    *map(format_seconds, (one.predicted_seconds, one.seconds)),
                    percent(one.predicted_seconds / one.seconds - 1),
                )
                for one in answer.shared
            ],
        ),
    )


def _product_rows(products: Sequence[DeviceProduct], best: dict[Dtype, float]) -> Iterator[Row]:
    by_key = {(one.m, one.k, one.n, one.layout, one.dtype): one for one in products}
    for m, k, n, layout in dict.fromkeys(key[:4] for key in by_key):
        rates = [by_key[m, k, n, layout, dtype].flops_per_second for dtype in DTYPES]
        shares = [rate / best[dtype] for rate, dtype in zip(rates, DTYPES, strict=True)]
        cells = (f"{rate / 1e12:.1f} ({share:.0%})" for rate, share in zip(rates, shares, strict=True))
        yield f"{m} x {k} x {n}", layout, *cells


def _stream_row(one: DeviceStream) -> Row:
    return one.operation, format_bytes(one.bytes), format_bytes_per_second(one.bytes / one.seconds)


if __name__ == "__main__":
    run_as_program(main)
