"""Tables of the GPU study: measured rates as shares of the data sheet's peaks, and predicted against measured runs."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group

from quadrille.algorithms.formats.measured_rows import Dtype
from quadrille.algorithms.units import format_bytes, format_bytes_per_second
from quadrille.experiments.output.tables import UNKNOWN, Row, duration, percent, table
from quadrille.runtime.measuring.device_benchmarks import DeviceProduct, LaunchCost
from quadrille.studies.gpu.calibration import DTYPES, Calibration, StagedTransfers
from quadrille.topologies.nodes import gpus
from quadrille.topologies.nodes.gpus import Gpu
from quadrille.topologies.nodes.peak_shares import MULTIPROCESSORS, Product, fit_shares

LEAST_EXECUTOR_SHARE = 0.95
"""Least share of a bare product's speed that a whole run of one rank has to reach."""
LARGE = 2048
"""Rows and columns from which a product fills a GPU."""
DATA_SHEETS = {
    "V100": gpus.V100_32GB,
    "A100": gpus.A100_80GB,
    "GH200": gpus.GH200_96GB,
    "H200": gpus.H200_SXM,
    "H100": gpus.H100_SXM,
    "B200": gpus.B200_SXM,
}
"""Data sheets by a part of the name that CUDA gives the GPU; the first match counts."""


class SharedRun(msgspec.Struct, frozen=True):
    """A matmul on ranks that share the GPU: predicted from the GPU's machine file, and measured.

    Parameters
    ----------
    matmul : m, k and n
    ranks : number of ranks
    dtype : dtype of the matrices
    predicted_seconds : predicted time [s]
    seconds : measured time [s]
    verified : whether the result was right
    """

    matmul: str
    ranks: int
    dtype: str
    predicted_seconds: float
    seconds: float
    verified: bool

    @property
    def error(self) -> float:
        """The relative error of the prediction; negative if the prediction is too short."""
        return self.predicted_seconds / self.seconds - 1


class ExecutedRun(msgspec.Struct, frozen=True):
    """A matmul of one rank, measured as a bare library call and as a whole run, alternately.

    Parameters
    ----------
    size : m = k = n
    dtype : dtype of the matrices
    bare : name of the library call
    bare_seconds : median time of the call [s]
    seconds : median time of the run [s]
    share : median of the ratios of the call's time to the run's
    """

    size: int
    dtype: str
    bare: str
    bare_seconds: float
    seconds: float
    share: float


def data_sheet(name: str) -> Gpu | None:
    """The data sheet of the GPU that CUDA calls `name`, or None if there is none.

    >>> data_sheet("NVIDIA H100 80GB HBM3").name, data_sheet("Fake GPU")
    ('H100 SXM', None)
    """
    return next((gpu for word, gpu in DATA_SHEETS.items() if word in name), None)


def best_rates(calibration: Calibration) -> dict[Dtype, float]:
    """The rate of the fastest product of each dtype [flop/s]."""
    return {
        dtype: max(rates)
        for dtype in DTYPES
        if (rates := [product.flops_per_second for product in calibration.products if product.dtype == dtype])
    }


def peaks(calibration: Calibration) -> dict[str, float]:
    """The peak rate of each dtype [flop/s]: the data sheet's, or the best measured rate if the sheet has none."""
    sheet = data_sheet(calibration.name)
    best = {str(dtype): rate for dtype, rate in best_rates(calibration).items()}
    return best | (sheet.peak_flops_per_second if sheet else {})


def summary_of(calibration: Calibration) -> Calibration:
    """The part of a calibration whose tables fit a screen: products without transposes, and the largest streams."""
    largest = max((stream.bytes for stream in calibration.streams), default=0)
    return msgspec.structs.replace(
        calibration,
        products=tuple(product for product in calibration.products if product.layout == "NN"),
        streams=tuple(stream for stream in calibration.streams if stream.bytes == largest),
        kernels=(),
        staged=StagedTransfers(),
    )


def data_sheet_shares(calibration: Calibration) -> dict[str, tuple[float, str]]:
    """Shares of the data sheet that the GPU achieves, as in `topologies/nodes/peak_shares.py`, each with its source.

    The quantities are those of the project's GPU models: `product_share` and `ramp` from a fit to large products,
    `memory_share` from copies; `best product` is a rate [flop/s].  Empty if the data sheet is unknown, or if
    products or copies are not measured.
    """
    sheet, dtype = data_sheet(calibration.name), "bfloat16"
    rows = [
        Product(1, product.m, product.k, product.n, product.flops_per_second)
        for product in calibration.products
        if (product.dtype, product.layout) == (dtype, "NN") and min(product.m, product.n) >= LARGE
    ]
    copies = [2 * stream.bytes / stream.seconds for stream in calibration.streams if stream.operation == "copy"]
    if sheet is None or sheet.generation not in MULTIPROCESSORS or len({row.k for row in rows}) < 2 or not copies:
        return {}
    best = max(rows, key=lambda row: row.flops_per_second)
    share, ramp = fit_shares(rows, sheet.peak_flops_per_second[dtype], MULTIPROCESSORS[sheet.generation][0])
    source = f"{calibration.name}, {calibration.provenance.date[:10]}"
    return {
        "product_share": (share, f"fit to {len(rows)} products NN in {dtype}, {source}"),
        "ramp": (ramp, "the same fit"),
        "memory_share": (max(copies) / sheet.memory_bytes_per_second, f"bytes read and written by a copy, {source}"),
        "best product": (best.flops_per_second, f"{best.m} x {best.k} x {best.n} in {dtype}, {source}"),
    }


def calibration_tables(calibration: Calibration) -> list[Group]:
    """The tables of a calibration, one for each part that was measured."""
    peak_source = "data sheet's peak" if data_sheet(calibration.name) else "best that was measured"
    dtypes = list(best_rates(calibration))
    parts: list[tuple[str, list[str], list[Row]]] = [
        (
            f"Products on {calibration.device}, and the share of the {peak_source}; tf32 is float32 multiplied in TF32",
            ["m x k x n", "layout", *(f"{dtype} Tflop/s" for dtype in dtypes)],
            list(_product_rows(calibration.products, dtypes, peaks(calibration))),
        ),
        ("Memory and staging", ["operation", "written", "rate"], list(_stream_rows(calibration))),
        ("Functions of layers, and softmax", ["function", "dtype", "touched", "rate"], list(_kernel_rows(calibration))),
        (
            "Causal attention",
            ["function", "dtype", "sequences x tokens, heads x columns", "Tflop/s", "of bytes in and out"],
            list(_attention_rows(calibration)),
        ),
        ("Handing work over", ["what", "time"], list(_launch_rows(calibration.launch))),
        (
            "What the GPU reaches of its data sheet, as topologies/nodes/peak_shares.py has it",
            ["quantity", "from", "value"],
            [(name, source, f"{value:.4g}") for name, (value, source) in data_sheet_shares(calibration).items()],
        ),
        ("Messages between ranks, staged", ["pattern, ranks", "bytes", "time"], list(_staged_rows(calibration))),
    ]
    return [table(title, columns, rows, names=2) for title, columns, rows in parts if rows]


def executed_table(executed: Sequence[ExecutedRun]) -> Group:
    """The table of whole runs and bare products."""
    rows = [
        (
            f"{run.size}^3 {run.dtype}",
            run.bare,
            *map(duration, (run.bare_seconds, run.seconds)),
            percent(run.share, signed=False),
        )
        for run in executed
    ]
    least = f"{LEAST_EXECUTOR_SHARE:.0%}"
    title = f"A whole run of one rank beside a bare product; at least {least} of its speed is to be reached"
    return table(title, ["product", "bare product by", "bare", "run", "share"], rows, names=2)


def shared_table(shared: Sequence[SharedRun]) -> Group:
    """The table of runs on ranks that share the GPU."""
    rows = [
        (
            str(run.ranks),
            run.dtype,
            *map(duration, (run.predicted_seconds, run.seconds)),
            percent(run.error),
            "yes" if run.verified else "NO",
        )
        for run in shared
    ]
    title = f"{shared[0].matmul if shared else ''} on ranks that share the GPU, staged through the host"
    return table(title, ["ranks", "dtype", "predicted", "measured", "error", "verified"], rows, names=2)


def _product_rows(products: Sequence[DeviceProduct], dtypes: Sequence[Dtype], peak: dict[str, float]) -> Iterator[Row]:
    """The rows of matrix products, with shares of `peak` [flop/s]."""
    rates = {
        (product.m, product.k, product.n, product.layout, product.dtype): product.flops_per_second
        for product in products
    }
    for m, k, n, layout in dict.fromkeys(key[:4] for key in rates):
        rates_and_peaks = [(rates.get((m, k, n, layout, dtype)), peak[dtype]) for dtype in dtypes]
        cells = (f"{rate / 1e12:.1f} ({rate / top:.0%})" if rate else UNKNOWN for rate, top in rates_and_peaks)
        yield f"{m} x {k} x {n}", layout, *cells


def _stream_rows(calibration: Calibration) -> Iterator[Row]:
    """The rows of memory operations and of copies between host and device."""
    for stream in calibration.streams:
        yield stream.operation, format_bytes(stream.bytes), format_bytes_per_second(stream.bytes / stream.seconds)


def _kernel_rows(calibration: Calibration) -> Iterator[Row]:
    """Rows of the largest matrix of each function and dtype."""
    largest = {
        (kernel.function, kernel.dtype): kernel
        for kernel in sorted(calibration.kernels, key=lambda kernel: kernel.bytes)
    }
    for (function, dtype), kernel in sorted(largest.items()):
        yield function, dtype, format_bytes(kernel.bytes), format_bytes_per_second(kernel.bytes / kernel.seconds)


def _attention_rows(calibration: Calibration) -> Iterator[Row]:
    """The rows of attention."""
    for attention in calibration.attention:
        shape = f"{attention.sequences} x {attention.tokens}, {attention.heads} x {attention.head}"
        rates = f"{attention.flops_per_second / 1e12:.2f}", format_bytes_per_second(attention.bytes / attention.seconds)
        yield attention.function, attention.dtype, shape, *rates


def _launch_rows(launch: LaunchCost | None) -> Iterator[Row]:
    """The rows of the launch cost."""
    if launch is not None:
        yield "one after the other", duration(launch.seconds)
        yield "alone, until its end is known", duration(launch.alone_seconds)


def _staged_rows(calibration: Calibration) -> Iterator[Row]:
    """The rows of staged messages between ranks."""
    for row in calibration.staged.rows:
        yield f"{row.pattern}, {row.ranks}", format_bytes(row.bytes), duration(row.seconds)
