"""`CollectiveCall`: kind, size and group of a collective's kernel, from its name and its arguments."""

import re
from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.network.bus_bandwidth import bus_factor

CallKind = CollectiveKind | Literal["unknown"]
KINDS: tuple[tuple[str, CallKind], ...] = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send_receive"),
    ("reduce", "reduce"),
    ("send", "send_receive"),
    ("recv", "send_receive"),
)
"""Letters of a collective's name, and its kind; the first that a name holds counts."""
DTYPE_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "complexfloat": 8, "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "byte": 1, "char": 1, "int8": 1, "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element, by the name that PyTorch gives its type."""
MOST_ELEMENTS = 2**50
MOST_MEMBERS = 2**24


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What a collective does.

    Parameters
    ----------
    kind : kind of collective
    bytes : size of the whole buffer, as nccl-tests counts it [B]; None if unknown
    members : ranks of the group; None if unknown
    group, peers : name of the group, and its ranks as the trace writes them
    """

    kind: CallKind
    bytes: int | None = None
    members: int | None = None
    group: str = ""
    peers: str = ""

    @property
    def label(self) -> str:
        """Kind, size and group, as text.

        >>> CollectiveCall("all_reduce", 2**20, 8).label, CollectiveCall("unknown").label
        ('all-reduce of 1 MiB over 8 ranks', 'collective')
        """
        size = f" of {format_bytes(self.bytes)}" if self.bytes is not None else ""
        over = f" over {self.members} ranks" if self.members is not None else ""
        return f"{kind_label(self.kind)}{size}{over}"

    def bandwidths(self, seconds: float) -> tuple[float, float] | None:
        """Algorithm and bus bandwidth of a call of this duration [B/s]; None if the size is unknown.

        >>> CollectiveCall("all_reduce", 1000, 4).bandwidths(1.0)
        (1000.0, 1500.0)
        """
        if self.bytes is None or self.kind == "unknown" or seconds <= 0:
            return None
        rate = self.bytes / seconds
        return rate, rate * bus_factor(self.kind, self.members or 1)


def kind_label(kind: CallKind) -> str:
    """The kind as text."""
    return "collective" if kind == "unknown" else hyphenated(kind)


def call_kind(*names: str) -> CallKind:
    """The kind of the first name that holds a collective.

    >>> call_kind("_allgather_base"), call_kind("", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
    ('all_gather', 'reduce_scatter')
    """
    for name in names:
        letters = re.sub(r"[^a-z]", "", name.lower())
        for letters_of_kind, kind in KINDS:
            if letters_of_kind in letters:
                return kind
    return "unknown"


def collective_call(
    kernel: str,
    name: object,
    sent: object,
    received: object,
    dtype: object,
    members: object,
    group: object,
    peers: object,
) -> CollectiveCall:
    """The collective of a kernel.

    >>> collective_call("ncclDevKernel_AllGather", "_allgather_base", 512, 4096, "BFloat16", 8, "1", "[0, …]")
    CollectiveCall(kind='all_gather', bytes=8192, members=8, group='1', peers='[0, …]')

    Parameters
    ----------
    kernel : name of the kernel
    name : name of the collective
    sent, received : elements of the input and of the output
    dtype : name of the type of an element
    members, group, peers : number of the group's members, its name, and its ranks as text
    """
    kind = call_kind(str(name or ""), kernel)
    elements, output = (_whole(value, MOST_ELEMENTS) for value in (sent, received))
    ranks = _whole(members, MOST_MEMBERS) or None
    if kind == "all_gather":
        elements = output if output is not None else elements * ranks if elements is not None and ranks else None
    element_bytes = DTYPE_BYTES.get(str(dtype).lower())
    size = elements * element_bytes if elements is not None and element_bytes is not None else None
    return CollectiveCall(kind, size, ranks, _text(group), _text(peers))


def _text(value: object) -> str:
    return "" if value is None else str(value)[:1000]


def _whole(value: object, most: int) -> int | None:
    """A whole number, perhaps as text; None if it is none, or is too large."""
    if isinstance(value, str) and value.isdigit() and len(value) < 18:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        return None
    return value
