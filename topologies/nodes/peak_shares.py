"""Shares of a GPU's peak compute and memory rates that kernels achieve, derived from public microbenchmarks.

A GEMM is cut into tiles of 256 x 128, and one tile runs on each multiprocessor at
a time (*tile quantization*: edge tiles and the last round of tiles are not full).
A tile of inner length k reaches `product_share` k /
(k + `ramp`) of the peak.  For A100 both numbers are a least-squares fit to the
rows below.  For other GPUs only the fastest of many products is taken: their
share reproduces that product, times the ratio of A100's fit to A100's fastest
product, because the many products of a training step lower the clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from quadrille.topologies.nodes.gpus import Generation
from quadrille.topologies.quantity import Quantity

TILE = (256, 128)
TILE_SOURCE = (
    'NVIDIA, "Matrix Multiplication Background", DU-09799-001, 2023, sections 2.3, 3.1 and 3.2: the tile that cuBLAS '
    "prefers for large products, and whole waves of tiles"
)
A100_SOURCE = (
    "EleutherAI/cookbook, benchmarks/sizing/sample_results (transformer.out, bmm.out), one A100, fp16; "
    'Anthony et al., "The Case for Co-Designing Model Architectures with Hardware", 2024'
)
AICONFIGURATOR = (
    "aiconfigurator-core 0.12.0 (NVIDIA, PyPI), GEMM tables: the fastest of the products in bfloat16 without a bias, "
    "whose time is the median of the inference frameworks' calls of torch's linear"
)
BEST_SOURCE = "stas00/ml-engineering, compute/accelerator/README.md, maximum achievable matmul FLOPS, bf16"
TENSOR_CORES_2018 = (
    'Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", IPDPSW 2018: '
    "83e12 with cuBLAS, taken as met by 8192 x 8192 x 8192"
)

HIPKITTENS = (
    'Hu et al., "HipKittens: Fast and Furious AMD Kernels", arXiv 2511.08083, table 2: 1610e12 in bfloat16 on MI355X, '
    "taken as met by 8192 x 8192 x 8192"
)


@dataclass(frozen=True, slots=True)
class Product:
    """A measured batch of `count` products [m, k] x [k, n], and its achieved rate [flop/s]."""

    count: int
    m: int
    k: int
    n: int
    flops_per_second: float

    def tile_efficiency(self, multiprocessors: int) -> float:
        """Tile efficiency: elements of the product / elements of all tiles, edge tiles and the last round whole."""
        tiles = self.count * ceil(self.m / TILE[0]) * ceil(self.n / TILE[1])
        computed = ceil(tiles / multiprocessors) * multiprocessors * TILE[0] * TILE[1]
        return self.count * self.m * self.n / computed


A100_PRODUCTS = (
    Product(1, 8192, 4096, 12288, 241.616e12),
    Product(1, 8192, 4096, 4096, 234.852e12),
    Product(1, 8192, 4096, 16384, 241.128e12),
    Product(1, 8192, 16384, 4096, 252.764e12),
    Product(1, 8192, 4096, 51200, 255.380e12),
    Product(64, 2048, 256, 2048, 130.182e12),
    Product(64, 2048, 2048, 256, 218.952e12),
    Product(128, 1024, 1024, 1024, 227.295e12),
)
A100_PEAK = 312e12
MULTIPROCESSORS: dict[Generation, tuple[int, str]] = {
    "volta": (80, 'NVIDIA, "Tesla V100 GPU Architecture", WP-08608-001, 2017'),
    "ampere": (108, 'NVIDIA, "A100 Tensor Core GPU Architecture", 2020'),
    "hopper": (132, 'NVIDIA, "H100 Tensor Core GPU Architecture", 2022, SXM5'),
    "blackwell": (148, "multi_processor_count of a B200 as PyTorch prints it (of a GB200: 152)"),
    "cdna2": (110, 'AMD, "CDNA 2 Architecture" white paper, 2021, one of two dies'),
    "cdna3": (304, 'AMD, "Instinct MI300X Accelerator" data sheet, 2023'),
    "cdna4": (256, "AMD, ROCm documentation, AMD GPU specifications: MI355X, 256 compute units"),
}
BEST_PRODUCTS: dict[Generation, tuple[Product, float, str]] = {
    "volta": (Product(1, 8192, 8192, 8192, 83e12), 125e12, TENSOR_CORES_2018),
    "ampere": (Product(1, 1024, 5120, 10240, 271.2e12), A100_PEAK, f"{BEST_SOURCE}, A100 SXM"),
    "hopper": (Product(1, 2048, 13312, 2048, 794.5e12), 989.4e12, f"{BEST_SOURCE}, H100 SXM"),
    "blackwell": (Product(1, 1536, 51200, 6144, 1699.9e12), 2250e12, f"{AICONFIGURATOR}, B200"),
    "cdna2": (Product(1, 1024, 14080, 19968, 147.0e12), 191.5e12, f"{BEST_SOURCE}, MI250X, older table"),
    "cdna3": (Product(1, 4096, 10240, 4864, 781.9e12), 1307.4e12, f"{BEST_SOURCE}, MI300X, older table"),
    "cdna4": (Product(1, 8192, 8192, 8192, 1610e12), 2516.6e12, HIPKITTENS),
}
GELU_SHARE = (
    0.7,
    f"{A100_SOURCE}: GELU, 5.4e8 B in 0.5 ms, of 1.555e12 B/s (printed to one digit: 0.6 to 0.8)",
)
CAST_SHARE = (
    0.86,
    "aiconfigurator-core 0.12.0 (NVIDIA, PyPI), scaling and casting of matrices from 5e8 elements, 3 bytes each: 0.86 "
    "of the data sheet on B200, 0.90 on H100; SimuMax's a100_pcie.json has 0.91 on A100",
)
MEMORY_SHARES: dict[Generation, tuple[float, str]] = dict.fromkeys(("ampere", "hopper", "blackwell"), CAST_SHARE)
"""Share of the memory bandwidth that passes over memory reach, with its source; others have `GELU_SHARE`."""


BEST_PRODUCTS_BY_NAME: dict[str, tuple[Product, float, str]] = {
    "B300 SXM": (Product(1, 3072, 16384, 3072, 1850.6e12), 2250e12, f"{AICONFIGURATOR}, B300"),
    "GB200": (Product(1, 1536, 51200, 6144, 1884.5e12), 2500e12, f"{AICONFIGURATOR}, GB200"),
    "GB300": (Product(1, 1536, 65536, 6144, 2079.3e12), 2500e12, f"{AICONFIGURATOR}, GB300, whole tiles"),
}
"""The fastest products of GPUs that differ from the others of their generation, by name."""


def a100_fit() -> tuple[float, float]:
    """`product_share` and `ramp` of the A100, fitted to its rows.

    >>> [round(number, 3) for number in a100_fit()]
    [0.855, 257.384]
    """
    return fit_shares(A100_PRODUCTS, A100_PEAK, MULTIPROCESSORS["ampere"][0])


def fit_shares(rows: Sequence[Product], peak: float, multiprocessors: int) -> tuple[float, float]:
    """`product_share` and `ramp` that fit measured products best: 1 / share + ramp / share / k, relative least squares.

    Parameters
    ----------
    rows : measured products with several inner lengths k
    peak : peak rate of the data sheet [flop/s]
    multiprocessors : number of multiprocessors of the GPU
    """
    measured = np.array([row.flops_per_second / peak / row.tile_efficiency(multiprocessors) for row in rows])
    terms = np.array([[1.0, 1.0 / row.k] for row in rows]) * measured[:, None]
    (inverse_share, per_k), *_ = np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)
    return float(1 / inverse_share), float(per_k / inverse_share)


def peak_shares(generation: Generation, name: str = "") -> tuple[Quantity, ...] | None:
    """The shares of the peaks that GPUs achieve, with sources; None without published measurements.

    Parameters
    ----------
    name : name of a GPU that differs from others of its generation

    >>> b200, gb300 = peak_shares("blackwell"), peak_shares("blackwell", "GB300")
    >>> round(b200[0].number, 2), round(gb300[0].number, 2)
    (0.72, 0.79)
    """
    if generation not in BEST_PRODUCTS:
        return None
    share, ramp = a100_fit()
    lower = share / _best_product_share(BEST_PRODUCTS["ampere"], "ampere", ramp)
    count, source = MULTIPROCESSORS[generation]
    best = BEST_PRODUCTS_BY_NAME.get(name, BEST_PRODUCTS[generation])
    if generation != "ampere":
        share = min(1.0, lower * _best_product_share(best, generation, ramp))
    words = f"fit to {A100_SOURCE}" if generation == "ampere" else f"{best[2]}; times {lower:.3f}, see there"
    return (
        Quantity("achieved.product_share", share, words),
        Quantity("achieved.ramp", ramp, f"fit to {A100_SOURCE}"),
        Quantity("achieved.tile_rows", TILE[0], TILE_SOURCE),
        Quantity("achieved.tile_columns", TILE[1], TILE_SOURCE),
        Quantity("achieved.multiprocessors", count, source),
        Quantity("achieved.memory_share", *MEMORY_SHARES.get(generation, GELU_SHARE)),
    )


def _best_product_share(best: tuple[Product, float, str], generation: Generation, ramp: float) -> float:
    row, peak, _ = best
    return row.flops_per_second / peak / row.tile_efficiency(MULTIPROCESSORS[generation][0]) * (row.k + ramp) / row.k
