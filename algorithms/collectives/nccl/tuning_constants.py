"""NCCL's tuning constants, as printed in its sources and in its units; `US` and `GB` convert them to SI.

NVIDIA measured them on its machines.

Source: NVIDIA, NCCL 2.28 and later, src/graph/tuning.cc (from 2.30 on src/tuning/cost_model.cc):
`ncclTunerConstantsDefaults`, `nvlsEfficiency`, `treeCorrectionFactor`; src/include/device.h and comm.h: threads, steps
and buffers; src/graph/topo.h: NVLink bandwidths; src/graph/search.cc: channel speeds.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar, get_args

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat"]
SendReceive = Literal["sendrecv"]
"""Messages that are sent and received in one group, without an algorithm of the tuner."""
Protocol = Literal["LL", "LL128", "Simple"]
Hardware = Literal["nvlink", "pci", "net"]
Generation = Literal["volta", "ampere", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"]
Cpu = Literal["intel", "amd", "other"]
Triple = tuple[float, float, float]
"""Values for LL, LL128 and Simple, or for one node, two nodes and more."""

Row = TypeVar("Row")

US = 1e-6
GB = 1e9
PROTOCOLS: Final[tuple[Protocol, ...]] = get_args(Protocol)
GENERATIONS: Final[tuple[Generation, ...]] = get_args(Generation)
ALGORITHMS: Final[dict[Algorithm, tuple[Protocol, ...]]] = {
    "ring": ("LL", "LL128", "Simple"),
    "tree": ("LL", "LL128", "Simple"),
    "nvls": ("Simple",),
    "nvls_tree": ("Simple",),
    "pat": ("Simple",),
}
"""Protocols of each algorithm."""

AMD: Final[tuple[Generation, ...]] = ("cdna2", "cdna3", "cdna4")
"""Generations of AMD's GPUs, whose library is RCCL."""


def _with_amd(rows: Mapping[Generation, Row]) -> dict[Generation, Row]:
    """The rows of all generations, with NCCL's rows of ampere for RCCL, whose search of channels is NCCL's."""
    return {**rows, **dict.fromkeys(AMD, rows["ampere"])}


BASE_LATENCY: Final[dict[Algorithm, Triple]] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "nvls": (0, 0, 0),
    "nvls_tree": (0, 0, 0),
    "pat": (8.0, 8.0, 8.0),
}
"""Latency before the first step, by protocol [us]."""

STEP_LATENCY: Final[dict[Hardware, dict[Algorithm, Triple]]] = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "nvls": (0, 0, 25),
        "nvls_tree": (0, 0, 25),
        "pat": (0, 0, 4.0),
    },
    "pci": {
        "tree": (1.0, 1.9, 4.0),
        "ring": (1.0, 2.5, 5.7),
        "nvls": (0, 0, 0),
        "nvls_tree": (0, 0, 0),
        "pat": (0, 0, 4.0),
    },
    "net": {
        "tree": (5.0, 8.5, 14),
        "ring": (2.7, 4.0, 14.0),
        "nvls": (0, 0, 18),
        "nvls_tree": (0, 0, 20.9),
        "pat": (0, 0, 14),
    },
}
"""Latency of one step over each kind of hardware, by protocol [us]."""

LL_MOST: Final[dict[Generation, Triple]] = _with_amd(
    {
        "volta": (39.0, 39.0, 20.4),
        "ampere": (87.7, 22.5, 19.0),
        "hopper": (141.0, 45.0, 35.0),
        "blackwell": (282.0, 90.0, 70.0),
    }
)
"""Largest LL bandwidth in all, by nodes [GB/s]; on several nodes the CPU selects the row (Intel: volta, AMD: ampere).
"""

RING_LL128_MOST: Final[dict[Generation, Triple]] = _with_amd(
    {
        "volta": (20.0, 20.0, 20.0),
        "ampere": (20.0, 20.0, 20.0),
        "hopper": (36.7, 36.7, 36.7),
        "blackwell": (40.0, 40.0, 40.0),
    }
)
"""Largest LL128 bandwidth of a ring channel, by nodes [GB/s]."""

TREE_LL128_MOST: Final[dict[Generation, Triple]] = _with_amd(
    {
        "volta": (20.0, 20.0, 20.0),
        "ampere": (20.0, 20.0, 20.0),
        "hopper": (36.7, 36.7, 29.0),
        "blackwell": (55.6, 31.67, 20.0),
    }
)
TREE_MOST: Final[dict[Generation, Triple]] = _with_amd(
    {
        "volta": (26.5, 18.5, 10.0),
        "ampere": (24.0, 23.6, 17.8),
        "hopper": (38.7, 41.4, 36.0),
        "blackwell": (70.0, 42.8, 24.0),
    }
)
NVLS_TREE_MOST: Final[dict[Generation, Triple]] = _with_amd(
    {
        "volta": (26.5, 18.5, 10.0),
        "ampere": (24.0, 23.6, 17.8),
        "hopper": (0.0, 57.7, 45.5),
        "blackwell": (0.0, 96.0, 80.0),
    }
)
"""Largest bandwidths of a tree channel, by nodes [GB/s]: LL128, all protocols, and with NVLS inside the nodes."""

NVLS_EFFICIENCY: Final[dict[Generation, float]] = _with_amd(
    {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
)
RING_EFFICIENCY: Final[dict[Protocol, float]] = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
"""Share of data in the bytes of a protocol: LL sends a flag with every 4 bytes, LL128 with every 120."""

TREE_EFFICIENCY = 0.92
TREE_LL = 1 / 3.8
TREE_LL128 = {"one node": 7 / 9, "several": 120 / 128}
PAT_EFFICIENCY = 0.75
TREE_CORRECTION: Final[dict[Protocol, tuple[float, ...]]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}
"""Factor on a tree's bandwidth at 64 B, 128 B, …."""
CORRECTED_SIZES = 23
"""Sizes from 64 B · 2**23 on are not corrected, although the table has one entry more."""

PLATEAU: Final[dict[Generation, float]] = _with_amd({"volta": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4})
"""Factor on the steps of an inter-node ring with Simple, from 64 B for each rank and channel on."""
PLATEAU_BYTES = 64
NETWORK_OVERHEAD: Final[dict[Cpu, float]] = {"intel": 1.0, "amd": 2.0, "other": 1.0}
"""Least time of an inter-node ring step that the host posts; three times that with Simple [us]."""
PAT_LOG_SHARE = 1 / 3.5
PAT_PER_RANK = 2.8
"""Time of PAT beyond its logarithmic steps, for each rank [us]."""

MOST_THREADS: Final[dict[Protocol, int]] = {"LL": 512, "LL128": 640, "Simple": 512}
BYTES_PER_THREAD: Final[dict[Protocol, int]] = {"LL": 8, "LL128": 8, "Simple": 64}
"""Bytes that each thread of a channel needs before NCCL adds channels; a ring's LL counts them for each rank."""
MOST_CHANNELS = 64
"""MAXCHANNELS of device.h; the search finds at most half of them, since they are doubled."""
NVLS_ARITY = 32
"""Most GPUs of a node that head a channel with in-switch sums (NCCL_MAX_NVLS_ARITY)."""
STEPS = 8
"""Chunks in flight on a channel (NCCL_STEPS)."""
BUFFER_BYTES: Final[dict[Protocol, int]] = {
    "LL": 8 * 512 * STEPS * 16,
    "LL128": 120 * 640 * STEPS * 8,
    "Simple": 1 << 22,
}
"""Buffer of a channel for each neighbour, `STEPS` chunks [B]."""
DATA_IN_BUFFER: Final[dict[Protocol, float]] = {"LL": 0.5, "LL128": 120 / 128, "Simple": 1.0}

NVLINK: Final[dict[Generation, float]] = {
    "volta": 20.0,
    "ampere": 20.0,
    "hopper": 20.6,
    "blackwell": 40.1,
    "cdna2": 36.0,
    "cdna3": 48.0,
    "cdna4": 48.0,
}
"""NCCL's bandwidth of one NVLink, and RCCL's of one xGMI link (RCCL, src/graph/topo.h), in each direction [GB/s]."""
_OLD_SPEEDS = (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
CHANNEL_SPEEDS: Final[dict[Generation, tuple[float, ...]]] = _with_amd(
    {
        "volta": _OLD_SPEEDS,
        "ampere": _OLD_SPEEDS,
        "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
        "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    }
)
"""Speeds that NCCL tries for channels inside a node [GB/s]."""
_OLD_SPEEDS_ACROSS = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_SM90_SPEEDS_ACROSS = (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
CHANNEL_SPEEDS_ACROSS: Final[dict[Generation, tuple[float, ...]]] = _with_amd(
    {
        "volta": _OLD_SPEEDS_ACROSS,
        "ampere": _OLD_SPEEDS_ACROSS,
        "hopper": _SM90_SPEEDS_ACROSS,
        "blackwell": (96, 48, 45.1, *_SM90_SPEEDS_ACROSS[2:]),
    }
)
"""Speeds that NCCL tries for channels that leave the node [GB/s]."""
SLOWEST_TRIED = 0.49
"""Slower channels are tried down to this share of the speed already reached."""
DOUBLED_FROM = 25.0
"""Channels at least this fast are split in two [GB/s]; from hopper on, more than four only from twice that."""
DOUBLED_WHERE_FEW = 4
TREES_FASTER_INSIDE = 2.0
"""Largest ratio of a tree channel's speed inside a node to its speed between nodes."""

SEND_CHANNELS = 64
"""Channels for messages of a group inside a node, shared among its ranks."""
SEND_PART_BYTES = 1 << 23
"""Part of a message on a channel above which the message takes twice as many channels [B]."""
SEND_COPY_RATE: Final[dict[Generation, float]] = {"hopper": 10.2}
"""Rate of one such channel, whose threads are divided between sending and receiving, where it was measured [GB/s].

Source of the rate, the channels and the part: xxrjun, nccl-tests-cluster, commit 455de4f8, one node of 8 H100 with
NCCL 2.29: messages of 32 MiB to 1 GiB between 4 and 8 GPUs.
"""
SEND_ACROSS: Final[dict[Generation, Triple]] = {"hopper": (40.7, 25.0, 15.2)}
"""Rate of one message between nodes: on two nodes, on more, and in a group of more than 64 ranks [GB/s].

Source: the same, two and ten nodes of 8 H100 with one 400 Gb/s card each.
"""
MANY_SENDERS = 64
"""Ranks of a group above which a message between nodes takes a single channel."""
SEND_LL_BYTES = 16384
"""Messages up to this size are sent by the protocol LL, larger ones by Simple (NCCL_P2P_LL_THRESHOLD) [B]."""
