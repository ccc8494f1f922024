"""From the flags of `quadrille collective` to the question that they ask: kind, sizes, groups and algorithms."""

from typing import cast, get_args

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.nccl.tuning_constants import MOST_CHANNELS
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.short_names import find_collective, find_dtype
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.units import format_bytes, parse_bytes
from quadrille.cli.parsing.flags import CollectiveFlags
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.experiments.network.collective_question import CollectiveQuestion, ConcurrentGroups
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.simulator.collectives.programs import Shards

ALL_CHANNELS = "all"
MOST_BYTES = 1 << 60
IN_FULL = SimulationOptions(causes=True)


def parse_kind(text: str) -> CollectiveKind:
    """The kind of collective; hyphens, underscores and upper case do not matter.

    >>> parse_kind("all-reduce"), parse_kind("allreduce")
    ('all_reduce', 'all_reduce')

    Raises
    ------
    InputError : another word
    """
    return find_collective(text)


def parse_question(flags: CollectiveFlags, gpu_count: int, options: SimulationOptions = IN_FULL) -> CollectiveQuestion:
    """The question that the flags ask, on a machine with this number of GPUs.

    >>> parse_question(CollectiveFlags(kind="all-gather", bytes="1MiB", stride="4"), 64).group
    16

    Raises
    ------
    InputError : a flag with an unaccepted value
    """
    kind = parse_kind(flags.kind)
    gpus = whole_number(flags.gpus, "--gpus") if flags.gpus else gpu_count
    stride = whole_number(flags.stride, "--stride")
    if stride > gpus:
        raise InputError(f"--stride {stride}: there are {gpus} GPUs")
    if flags.placement.startswith("axes:"):
        raise InputError(
            f"placement {flags.placement!r:.60}: a collective has no axes; packed, scattered or a file is accepted"
        )
    concurrent = cast(ConcurrentGroups, one_of(flags.concurrent, "concurrent", get_args(ConcurrentGroups)))
    dtype = find_dtype(flags.dtype) if flags.dtype else None
    return CollectiveQuestion(
        kind=kind,
        bytes=_size(flags.bytes, kind),
        gpus=gpus,
        group=whole_number(flags.group, "--group") if flags.group else _largest_group(gpus, stride, concurrent),
        stride=stride,
        concurrent=concurrent,
        choices=parse_choices(flags.collectives),
        channels=0
        if flags.channels == ALL_CHANNELS
        else whole_number(flags.channels, "--channels", most=MOST_CHANNELS),
        shards=cast(Shards, one_of(flags.shards, "shards", get_args(Shards))) if flags.shards else None,
        item_bytes=ITEM_BYTES[dtype] if dtype else 1,
        root=whole_number(flags.root, "--root", least=0),
        placement=flags.placement,
        options=options,
    )


def _largest_group(gpus: int, stride: int, concurrent: ConcurrentGroups) -> int:
    """The number of ranks of the largest group with this stride, if one group or all such groups run at once.

    >>> _largest_group(6, 4, "one"), _largest_group(6, 2, "all"), _largest_group(2, 4, "all")
    (2, 3, 1)
    """
    return -(-gpus // stride) if concurrent == "one" else max(1, gpus // stride)


def _size(text: str, kind: CollectiveKind) -> int:
    """The buffer size of a collective [B]; 0 for a barrier."""
    if kind == "barrier":
        if text not in ("", "0"):
            raise InputError(f"--bytes {text}: a barrier moves no bytes; leave --bytes out, or give 0")
        return 0
    if not text:
        raise InputError(f"--bytes is missing: {kind.replace('_', '-')} needs the size of the buffer, such as 64MiB")
    try:
        size = parse_bytes(text)
    except InputError as error:
        raise InputError(f"--bytes: {error}") from None
    if size > MOST_BYTES:
        raise InputError(f"--bytes {text}: at most {format_bytes(MOST_BYTES)} are accepted")
    return size
