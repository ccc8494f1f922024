"""The flags of `quadrille collective`, and the question that they come to."""

from typing import cast, get_args

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.nccl.tuning_constants import MOST_CHANNELS
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.short_names import find_collective, find_dtype
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.units import format_bytes, parse_bytes
from quadrille.cli.words.flags import CollectiveWords
from quadrille.cli.words.numbers import one_of, whole_number
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


def parse_question(flags: CollectiveWords, places: int, options: SimulationOptions = IN_FULL) -> CollectiveQuestion:
    """What is asked, on a machine with so many GPUs.

    >>> parse_question(CollectiveWords(kind="all-gather", bytes="1MiB", stride="4"), 64).group
    16

    Raises
    ------
    InputError : a flag that cannot be
    """
    kind = parse_kind(flags.kind)
    gpus = whole_number(flags.gpus, "--gpus") if flags.gpus else places
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
        group=whole_number(flags.group, "--group") if flags.group else _reached(gpus, stride, concurrent),
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


def _reached(gpus: int, stride: int, concurrent: ConcurrentGroups) -> int:
    """Ranks of the largest group with this stride, of all groups of that kind or of the first.

    >>> _reached(6, 4, "one"), _reached(6, 2, "all"), _reached(2, 4, "all")
    (2, 3, 1)
    """
    return -(-gpus // stride) if concurrent == "one" else max(1, gpus // stride)


def _size(text: str, kind: CollectiveKind) -> int:
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
