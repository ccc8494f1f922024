"""`Machine`, the content of a machine file: a topology, the speed of its devices, and the measured microbenchmarks.

Data only: the topology is a family name with arguments (or a file), built into
a graph elsewhere.  The classes mirror the file; units stand in the names.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.measured_rows import (
    Achieved,
    Count,
    Dtype,
    Faults,
    GemmRow,
    KernelRow,
    LibraryRow,
    MemoryRow,
    MessagesRow,
    Overhead,
    PassRow,
    Rate,
    Seconds,
    Share,
    Spread,
    TransferRow,
)
from quadrille.algorithms.formats.renamed_keys import Renames
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.tabular import fact_line
from quadrille.algorithms.units import LARGEST_RATE

SCHEMA = "quadrille/machine/2"
RENAMED = Renames(
    {
        "host.threads_default": None,
        "host.alone_seconds": "host.single_rank_op_seconds",
        "host.library[].apart": "host.library[].stride",
        "host.library[].of": "host.library[].world_size",
        "host.library[].following_seconds": "host.library[].back_to_back_seconds",
        "network.library[].apart": "network.library[].stride",
        "network.library[].of": "network.library[].world_size",
        "network.library[].following_seconds": "network.library[].back_to_back_seconds",
        "host.shared_by_hosts": "emulation.shared_cores",
        "host.idle_core_seconds": "emulation.idle_core_seconds",
        "network.core_seconds_per_byte": "emulation.core_seconds_per_byte",
        "network.late_seconds": "emulation.wakeup_delay_seconds",
        "network.following_seconds": "emulation.back_to_back_latency_seconds",
        "network.taken_seconds": "emulation.sender_ack_delay_seconds",
        "network.buffered_sends": "emulation.eager",
        "network.chunk_bytes": "emulation.chunk_bytes",
        "network.burst_bytes": "emulation.burst_bytes",
    }
)
"""Keys of version 1."""
OLDER = {"quadrille/machine/1": RENAMED}
"""Older schemas, with the keys that were renamed since."""

Bytes = Annotated[float, Meta(gt=0, le=LARGEST_RATE)]
Slowdown = Annotated[float, Meta(ge=1)]
CHUNK_BYTES_OF_OLD_FILES = 60 << 10
"""In files made before they said it, runs were in such chunks."""
LATER: dict[str, dict[str, object]] = {
    "device": {
        "kernel": (),
        "kernel_table": "",
        "collective_table": "",
        "collectives_between_share": 1.0,
        "collective_call_seconds": 0.0,
        "passes": (),
        "following_overhead_seconds": None,
    },
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
NO_TABLE = "none"
"""Name that stands for no table of measured kernels."""
Argument = str | bool | int | float | list[str | int | float]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The compute device of one rank.

    Local work takes `overlap_slowdown` times as long while its rank communicates, because kernels that
    carry messages occupy multiprocessors and memory bandwidth.  Messages take `communication_slowdown`
    times as long while a device at either end computes.

    Parameters
    ----------
    peak_flops_per_second : peak rate of matrix products, by dtype; of one core if `gemm` has measured products
    memory_bytes_per_second : bandwidth of the device's memory
    memory_bytes : capacity of the device's memory
    overhead_seconds : time to start one piece of local work, such as a kernel launch
    following_overhead_seconds : time to start a fill, copy or sum, which follow other small work; null for
        `overhead_seconds`, which is measured after a large product
    achieved : share of the peaks that large work reaches, for a device without measured rows; without `achieved` and
        without rows a device reaches its peaks
    overlap_slowdown : factor on local work while its rank communicates
    communication_slowdown : factor on messages while the device at either end computes
    speed_sigma : standard deviation of the logarithm of the speed from device to device, which `--jitter gpus=machine`
        uses; null if it is not known
    gemm : measured matrix products
    memory : measured copies, additions and zeroing
    kernel : measured layer functions, such as GELU or softmax
    passes : measured passes over arrays on a host, of which attention, embeddings and the cross entropy consist
    collectives_between_share : share of the bandwidth between nodes that collectives of NCCL reach, of what NCCL
        counts on; messages between pipeline stages keep the whole bandwidth
    collective_call_seconds : time that each collective of NCCL takes beyond NCCL's model or the measured collectives
    kernel_table : name of a table of measured kernels, such as h100-sxm, from which products and fused attention take
        their times on a GPU without measured rows; empty or none for the shares of the peaks (`achieved`)
    collective_table : name of a table of measured collectives, such as h100-sxm, from which NCCL's collectives inside a
        node take their times; empty for the table of the node's GPUs if there is one, none for NCCL's model

    Raises
    ------
    ValueError : a table that does not exist
    """

    peak_flops_per_second: Annotated[dict[Dtype, Rate], Meta(min_length=1)]
    memory_bytes_per_second: Rate
    memory_bytes: Bytes
    overhead_seconds: Overhead
    following_overhead_seconds: Overhead | None = None
    achieved: Achieved | None = None
    overlap_slowdown: Slowdown = 1.0
    communication_slowdown: Slowdown = 1.0
    speed_sigma: Annotated[float, Meta(ge=0, le=2)] | None = None
    gemm: tuple[GemmRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    kernel: tuple[KernelRow, ...] = ()
    passes: tuple[PassRow, ...] = ()
    collectives_between_share: Share = 1.0
    collective_call_seconds: Overhead = 0.0
    kernel_table: str = ""
    collective_table: str = ""

    def __post_init__(self) -> None:
        self._check_collective_table()
        if not self.measured_kernels:
            return
        from quadrille.topologies.nodes.kernel_tables import kernel_table_names  # most machines name no table

        if self.kernel_table not in kernel_table_names():
            raise ValueError(
                f"kernel_table {self.kernel_table!r}: accepted are none, {', '.join(kernel_table_names())}"
            )

    @property
    def measured_kernels(self) -> str:
        """Name of the table of measured kernels; empty for no table."""
        return "" if self.kernel_table == NO_TABLE else self.kernel_table

    def _check_collective_table(self) -> None:
        """Raises ValueError for a table of collectives that does not exist."""
        if not self.collective_table:
            return
        from quadrille.topologies.nodes.collective_tables import NO_TABLE, collective_table_names

        accepted = (*collective_table_names(), NO_TABLE)
        if self.collective_table not in accepted:
            raise ValueError(f"collective_table {self.collective_table!r}: accepted are {', '.join(accepted)}")

    @property
    def pointwise_overhead(self) -> float:
        """Time to start a fill, copy or sum [s]."""
        following = self.following_overhead_seconds
        return self.overhead_seconds if following is None else following

    def peak(self, dtype: str, threads: int) -> float | None:
        """The peak rate of a rank's products [flop/s]; None if the dtype has no peak.

        Parameters
        ----------
        dtype : element type of the products
        threads : BLAS threads of the rank, which are cores if the products of the device are measured
        """
        peaks: Mapping[str, float] = self.peak_flops_per_second  # type: ignore[assignment]
        peak = peaks.get(dtype)
        return peak * threads if peak is not None and self.gemm else peak


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The resources that the ranks of one host share, and the cost of an op and of a message inside the host.

    Parameters
    ----------
    cores : CPU cores of a host
    ranks : ranks that one host takes before the next host is used; by default one for each core
    memory_bytes_per_second : memory bandwidth that all ranks of a host share
    issue_seconds : time between two ops of a rank
    single_rank_op_seconds : time of a communication op in a group of one rank
    transfer : measured point-to-point steps between ranks of one host
    library : measured collectives of the MPI library between ranks of one host
    """

    cores: Count
    ranks: Count | None = None
    memory_bytes_per_second: Rate | None = None
    issue_seconds: Overhead = 0.0
    single_rank_op_seconds: Overhead = 0.0
    transfer: tuple[TransferRow, ...] = ()
    library: tuple[LibraryRow, ...] = ()


class HostLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The link between a GPU and the memory of its host, which copies of offloaded optimizer state use.

    A copy takes the latency, then its bytes divided by the rate.  The two directions are independent.

    Parameters
    ----------
    bytes_per_second : bandwidth of the link in each direction
    latency_seconds : time from issue to start of a copy
    gpus : consecutive GPUs that share the link, such as those behind one PCIe switch
    memory_bytes : capacity of the memory of a host
    memory_bytes_per_second : bandwidth of the memory of a host
    memory_gpus : GPUs whose ranks share the memory of a host
    """

    bytes_per_second: Rate
    latency_seconds: Overhead = 0.0
    gpus: Count = 1
    memory_bytes: Bytes
    memory_bytes_per_second: Rate
    memory_gpus: Count


class NetworkCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cost of a message between two hosts, and the properties of links beyond their rates.

    Parameters
    ----------
    payload_share : share of a link's rate that carries payload, after packet headers; one number for every link, or a
        table by link, in which a link that is not named has 1
    transfer : measured point-to-point steps between ranks of two hosts
    library : measured collectives of the MPI library between ranks of several hosts
    """

    payload_share: Share | dict[str, Share] = 1.0
    transfer: tuple[TransferRow, ...] = ()
    library: tuple[LibraryRow, ...] = ()


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Properties of an emulated network, whose hosts are network namespaces of one machine.

    Parameters
    ----------
    shared_cores : whether all hosts share the cores and the memory bandwidth of one machine; ranks are then spread
        evenly over the hosts
    idle_core_seconds : idle time after which a core takes a rank from a core with several ranks
    core_seconds_per_byte : CPU time of one byte from rank to rank, on the shared cores
    wakeup_delay_seconds : delay until a computing rank notices that a message arrived
    back_to_back_latency_seconds : latency of a step that directly follows another step of the same op; the first
        step's latency is that of the rows
    sender_ack_delay_seconds : delay until the sender of a one-way message learns that its receiver has it
    eager : whether messages leave before their receivers are ready (the eager protocol)
    chunk_bytes : chunk size of such messages; 0 for whole steps
    burst_bytes : bytes that an idle link lets through at once, where token buckets enforce its rate; one number for
        every link, or a table by link
    """

    shared_cores: bool = False
    idle_core_seconds: Overhead = 0.0
    core_seconds_per_byte: Overhead = 0.0
    wakeup_delay_seconds: Overhead = 0.0
    back_to_back_latency_seconds: Overhead | None = None
    sender_ack_delay_seconds: Overhead = 0.0
    eager: bool = False
    chunk_bytes: Annotated[int, Meta(ge=0)] = CHUNK_BYTES_OF_OLD_FILES
    burst_bytes: Bytes | dict[str, Bytes] | None = None


NOT_EMULATED = Emulation()


class ReferenceKernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Median times of three small kernels beside calibration; they record the speed of the machine at that time.

    Parameters
    ----------
    gemm_seconds, copy_seconds, add_seconds : median time of a small matrix product, copy and addition
    gemm_spread, copy_spread, add_spread : relative spread of these times
    """

    gemm_seconds: Seconds
    copy_seconds: Seconds
    add_seconds: Seconds
    gemm_spread: Spread = 0.0
    copy_spread: Spread = 0.0
    add_spread: Spread = 0.0


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The quality of the fit of the GEMM model.

    Parameters
    ----------
    residuals : relative residuals of the fit, by dtype and layout
    warnings : large residuals, and signs that other programs ran during calibration
    """

    residuals: dict[str, float] = {}
    warnings: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of one number.

    Parameters
    ----------
    quantity : name of the number
    value : value of the number
    source : document, measurement or assumption that the number comes from
    """

    quantity: str
    value: float | str
    source: str


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine: its topology, its devices, and the times measured on them.

    Parameters
    ----------
    name : name of the machine
    topology : `family` and its arguments, or `file`, the path of a graph
    device : the compute device of one rank
    host : the resources that ranks of one host share
    host_link : the link between a GPU and the memory of its host
    network : properties of messages between hosts
    emulation : properties of an emulated network, if it is one
    routing : the routing rule
    faults : failed links, slow links and slow devices
    reference : reference kernels beside calibration, on all ranks at once
    reference_alone : reference kernels beside calibration, on one rank alone
    fit : quality of the fitted GEMM model
    messages : tried message options (chunk size, progress thread) and their times
    sources : the origin of each number
    provenance : command, date, host and versions that wrote the file

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
    host_link: HostLink | None = None
    network: NetworkCosts | None = None
    emulation: Emulation | None = None
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

    def __repr__(self) -> str:
        arguments = [f"{key}={value}" for key, value in self.topology.items() if key not in ("family", "file")]
        built = self.topology.get("family") or self.topology.get("file")
        faults = ", with faults" if self.faults else ""
        return fact_line(self, f"{self.name}{faults}, routing {self.routing}, {built}({', '.join(arguments)})")

    @property
    def emulated(self) -> Emulation:
        """Properties of the emulated network; the defaults for a real one."""
        return self.emulation or NOT_EMULATED

    @property
    def sha256(self) -> str:
        """Hash of the content without provenance, message options and `device.speed_sigma`.

        Machines that predict the same have the same hash: the options of a record name the sigma that was used.

        The hash is that of the keys of version 1, so that machines keep their hash.
        """
        content = schema_files.plain_tables(msgspec.structs.replace(self, provenance=None))
        content = _with_keys_of_version_1(
            schema_files.plain_tables(msgspec.convert(content, Machine))
        )  # 1 and 1.0 are the same rate
        content.pop("messages", None)
        if content["host_link"] is None:
            del content["host_link"]
        content["device"].pop("speed_sigma", None)
        for part, defaults in LATER.items():
            for name, value in defaults.items():
                if content[part] and name in content[part] and content[part][name] == value:
                    del content[part][name]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def _with_keys_of_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a machine under the keys of version 1."""
    emulation = content.pop("emulation")
    old = RENAMED.downgraded(content if emulation is None else {**content, "emulation": emulation})
    if old["host"] is not None:
        old["host"]["threads_default"] = 1
    lost = _without_table(old, emulation or {})
    return old | ({"emulation": lost} if lost else {})


def _without_table(old: dict[str, Any], emulation: dict[str, Any]) -> dict[str, Any]:
    """Properties of an emulated network that version 1 has in a table that the machine lacks."""
    defaults = schema_files.plain_tables(NOT_EMULATED)
    return {
        name: emulation[name]
        for path, new in RENAMED.paths.items()
        if new is not None and new.startswith("emulation.")
        if (name := new.partition(".")[2]) in emulation
        if old[path.partition(".")[0]] is None and emulation[name] != defaults[name]
    }


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
