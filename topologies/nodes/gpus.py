"""GPUs: their peaks and memories, each number with its source.

Memory is what a device reports to a program.  The runtime takes part of it (`RUNTIME_BYTES`).
Peaks are dense (no structured sparsity) and at the boost clock.  A dtype that
is not listed is not computed by the GPU's matrix units.  The peaks of float8 and
float4 are those of products in small numbers (`small_rates.py`).
"""

from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.units import GIB
from quadrille.topologies.quantity import Quantity, number_named, numbers_by_key

Generation = Literal["volta", "ampere", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"]
SMALL_DTYPES = ("float8", "float4")
"""Dtypes of which GPUs have peaks, and machine files have not."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one of the two dies (GCDs) of an MI250X, with its peaks and memory.

    >>> A100_40GB.peak_flops_per_second["bfloat16"], A100_40GB.memory_bytes
    (312000000000000.0, 42412802048.0)
    """

    name: str
    generation: Generation
    quantities: tuple[Quantity, ...]

    @property
    def peak_flops_per_second(self) -> dict[str, float]:
        """Peak of products, by the dtypes of machine files [flop/s]."""
        return {dtype: peak for dtype, peak in self._peaks.items() if dtype not in SMALL_DTYPES}

    @property
    def small_peaks(self) -> dict[str, float]:
        """Peak of products with elements of 8 and 4 bits, by dtype [flop/s].

        >>> A100_80GB.small_peaks, B200_SXM.small_peaks["float4"]
        ({}, 9000000000000000.0)
        """
        return {dtype: peak for dtype, peak in self._peaks.items() if dtype in SMALL_DTYPES}

    @property
    def _peaks(self) -> dict[str, float]:
        return numbers_by_key(self.quantities, "peak_flops_per_second")

    @property
    def memory_bytes_per_second(self) -> float:
        return number_named(self.quantities, "memory_bytes_per_second")

    @property
    def memory_bytes(self) -> float:
        return number_named(self.quantities, "memory_bytes")

    @property
    def overlap_slowdown(self) -> float:
        """Factor by which communication in progress lengthens local work."""
        return number_named(self.quantities, "overlap_slowdown")

    @property
    def communication_slowdown(self) -> float:
        """Factor by which local work in progress lengthens messages."""
        return number_named(self.quantities, "communication_slowdown")

    @property
    def speed_sigma(self) -> float:
        """Standard deviation of the logarithm of the speed from GPU to GPU."""
        return number_named(self.quantities, "speed_sigma")


def _gpu(
    name: str,
    generation: Generation,
    peaks: dict[str, tuple[float, str]],
    rate: tuple[float, str],
    size: tuple[float, str],
) -> Gpu:
    """A GPU from its peaks [flop/s], memory bandwidth [B/s] and reported memory [B], each with its source."""
    numbers = [Quantity(f"peak_flops_per_second.{dtype}", *peak) for dtype, peak in peaks.items()]
    numbers += [Quantity("memory_bytes_per_second", *rate), Quantity("memory_bytes", *size)]
    numbers += [
        Quantity("overlap_slowdown", 1.0, WORK_SLOWED.get(generation, UNMEASURED)),
        Quantity("communication_slowdown", 1.0, MESSAGES_SLOWED.get(generation, UNMEASURED)),
        _speed_sigma(*SPREADS.get(name, (0.08, f"{SINHA}, on V100 and MI60, taken for these GPUs: an assumption"))),
    ]
    return Gpu(name, generation, tuple(numbers))


def _speed_sigma(spread: float, source: str) -> Quantity:
    """The spread of speeds from GPU to GPU as a standard deviation, from the range of a box plot without outliers."""
    value = round(spread / WHISKERS, 4)
    return Quantity("speed_sigma", value, f"used by --jitter gpus=machine; {source}; {spread:.0%} {AS_WHISKERS}")


WHISKERS = 5.396
"""Standard deviations of a normal distribution from whisker to whisker of a box plot: 4 interquartile ranges."""
AS_WHISKERS = f"is taken as the range of a box plot without outliers, {WHISKERS:.1f} standard deviations"
SINHA = (
    'Sinha et al., "Not All GPUs Are Created Equal", SC22, abstract: 8 % on average, outliers of '
    "1.5 x, on five machines"
)
WEI = (
    'Wei, Pradeep, Bhatele, "The Case of the Elusive Application Performance on Production GPU Supercomputers", IPDPS '
    "2026, FP16 products of all GPUs, from a public summary"
)
SPREADS: dict[str, tuple[float, str]] = {
    "V100 SXM2 16 GB": (0.08, SINHA),
    "A100 SXM 40 GB": (0.12, f"{WEI}: Perlmutter without outliers (28 % with them)"),
    "A100 SXM 80 GB": (0.05, f"{WEI}: the 80 GB GPUs of Perlmutter without outliers"),
    "MI250X GCD": (0.15, f"{WEI}: Frontier (16 % with outliers)"),
}
"""Published spread of the speed of one kind of GPU over a machine, with its source."""
UNMEASURED = "assumption: no slowdown; no public measurement on these GPUs is known to us"
FOUR_KINDS = (
    "assumption: no slowdown, which is optimistic: Lee et al., arXiv 2507.03114, abstract, have 1.189 on average and "
    "1.40 at most, over nodes of four A100, H100, MI250 and MI210 together"
)
AGRAWAL = (
    "assumption: no slowdown, which is optimistic: Agrawal et al., arXiv 2412.14335, abstract, reach 21 % of "
    "what overlap could save on MI300X, and do not say there which of the two is slower by how much"
)
WORK_SLOWED: dict[Generation, str] = {
    "ampere": f"{FOUR_KINDS}; on A100 one user's profile has a product of 2.08 ms beside NCCL and of 1.18 ms without "
    "(NVIDIA/nccl, issue 1428)",
    "hopper": FOUR_KINDS,
    "cdna2": FOUR_KINDS,
    "cdna3": AGRAWAL,
}
"""Sources on local work that overlaps communication; no public measurement gives a factor for one kind of GPU and one
kind of communication, so 1 is assumed."""
MESSAGES_SLOWED: dict[Generation, str] = {"cdna3": AGRAWAL}
"""Sources on messages that overlap local work."""

TABLE_OF_GPU: dict[str, str] = {
    "A100 SXM 40 GB": "a100-sxm",
    "A100 SXM 80 GB": "a100-sxm",
    "H100 SXM": "h100-sxm",
    "H200 SXM": "h200-sxm",
    "B200 SXM": "b200-sxm",
    "B300 SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
}
"""Name of the tables of measured kernels and collectives by the name of the GPU."""

RUNTIME_BYTES = 1.0 * GIB, 0.65 * GIB
"""Memory that the runtime takes of a GPU besides tensors [B]: at the start, and for each further communicator.

The context of CUDA or HIP and the buffers of the first NCCL communicator take about 1 GiB.  Fragments of the allocator
come on top.

Source: LUMI-AI-Guide, issue 111 (1 GiB, 0.65 GiB for each communicator, RCCL); NVIDIA/nccl, issue 964 (544 to 688 MB
with the first communicator on A100); pytorch/pytorch, issue 107667 (a context of 300 MB to more than 1 GB).
"""

V100 = 'NVIDIA, "Tesla V100 GPU Accelerator" data sheet, 2018, SXM2'
A100 = 'NVIDIA, "A100 Tensor Core GPU" data sheet, 2021, SXM'
H100 = 'NVIDIA, "H100 Tensor Core GPU Architecture" whitepaper, 2022, H100 SXM5'
H200 = 'NVIDIA, "H200 Tensor Core GPU" data sheet, 2024, SXM'
GH200 = 'NVIDIA, "GH200 Grace Hopper Superchip" data sheet, 2023, 96 GB HBM3'
HGX_B200 = 'NVIDIA, "HGX Platform", nvidia.com, HGX B200, an eighth of the board'
DGX_B200 = 'NVIDIA, "DGX B200" data sheet, 2024, an eighth of the system'
HGX_B300 = 'NVIDIA, "HGX Platform", nvidia.com, HGX B300, an eighth of the board'
GB200 = 'NVIDIA, "GB200 NVL72" data sheet, 2024, half of a GB200 Grace Blackwell Superchip'
GB300 = 'NVIDIA, "GB300 NVL72" data sheet, 2025, a 72nd of the rack'
MI250X = 'AMD, "Instinct MI250X Accelerator" data sheet, 2021, halved: a GPU here is one of its two GCDs'
MI300X = 'AMD, "Instinct MI300X Accelerator" data sheet, 2023'
MI325X = 'AMD, "Instinct MI325X Accelerator" data sheet, 2024'
MI355X = 'AMD, "Instinct MI355X GPU" data sheet, 2025'
SPARSE_HALF = "half of the sparse figure"

V100_PEAKS = {
    "float64": (7.8e12, f"{V100}: double precision"),
    "float32": (15.7e12, f"{V100}: single precision"),
    "float16": (125e12, f"{V100}: tensor performance (a V100 has no bfloat16 and no tf32)"),
}
A100_PEAKS = {
    "float64": (19.5e12, f"{A100}: FP64 Tensor Core (9.7e12 without)"),
    "float32": (19.5e12, f"{A100}: FP32"),
    "tf32": (156e12, f"{A100}: TF32 Tensor Core, dense"),
    "float16": (312e12, f"{A100}: FP16 Tensor Core, dense"),
    "bfloat16": (312e12, f"{A100}: BFLOAT16 Tensor Core, dense"),
}
HOPPER_PEAKS = {
    "float64": (66.9e12, f"{H100}: FP64 Tensor Core (33.5e12 without)"),
    "float32": (66.9e12, f"{H100}: FP32"),
    "tf32": (494.7e12, f"{H100}: TF32 Tensor Core, dense"),
    "float16": (989.4e12, f"{H100}: FP16 Tensor Core, dense"),
    "bfloat16": (989.4e12, f"{H100}: BF16 Tensor Core, dense"),
    "float8": (1978.9e12, f"{H100}: FP8 Tensor Core, dense"),
}
B200_PEAKS = {
    "float64": (37e12, f"{HGX_B200}: FP64"),
    "float32": (75e12, f"{HGX_B200}: FP32"),
    "tf32": (1.125e15, f"{HGX_B200}: TF32 Tensor Core, {SPARSE_HALF}"),
    "float16": (2.25e15, f"{HGX_B200}: FP16 Tensor Core, {SPARSE_HALF}"),
    "bfloat16": (2.25e15, f"{HGX_B200}: BF16 Tensor Core, {SPARSE_HALF}"),
    "float8": (4.5e15, f"{HGX_B200}: FP8 Tensor Core, {SPARSE_HALF}"),
    "float4": (9e15, f"{HGX_B200}: FP4 Tensor Core, dense"),
}
B300_PEAKS = {
    "float64": (1.25e12, f"{HGX_B300}: FP64"),
    "float32": (75e12, f"{HGX_B300}: FP32"),
    "tf32": (1.125e15, f"{HGX_B300}: TF32 Tensor Core, {SPARSE_HALF}"),
    "float16": (2.25e15, f"{HGX_B300}: FP16 Tensor Core, {SPARSE_HALF}"),
    "bfloat16": (2.25e15, f"{HGX_B300}: BF16 Tensor Core, {SPARSE_HALF}"),
    "float8": (4.5e15, f"{HGX_B300}: FP8 Tensor Core, {SPARSE_HALF}"),
    "float4": (13.5e15, f"{HGX_B300}: FP4 Tensor Core, dense, 108e15 of the board (105e15 in earlier editions)"),
}
GB200_PEAKS = {
    "float64": (40e12, f"{GB200}: FP64"),
    "float32": (80e12, f"{GB200}: FP32"),
    "tf32": (1.25e15, f"{GB200}: TF32 Tensor Core, {SPARSE_HALF}"),
    "float16": (2.5e15, f"{GB200}: FP16 Tensor Core, {SPARSE_HALF}"),
    "bfloat16": (2.5e15, f"{GB200}: BF16 Tensor Core, {SPARSE_HALF}"),
    "float8": (5e15, f"{GB200}: FP8 Tensor Core, {SPARSE_HALF}"),
    "float4": (10e15, f"{GB200}: FP4 Tensor Core, dense"),
}
GB300_PEAKS = {
    "float64": (100e12 / 72, f"{GB300}: FP64, 100e12"),
    "float32": (6e15 / 72, f"{GB300}: FP32, 6e15"),
    "tf32": (1.25e15, f"{GB300}: TF32 Tensor Core, 180e15, {SPARSE_HALF}"),
    "float16": (2.5e15, f"{GB300}: FP16 Tensor Core, 360e15, {SPARSE_HALF}"),
    "bfloat16": (2.5e15, f"{GB300}: BF16 Tensor Core, 360e15, {SPARSE_HALF}"),
    "float8": (5e15, f"{GB300}: FP8 Tensor Core, 720e15, {SPARSE_HALF}"),
    "float4": (15e15, f"{GB300}: FP4 Tensor Core, 1080e15, dense"),
}
MI250X_PEAKS = {
    "float64": (47.85e12, f"{MI250X}: 95.7e12 FP64 Matrix (vector: half of that)"),
    "float32": (47.85e12, f"{MI250X}: 95.7e12 FP32 Matrix"),
    "float16": (191.5e12, f"{MI250X}: 383e12 FP16 (the MI250X has no tf32)"),
    "bfloat16": (191.5e12, f"{MI250X}: 383e12 bfloat16"),
}


def _cdna3_peaks(sheet: str) -> dict[str, tuple[float, str]]:
    """Peaks of an MI300X and of an MI325X, which compute alike [flop/s], with the data sheet as the source."""
    return {
        "float64": (163.4e12, f"{sheet}: FP64 Matrix (81.7e12 vector)"),
        "float32": (163.4e12, f"{sheet}: FP32 Matrix"),
        "tf32": (653.7e12, f"{sheet}: TF32, dense"),
        "float16": (1307.4e12, f"{sheet}: FP16, dense"),
        "bfloat16": (1307.4e12, f"{sheet}: bfloat16, dense"),
        "float8": (2614.9e12, f"{sheet}: FP8, dense"),
    }


MI355X_PEAKS = {
    "float64": (78.6e12, f"{MI355X}: FP64 Matrix"),
    "float32": (157.3e12, f"{MI355X}: FP32 (the MI355X has no tf32)"),
    "float16": (2516.6e12, f"{MI355X}: FP16 Matrix, dense"),
    "bfloat16": (2516.6e12, f"{MI355X}: bfloat16 Matrix, dense"),
    "float8": (5033.2e12, f"{MI355X}: OCP-FP8 Matrix, dense"),
    "float4": (10066.3e12, f"{MI355X}: MXFP4 Matrix"),
}

SAID = "what PyTorch says that the device has, after the driver's share, in"
H200_MEMORY = (
    "143,771 MiB by nvidia-smi in sgl-project/sglang, issue 3196, less the driver's share of 0.60 GiB, as in PyTorch's "
    "messages from H200 (139.80 and 139.81 GiB in eight of nine)"
)
REPORTED = {
    "V100 16 GB": (15.78, f"{SAID} kchengiva/Shift-GCN, issue 34"),
    "V100 32 GB": (31.74, f"{SAID} liucongg/ChatGLM-Finetuning, issue 73"),
    "A100 40 GB": (39.50, f"{SAID} TianheWu/CoSeR, issue 10"),
    "A100 80 GB": (79.15, f"{SAID} vllm-project/vllm, issue 4408"),
    "H100": (79.11, f"{SAID} vllm-project/vllm, issue 27508"),
    "H200": (139.80, H200_MEMORY),
    "GH200": (94.88, f"{SAID} Lightning-AI/litgpt, issue 1892"),
    "B200": (178.35, "total global memory by CUDA's device query in pytorch/ao, pull request 4002"),
    "B300": (267.69, "what PyTorch says that the device has, in messages from B300 in three public repositories"),
    "GB200": (184.31, f"{SAID} vllm-project/vllm, issue 43951"),
    "GB300": (276.50, f"{SAID} stas00/the-art-of-debugging, pytorch/README.md, on a DGX Station with one GB300"),
    "MI250X GCD": (63.98, f"{SAID} ROCm/ROCm, issue 3579, on MI250X"),
    "MI300X": (191.45, f"{SAID} verl-project/verl, issue 2848"),
    "MI325X": (255.98, f"{SAID} vllm-project/vllm, issue 41962"),
    "MI355X": (287.98, "what PyTorch says that the device has, in messages from MI355X in ten public repositories"),
}
"""Memory that each GPU reports to a program [GiB]; data sheets name more, or count in other units."""


def _reported(name: str) -> tuple[float, str]:
    """Memory of a GPU as a program sees it [B], with its source."""
    size, source = REPORTED[name]
    return float(round(size * GIB)), f"{size:.2f} GiB: {source}"


V100_16GB = _gpu("V100 SXM2 16 GB", "volta", V100_PEAKS, (900e9, V100), _reported("V100 16 GB"))
V100_32GB = _gpu("V100 SXM2 32 GB", "volta", V100_PEAKS, (900e9, V100), _reported("V100 32 GB"))
A100_40GB = _gpu("A100 SXM 40 GB", "ampere", A100_PEAKS, (1.555e12, f"{A100}: 40GB"), _reported("A100 40 GB"))
A100_80GB = _gpu("A100 SXM 80 GB", "ampere", A100_PEAKS, (2.039e12, f"{A100}: 80GB"), _reported("A100 80 GB"))
H100_RATE = (3.35e12, 'NVIDIA, "H100 Tensor Core GPU" data sheet, 2023, SXM')
H100_SXM = _gpu("H100 SXM", "hopper", HOPPER_PEAKS, H100_RATE, _reported("H100"))
H200_SXM = _gpu("H200 SXM", "hopper", HOPPER_PEAKS, (4.8e12, H200), _reported("H200"))
GH200_96GB = _gpu("GH200 96 GB", "hopper", HOPPER_PEAKS, (4e12, GH200), _reported("GH200"))
B200_SXM = _gpu("B200 SXM", "blackwell", B200_PEAKS, (8e12, f"{DGX_B200}: 64 TB/s"), _reported("B200"))
B300_SXM = _gpu("B300 SXM", "blackwell", B300_PEAKS, (8e12, f"{HGX_B300}: 64 TB/s"), _reported("B300"))
GB200_GPU = _gpu("GB200", "blackwell", GB200_PEAKS, (8e12, f"{GB200}: 16 TB/s"), _reported("GB200"))
GB300_GPU = _gpu("GB300", "blackwell", GB300_PEAKS, (8e12, f"{GB300}: 576 TB/s"), _reported("GB300"))
MI250X_GCD = _gpu("MI250X GCD", "cdna2", MI250X_PEAKS, (1.6384e12, f"{MI250X}: 3.2768e12 B/s"), _reported("MI250X GCD"))
MI300X_OAM = _gpu("MI300X", "cdna3", _cdna3_peaks(MI300X), (5.3e12, MI300X), _reported("MI300X"))
MI325X_OAM = _gpu("MI325X", "cdna3", _cdna3_peaks(MI325X), (6e12, MI325X), _reported("MI325X"))
MI355X_OAM = _gpu("MI355X", "cdna4", MI355X_PEAKS, (8e12, MI355X), _reported("MI355X"))
