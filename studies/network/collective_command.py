"""`quadrille collective`: from flags to a question, and from what was predicted to a file or a page."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

import msgspec

from algorithms import files
from algorithms.choices import parse_choices
from algorithms.errors import InputError
from algorithms.machine import Machine
from algorithms.nccl.tables import MOST_CHANNELS
from algorithms.ops import CollectiveKind
from algorithms.provenance import Provenance, provenance
from algorithms.tensors import DType
from algorithms.units import format_bytes, format_bytes_per_second, format_seconds, parse_bytes
from simulator.collectives.collective import Ways
from simulator.collectives.programs import Shards
from simulator.machine_network import network_of, speeds_of
from studies.experiment import one_of, whole_number
from studies.machine_flags import MachineFlags, chosen_machine
from studies.machines import is_file_name
from studies.network.collective import (
    CollectivePrediction,
    Concurrent,
    Question,
    bus_formula,
    predict_collective,
)
from studies.results import Destinations
from studies.tables import print_tables, table
from topologies.machines.named import MACHINES
from topologies.network import Network

SCHEMA = "quadrille/collective/1"
ITEM_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
ALL_CHANNELS = "all"
MOST_BYTES = 1 << 60
MANY_TRANSFERS = 5e7
"""In rings that meet, from which on somebody should know why nothing is said for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFlags:
    """The flags of `quadrille collective`, as they were typed; empty where the default depends on others."""

    kind: str
    bytes: str = ""
    gpus: str = ""
    group: str = ""
    stride: str = "1"
    concurrent: str = "one"
    collectives: str = "own"
    channels: str = "1"
    shards: str = ""
    dtype: str = ""
    root: str = "0"
    placement: str = "packed"
    machine: str = ""
    settings: Sequence[str] = ()
    routing: str = ""
    fail: Sequence[str] = ()
    degrade: Sequence[str] = ()
    slow: Sequence[str] = ()
    no_fold: bool = False
    no_fold_time: bool = False
    no_memory: bool = False
    no_local: bool = False


class LinkUse(msgspec.Struct, frozen=True):
    """A link, how many carry as much of the same, what each carries [B], and bytes / (bandwidth x seconds)."""

    link: str
    alike: int
    bytes: float
    utilisation: float


class CollectiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes.  Bandwidths are in B/s and null where nothing moves.

    Parameters
    ----------
    classes : of ranks; each stands for all that behave alike
    shards_bound : how far off `seconds` may be, relative, because pieces have the mean size
    wall_seconds : from parsed arguments to the result, imports apart
    """

    kind: CollectiveKind
    bytes: int
    gpus: int
    group: int
    stride: int
    concurrent: Concurrent
    machine: str
    routing: str
    placement: str
    collectives: str
    shards: Shards
    shards_bound: float
    algorithm: str
    channels: int
    why: str
    seconds: float
    algorithm_bandwidth: float | None
    bus_bandwidth: float | None
    bus_bandwidth_formula: str
    bottlenecks: list[LinkUse]
    method: str
    events: int
    transfers: int
    classes: int
    rank_classes: int
    flow_classes: int
    folded: bool
    why_not: str
    error_seconds: float
    wall_seconds: float
    peak_memory_bytes: int
    provenance: Provenance


def collective(flags: CollectiveFlags, *, json: str = "", command: Sequence[str] = ()) -> CollectiveAnswer:
    """Predicts the collective, and writes or prints what came out.

    Parameters
    ----------
    json : a file, or `-` for stdout
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : a flag, a machine or a file that cannot be
    """
    from simulator.sharing.compiled import loading_seconds

    begin, loaded = time.perf_counter(), loading_seconds()
    Destinations(json=json).check({"--machine": flags.machine} if is_file_name(flags.machine) else {})
    kind = parse_kind(flags.kind)
    machine, net = _machine(flags)
    question = parse_question(flags, kind, net.place_count)
    if (most := question.most_transfers) > MANY_TRANSFERS and question.channels != 1:
        print(
            f"quadrille: {most:.2g} transfers in rings that meet on links: a minute for each 2e8 that are not alike",
            file=sys.stderr,
        )
    predicted = predict_collective(question, machine, net=net)
    wall = time.perf_counter() - begin - (loading_seconds() - loaded)
    answer = _answer(predicted, wall, provenance(command))
    for remark in _remarks(predicted, machine, flags):
        print(f"quadrille: {remark}", file=sys.stderr)
    if json:
        files.write_json(json, answer, SCHEMA)
    if json != files.STDOUT:
        _print(answer)
    return answer


# From flags


def parse_kind(text: str) -> CollectiveKind:
    """The kind of collective, with hyphens or underscores.

    >>> parse_kind("all-reduce")
    'all_reduce'

    Raises
    ------
    InputError : another word
    """
    kinds = get_args(CollectiveKind)
    if text.replace("-", "_") not in kinds:
        raise InputError(f"collective {text!r}: accepted are {', '.join(kind.replace('_', '-') for kind in kinds)}")
    return cast(CollectiveKind, text.replace("-", "_"))


def _machine(flags: CollectiveFlags) -> tuple[Machine, Network]:
    """The machine with its faults and routing, and its network."""
    gpus = whole_number(flags.gpus, "--gpus") if flags.gpus else None
    given = {name: getattr(flags, name) for name in ("machine", "settings", "routing", "fail", "degrade", "slow")}
    chosen = chosen_machine(MachineFlags(**given), gpus if flags.machine in MACHINES else None)
    net = network_of(chosen)
    speeds_of(chosen, net)  # refuses a slow GPU that is not there
    if gpus is not None and gpus > net.place_count:
        raise InputError(f"--gpus {gpus}: {chosen.name} has {net.place_count}")
    return chosen, net


def parse_question(flags: CollectiveFlags, kind: CollectiveKind, places: int) -> Question:
    """What is asked, on a machine with so many GPUs.

    Raises
    ------
    InputError : a flag that cannot be
    """
    gpus = whole_number(flags.gpus, "--gpus") if flags.gpus else places
    stride = whole_number(flags.stride, "--stride")
    if stride > gpus:
        raise InputError(f"--stride {stride}: there are {gpus} GPUs")
    if flags.dtype:
        one_of(flags.dtype, "dtype", get_args(DType))
    return Question(
        kind=kind,
        bytes=_size(flags.bytes, kind),
        gpus=gpus,
        group=whole_number(flags.group, "--group") if flags.group else max(1, gpus // stride),
        stride=stride,
        concurrent=cast(Concurrent, one_of(flags.concurrent, "concurrent", get_args(Concurrent))),
        choices=parse_choices(flags.collectives),
        channels=0
        if flags.channels == ALL_CHANNELS
        else whole_number(flags.channels, "--channels", most=MOST_CHANNELS),
        shards=cast(Shards, one_of(flags.shards, "shards", get_args(Shards))) if flags.shards else None,
        item_bytes=ITEM_BYTES[flags.dtype] if flags.dtype else 1,
        root=whole_number(flags.root, "--root", least=0),
        placement=flags.placement,
        ways=Ways(fold=not flags.no_fold, fold_time=not flags.no_fold_time, local=not flags.no_local),
    )


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


# To answers


def _answer(predicted: CollectivePrediction, wall: float, made: Provenance) -> CollectiveAnswer:
    question = predicted.question
    return CollectiveAnswer(
        kind=question.kind,
        bytes=question.bytes,
        gpus=question.gpus,
        group=question.group,
        stride=question.stride,
        concurrent=question.concurrent,
        machine=predicted.machine,
        routing=predicted.routing,
        placement=question.placement,
        collectives=str(question.choices),
        shards=question.sharding,
        shards_bound=predicted.shards_bound,
        algorithm=predicted.algorithm,
        channels=predicted.channels,
        why=predicted.why,
        seconds=predicted.seconds,
        algorithm_bandwidth=predicted.algorithm_bandwidth,
        bus_bandwidth=predicted.bus_bandwidth,
        bus_bandwidth_formula=bus_formula(question.kind),
        bottlenecks=[LinkUse(one.link, one.alike, one.bytes, one.utilisation) for one in predicted.bottlenecks],
        method=predicted.method,
        events=predicted.events,
        transfers=predicted.transfers,
        classes=predicted.rank_classes,
        rank_classes=predicted.rank_classes,
        flow_classes=predicted.flow_classes,
        folded=predicted.folded,
        why_not=predicted.why_not,
        error_seconds=predicted.error_seconds,
        wall_seconds=wall,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        provenance=made,
    )


def _remarks(predicted: CollectivePrediction, machine: Machine, flags: CollectiveFlags) -> list[str]:
    """What a user should know beside the answer."""
    found, gpus = [], predicted.question.gpus
    if flags.no_memory:
        found.append("--no-memory: a collective remembers no states of its links, so nothing changes")
    named = MACHINES.get(str(machine.topology.get("family", "")))
    if named is not None and 0 < named.gpus < gpus and not named.name.startswith("bench-"):
        found.append(f"{named.name} has {named.gpus} GPUs; {gpus} are modelled as more of the same")
    if machine.faults is not None and machine.faults.slow:
        found.append("a slow GPU computes slower; a collective has no work of its own, so nothing changes")
    if predicted.question.group == 1:
        found.append("a group of one rank has what it needs: nothing moves")
    return found


def _print(answer: CollectiveAnswer) -> None:
    kind = answer.kind.replace("_", "-")
    groups = answer.gpus // answer.group if answer.concurrent == "all" else 1
    print(
        f"{kind} of {format_bytes(answer.bytes)} by {groups:,} group{'s' if groups > 1 else ''} of {answer.group:,}"
        f"{f' with stride {answer.stride:,}' if answer.stride > 1 else ''} among {answer.gpus:,} GPUs of "
        f"{answer.machine}, routing {answer.routing}: {format_seconds(answer.seconds)}"
    )
    if answer.algorithm_bandwidth is not None and answer.bus_bandwidth is not None:
        print(
            f"algorithm bandwidth {format_bytes_per_second(answer.algorithm_bandwidth)} (bytes / seconds), "
            f"bus bandwidth {format_bytes_per_second(answer.bus_bandwidth)} ({answer.bus_bandwidth_formula})"
        )
    channels = f", {answer.channels} channels" if answer.channels > 1 else ""
    print(f"algorithm {answer.algorithm}{channels}: {answer.why}")
    bound = f", seconds off by at most {100 * answer.shards_bound:.2g} %" if answer.shards_bound else ""
    print(f"shards {answer.shards}{bound}")
    print(_effort(answer))
    if answer.bottlenecks:
        rows = [
            (one.link, f"{one.alike:,}", format_bytes(one.bytes), f"{100 * one.utilisation:.1f} %")
            for one in answer.bottlenecks
        ]
        print()
        print_tables(table("busiest links", ("link", "alike", "bytes of each", "use of the time"), rows))


def _effort(answer: CollectiveAnswer) -> str:
    """What it took to find out."""
    if answer.folded:
        how = f"{answer.rank_classes:,} classes of ranks, {answer.flow_classes:,} of flows"
    else:
        how = f"every one of {answer.flow_classes:,} flows by itself: {answer.why_not}"
    return (
        f"{answer.transfers:,} transfers in {answer.events:,} events, {how}; "
        f"{format_seconds(answer.wall_seconds)}, {format_bytes(answer.peak_memory_bytes)} at most"
    )
