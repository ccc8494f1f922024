"""Numbers that several kinds of nodes share, with their sources."""

LATENCY = 0.6e-6
"""Between two GPUs of a node [s]; `INSIDE_LATENCY` is its source."""
INSIDE_LATENCY = (
    "assumption: the 0.6 us that NCCL assumes for a ring step over NVLink (src/graph/tuning.cc, hwLatencies, ring, LL)"
)
HALF_INSIDE_LATENCY = f"{INSIDE_LATENCY}; half of it on each side of the NVSwitch"
NET_LATENCY = (
    "assumption: half on each side of the 2.7 us that NCCL assumes for a ring step over a network "
    "(src/graph/tuning.cc, hwLatencies, NET, ring, LL)"
)
PCIE3 = (15.75e9, "PCIe 3.0 x16: 8 GT/s, 128b/130b, 16 lanes")
PCIE4 = (31.5e9, "PCIe 4.0 x16: 16 GT/s, 128b/130b, 16 lanes")
PCIE5 = (63e9, "PCIe 5.0 x16: 32 GT/s, 128b/130b, 16 lanes")

NVLINK2 = 'NVIDIA, "Tesla V100 GPU Architecture" whitepaper, 2017: NVLink2, 25e9 B/s each way a link, 6 links'
NVLINK3 = 'NVIDIA, "A100 Tensor Core GPU Architecture" whitepaper, 2020: NVLink3, 25e9 B/s each way a link, 12 links'
NVLINK4 = 'NVIDIA, "H100 Tensor Core GPU Architecture" whitepaper, 2022: NVLink4, 25e9 B/s each way a link, 18 links'
NVLINK5 = 'NVIDIA, "Blackwell Architecture Technical Brief", 2024: NVLink5, 50e9 B/s each way a link, 18 links'

Numbers = dict[str, tuple[float | str, str]]


def network_numbers(bandwidth: float, source: str) -> Numbers:
    """Of the cable from a NIC to the network."""
    return {
        "nic_bandwidth_bytes_per_second": (bandwidth, source),
        "nic_latency_seconds": (1.35e-6, NET_LATENCY),
    }
