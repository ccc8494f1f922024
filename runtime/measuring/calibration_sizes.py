"""The sizes of a calibration: numbers of points, problem sizes and durations of its benchmarks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quadrille.algorithms.schedule.tensors import DType


@dataclass(frozen=True, slots=True)
class CalibrationSizes:
    """The sizes of all benchmarks of a calibration; tests take smaller ones.

    Parameters
    ----------
    tunes_messages : whether chunk sizes and progress threads of messages are compared
    products : product shapes for each dtype, layout and setting
    most_flops : most operations of a product per thread, by dtype
    smallest, largest : range of the dimensions of products
    stream_bytes : buffer sizes of memory-bound work [B]
    kernel_elements : matrix sizes of layer functions [elements]
    transfer_bytes : message sizes of transfers [B]
    library_bytes : buffer sizes of library collectives [B]
    library_runs, library_rounds : usual number of runs of a library collective, and of rounds of a collective with
        roots
    library_halvings : largest number of times that an interval of these sizes is halved
    library_vector_calls : whether MPI's vector calls, such as `MPI_Allgatherv`, are measured, too
    pool_bytes : size of a pool of operands, larger than the caches [B]
    chain_product : rows and columns of the products in chains of communication steps
    reference_product, reference_bytes : rows and columns of the reference product, and bytes of the copy and the sum
    link_bytes : message sizes between two hosts [B]
    link_repeats : repeats of an empty message and of other messages between two hosts
    link_rest_seconds : rest between two messages: longer than a token bucket needs to fill [s]
    overlap_product, overlap_products, overlap_repeats : rows and columns of products beside messages, their number, and
        repeats of each measurement
    overlap_seconds : length of the gather that shows the cost of messages [s]
    patience_seconds : time after which a disturbed measurement is not repeated [s]
    settling_seconds, window_seconds : phases of an all-pairs round [s]. Sixteen hosts take about ten seconds
    """

    tunes_messages: bool = True
    products: int = 24
    most_flops: Mapping[DType, float] = field(default_factory=lambda: {"float64": 3.2e9, "float32": 6.4e9})
    smallest: int = 128
    largest: int = 4096
    stream_bytes: tuple[int, ...] = (8, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
    kernel_elements: tuple[int, ...] = (1 << 12, 1 << 17, 1 << 20)
    transfer_bytes: tuple[int, ...] = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 3 << 24)
    library_bytes: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
    library_runs: int = 4
    library_rounds: int = 2
    library_halvings: int = 2
    library_vector_calls: bool = True
    pool_bytes: int = 96 << 20
    chain_product: int = 384
    reference_product: int = 384
    reference_bytes: int = 16 << 20
    link_bytes: tuple[int, ...] = tuple(1 << power for power in range(14, 23))
    link_repeats: tuple[int, int] = (9, 5)
    link_rest_seconds: float = 0.01
    overlap_product: int = 1024
    overlap_products: int = 4
    overlap_repeats: int = 7
    overlap_seconds: float = 0.3
    patience_seconds: float = 40.0
    settling_seconds: float = 0.2
    window_seconds: float = 0.35

    def left_out(self) -> list[str]:
        """The measurements of a real calibration that these sizes leave out, in words.

        >>> CalibrationSizes(products=8, library_vector_calls=False).left_out()
        ['calls such as MPI_Allgatherv', '16 of 24 products of each kind']
        """
        sizes = ("stream_bytes", "kernel_elements", "transfer_bytes", "library_bytes")
        fewer = sum(len(getattr(FULL, name)) - len(getattr(self, name)) for name in sizes)
        every = sum(len(getattr(FULL, name)) for name in sizes)
        products = FULL.products - self.products
        possible = {
            "chunk sizes and progress threads of messages": not self.tunes_messages,
            "calls such as MPI_Allgatherv": not self.library_vector_calls,
            f"{products} of {FULL.products} products of each kind": products > 0,
            f"{fewer} of {every} sizes of copies, layer functions, messages and collectives": fewer > 0,
        }
        return [words for words, is_left_out in possible.items() if is_left_out]


FULL = CalibrationSizes()
"""The sizes of a real calibration."""

QUICK = CalibrationSizes(
    tunes_messages=False,
    products=6,
    most_flops={dtype: flops / 4 for dtype, flops in FULL.most_flops.items()},
    stream_bytes=tuple(FULL.stream_bytes[number] for number in (0, 1, 3, 6)),
    kernel_elements=(FULL.kernel_elements[0], FULL.kernel_elements[-1]),
    transfer_bytes=FULL.transfer_bytes[::2],
    library_bytes=FULL.library_bytes[::2],
    library_runs=2,
    library_rounds=1,
    library_halvings=0,
    library_vector_calls=False,
    overlap_repeats=3,
    overlap_seconds=0.2,
    patience_seconds=0.0,
)
"""The sizes of `--quick`: a quarter of the products, half of the other sizes, and no tuning of messages.

A quick calibration of four hosts of an emulated network takes at most two minutes on two cores.
"""
