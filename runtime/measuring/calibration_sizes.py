"""The sizes of a calibration: numbers of points, problem sizes and durations of its benchmarks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibrationSizes:
    """The sizes of all benchmarks of a calibration; tests take smaller ones.

    Parameters
    ----------
    products : product shapes for each dtype, layout and setting
    smallest, largest : range of the dimensions of products
    stream_bytes : buffer sizes of memory-bound work [B]
    kernel_elements : matrix sizes of layer functions [elements]
    transfer_bytes : message sizes of transfers [B]
    library_bytes : buffer sizes of library collectives [B]
    pool_bytes : size of a pool of operands, larger than the caches [B]
    chain_product : rows and columns of the products in chains of communication steps
    reference_product, reference_bytes : rows and columns of the reference product, and bytes of the copy and the sum
    link_bytes : message sizes between two hosts [B]
    link_repeats : repeats of an empty message and of other messages between two hosts
    link_rest_seconds : rest between two messages: longer than a token bucket needs to fill [s]
    overlap_product, overlap_products, overlap_repeats : rows and columns of products beside messages, their number, and
        repeats of each measurement
    overlap_seconds : length of the gather that shows the cost of messages [s]
    settling_seconds, window_seconds : phases of an all-pairs round [s]. Sixteen hosts take about ten seconds
    """

    products: int = 24
    smallest: int = 128
    largest: int = 4096
    stream_bytes: tuple[int, ...] = (1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
    kernel_elements: tuple[int, ...] = (1 << 12, 1 << 17, 1 << 20)
    transfer_bytes: tuple[int, ...] = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 3 << 24)
    library_bytes: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
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
    settling_seconds: float = 0.2
    window_seconds: float = 0.35


FULL = CalibrationSizes()
"""The sizes of a real calibration."""
