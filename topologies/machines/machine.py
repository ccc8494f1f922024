"""The machine file: a topology, how fast its devices compute, and what microbenchmarks measured.

Data only: the topology is a family name with arguments (or a file), built into
a graph elsewhere.  The classes mirror the file; units stand in the names.
"""

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from quadrille.algorithms.formats import files
from quadrille.algorithms.formats.achieved import Achieved
from quadrille.algorithms.formats.faults import Faults
from quadrille.algorithms.formats.measured_rows import (
    Count,
    Dtype,
    GemmRow,
    KernelRow,
    LibraryRow,
    MemoryRow,
    MessagesRow,
    Overhead,
    Rate,
    Seconds,
    Share,
    Spread,
    TransferRow,
)
from quadrille.algorithms.provenance import Provenance

SCHEMA = "quadrille/machine/1"

Bytes = Annotated[float, Meta(gt=0)]
Slowdown = Annotated[float, Meta(ge=1)]
CHUNK_BYTES_OF_OLD_FILES = 60 << 10
"""In files made before they said it, runs were in such chunks."""
LATER: dict[str, dict[str, object]] = {
    "device": {"kernel": ()},
    "host": {"shared_by_hosts": False, "idle_core_seconds": 0.0, "library": ()},
    "network": {
        "payload_share": 1.0,
        "core_seconds_per_byte": 0.0,
        "late_seconds": 0.0,
        "following_seconds": None,
        "taken_seconds": 0.0,
        "buffered_sends": False,
        "chunk_bytes": CHUNK_BYTES_OF_OLD_FILES,
        "burst_bytes": None,
        "library": (),
    },
}
"""Keys that machine files did not have at first, as they are where nothing is said: no part of the hash then."""
Argument = str | bool | int | float | list[str | int | float]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one rank computes with; without `achieved`, a device without rows reaches its peaks.

    Local work takes `overlap_slowdown` times as long while its rank communicates: the kernels that
    carry messages hold multiprocessors and bandwidth of the device.  Messages take `communication_slowdown`
    times as long while a device that sends or receives them computes.
    """

    peak_flops_per_second: Annotated[dict[Dtype, Rate], Meta(min_length=1)]
    memory_bytes_per_second: Rate
    memory_bytes: Bytes
    overhead_seconds: Overhead
    achieved: Achieved | None = None
    overlap_slowdown: Slowdown = 1.0
    communication_slowdown: Slowdown = 1.0
    gemm: tuple[GemmRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    kernel: tuple[KernelRow, ...] = ()


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the ranks of one host share, what a step between two of them costs, and what an op costs beyond its work.

    `ranks` are placed on each host before the next one is used, by default one
    for each core; `issue_seconds` pass between two ops of a rank;
    `alone_seconds` is a communication op in a group of one rank.  Where hosts are `shared_by_hosts` of
    one machine, as in a laboratory, its cores and the bandwidth of its memory are those of all hosts together,
    and ranks are spread evenly over the hosts; a core that has been idle for `idle_core_seconds` takes a rank from
    a core with several, where ranks cannot be dealt out to cores evenly.
    `library` are the MPI library's collectives between its ranks.
    `threads_default` is read by nobody: it stays for the machine files that have it.
    """

    cores: Count
    shared_by_hosts: bool = False
    idle_core_seconds: Overhead = 0.0
    ranks: Count | None = None
    memory_bytes_per_second: Rate | None = None
    threads_default: Count = 1
    issue_seconds: Overhead = 0.0
    alone_seconds: Overhead = 0.0
    transfer: tuple[TransferRow, ...] = ()
    library: tuple[LibraryRow, ...] = ()


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a step between ranks of two hosts costs, and what its links are beyond their rates.

    Parameters
    ----------
    payload_share : of a link's rate that is left for what ranks send, after the headers of packets, and less of a link
        that is slower than is said: of every link, or by link; 1 of those that are not named
    core_seconds_per_byte : of the cores that all hosts share, for a byte from rank to rank, both ends and every switch
    late_seconds : how much later a rank that computes hears that a step's message has come, where ranks take turns on
        cores and one of each host computes
    following_seconds : latency of a step right behind another one of its op, where it is known; of the first one the
        rows tell, which were measured behind products
    taken_seconds : how much later than its receiver a rank that sent one way hears that all was taken, where messages
        are buffered
    buffered_sends : whether messages go as soon as they are posted, whoever is there to receive them
    chunk_bytes : into which such messages of our own steps are cut; 0 for whole steps, which wait for their receivers
    burst_bytes : what a link that was idle lets through at once, where token buckets keep its rate: of every link, or
        by link; it fills again at the link's rate
    library : the MPI library's collectives, where ranks are on several hosts
    """

    payload_share: Share | dict[str, Share] = 1.0
    core_seconds_per_byte: Overhead = 0.0
    late_seconds: Overhead = 0.0
    following_seconds: Overhead | None = None
    taken_seconds: Overhead = 0.0
    buffered_sends: bool = False
    chunk_bytes: Annotated[int, Meta(ge=0)] = CHUNK_BYTES_OF_OLD_FILES
    burst_bytes: Bytes | dict[str, Bytes] | None = None
    transfer: tuple[TransferRow, ...] = ()
    library: tuple[LibraryRow, ...] = ()


class ReferenceKernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Medians of the small reference kernels beside calibration: the state of the machine then."""

    gemm_seconds: Seconds
    copy_seconds: Seconds
    add_seconds: Seconds
    gemm_spread: Spread = 0.0
    copy_spread: Spread = 0.0
    add_spread: Spread = 0.0


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How well the fitted numbers explain what was measured: relative residuals, and warnings."""

    residuals: dict[str, float] = {}
    warnings: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a number comes from."""

    quantity: str
    value: float | str
    source: str


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topology, its devices, and what was measured on them.

    >>> machine = Machine(
    ...     name="toy",
    ...     topology={"family": "host", "cores": 2},
    ...     device=Device(
    ...         peak_flops_per_second={"float64": 8e10},
    ...         memory_bytes_per_second=1e10,
    ...         memory_bytes=8e9,
    ...         overhead_seconds=5e-6,
    ...     ),
    ... )
    >>> machine.sha256[:8] == msgspec.structs.replace(machine, name="other").sha256[:8]
    False
    """

    name: str
    topology: dict[str, Argument]
    device: Device
    host: Host | None = None
    network: Network | None = None
    routing: str = "shortest"
    faults: Faults | None = None
    reference: ReferenceKernels | None = None
    reference_alone: ReferenceKernels | None = None
    fit: Fit | None = None
    messages: tuple[MessagesRow, ...] = ()
    sources: tuple[Source, ...] = ()
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        if ("family" in self.topology) == ("file" in self.topology):
            raise ValueError('topology: either family = "…" with its arguments or file = "…" is needed')
        for key, value in self.topology.items():
            _check_argument(key, value)

    @property
    def sha256(self) -> str:
        """Hash of the content without provenance and deliveries tried: equal for machines that predict the same."""
        content = files.plain(msgspec.structs.replace(self, provenance=None))
        content = files.plain(msgspec.convert(content, Machine))  # 1 and 1.0 are the same rate
        content.pop("messages", None)
        for part, usual in LATER.items():
            for name, value in usual.items():
                if content[part] and content[part].get(name) == value:
                    del content[part][name]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def load_machine(path: str | Path) -> Machine:
    """The machine in the file at `path`; InputError names the first fault of a file that holds none."""
    return files.read(path, Machine, SCHEMA)


def save_machine(machine: Machine, path: str | Path) -> None:
    """Writes `machine` as TOML, complete or not at all; `-` is stdout."""
    files.write_toml(path, machine, SCHEMA)


def _check_argument(key: str, value: Argument) -> None:
    """Numbers of a topology: times from 0, all else above 0."""
    if isinstance(value, bool | str):
        return
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, str):
            continue
        if number < 0 or (number == 0 and not key.endswith("_seconds")):
            least = "from 0" if key.endswith("_seconds") else "above 0"
            raise ValueError(f"topology.{key} = {number}: a number {least} is needed")
