"""What would explain measured times of collectives that differ from the expected ones: each cause is simulated.

A cause changes the machine (a slow or failed link), what NCCL does (an algorithm, a protocol), or adds a time to every
call.  Its times are compared with the measured times of a few sizes; the distance is the root mean square of the
logarithms of their ratios, so 0.1 means about 10 % apart.

    NCCL's tables hold measured times of NCCL's own choice.  Another algorithm or protocol therefore takes
    expected seconds x model(other) / model(NCCL's choice).

    Without GPUDirect RDMA every byte of a message goes through the memory of both hosts: it is written and read there
    once on each side.  A network card then has at most the rate of a GPU's host link, and its share of the host
    memory's bandwidth, of which a byte sent and a byte received take two each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt
from statistics import median

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.what_if import with_faults
from quadrille.topologies.network import Network

SHARES = (0.75, 0.5, 0.25, 0.125)
"""Shares of its rate that a slow link keeps."""
CHOICES = ("ring:LL", "ring:LL128", "ring:Simple", "tree:LL", "tree:LL128", "tree:Simple")
"""Algorithms and protocols that NCCL can be held to."""
USES_OF_MEMORY = 4
"""Bytes that host memory moves for a byte sent and a byte received: each is written and read."""
SAME_DIGITS = 6
"""Digits behind the point in which the logarithms of equal times agree."""
LEAST_GAIN = 0.7
"""Largest part of the distance without a cause that remains with a cause that explains it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A measured call and its expected time [s]."""

    question: CollectiveQuestion
    measured: float
    expected: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause.

    Parameters
    ----------
    cause : the cause, in words; several causes that no measured time tells apart are joined by "or"
    try_it : flags of `quadrille collective` that show its effect; empty if there are none
    distance : root mean square of log(measured / simulated)
    """

    cause: str
    try_it: str
    distance: float


def distance(calls: Sequence[Call], seconds: Sequence[float]) -> float:
    """Root mean square of log(measured / seconds).

    >>> from quadrille.experiments.network.collective_question import CollectiveQuestion
    >>> call = Call(CollectiveQuestion(kind="all_gather", bytes=8, gpus=2, group=2), 2.0, 1.0)
    >>> round(distance([call], [1.0]), 3)
    0.693
    """
    return sqrt(sum(log(call.measured / time) ** 2 for call, time in zip(calls, seconds, strict=True)) / len(calls))


def explanations(calls: Sequence[Call], machine: Machine) -> list[Explanation]:
    """The causes that explain the measured times, the nearest first; empty if none comes nearer than no cause.

    Causes with the same times are one explanation, with all their words and the flags of the first.

    Parameters
    ----------
    calls : a few measured calls of different sizes
    machine : machine of the expected times
    """
    before = distance(calls, [call.expected for call in calls])
    near: dict[tuple[float, ...], Explanation] = {}
    for change in _causes(calls, machine):
        try:
            times = [change.seconds(call) for call in calls]
        except InputError:  # a network without a path, or an algorithm that NCCL lacks here
            continue
        if min(times) <= 0:
            continue
        same = tuple(round(log(time), SAME_DIGITS) for time in times)
        if same in near:
            near[same] = replace(near[same], cause=f"{near[same].cause}, or {change.words}")
        else:
            near[same] = Explanation(change.words, change.try_it, distance(calls, times))
    nearer = (cause for cause in near.values() if cause.distance < LEAST_GAIN * before)
    return sorted(nearer, key=lambda cause: cause.distance)


@dataclass(frozen=True)
class _Cause:
    words: str
    try_it: str
    seconds: Callable[[Call], float]


def _causes(calls: Sequence[Call], machine: Machine) -> Iterator[_Cause]:
    yield from _slow_links(calls, machine)
    yield from _other_choices(machine)
    longer = median(call.measured - call.expected for call in sorted(calls, key=lambda call: call.expected)[:3])
    if longer > 0:
        yield _Cause(
            f"each call takes {format_seconds(longer)} longer, whatever its size: a busy host, or launches that wait",
            "",
            lambda call: call.expected + longer,
        )


def _slow_links(calls: Sequence[Call], machine: Machine) -> Iterator[_Cause]:
    """Slow and failed links, and messages through host memory."""
    net = network_of(machine)
    across = max(call.question.gpus for call in calls) > net.per_node
    links = _Links(net)
    named = [("the NVLinks of one GPU" if links.switched else "the link between two GPUs", links.one_inside)]
    named += [("all links between GPUs of a node", links.all_inside)]
    if across:
        named += [
            ("one network card of the first node, by which NCCL chooses,", links.one_card),
            ("one network card of the last node", links.last_card),
            ("every network card", links.all_cards),
            ("the PCIe link between one GPU and its network card", links.one_host),
        ]
    for words, pattern in named:
        for share in SHARES if pattern else ():
            yield _degraded(machine, f"{words} at {share:.3g} of the rate", pattern, share)
    if across and links.all_cards and (share := _share_without_gpudirect(machine, net)) < 1:
        yield _degraded(
            machine,
            f"GPUDirect RDMA is missing: messages go through host memory, at {share:.2g} of a card's rate",
            links.all_cards,
            share,
        )


def _degraded(machine: Machine, words: str, pattern: str, share: float) -> _Cause:
    changed = with_faults(machine, degrade=[f"{pattern}={share:g}"])
    net: list[Network] = []

    def seconds(call: Call) -> float:
        net[:] = net or [network_of(changed)]
        return predict_collective(call.question, changed, net=net[0]).seconds

    return _Cause(words, f"--degrade '{pattern}={share:.3g}'", seconds)


def _share_without_gpudirect(machine: Machine, net: Network) -> float:
    """Share of its rate that a network card has when messages go through host memory; 1 if the host is not known."""
    host = machine.host_link
    cards = [number for number, kind in enumerate(net.link_names(np.arange(net.link_count))) if _leaves_card(kind)]
    if host is None or not cards:
        return 1.0
    rate = float(net.bandwidths[cards].max())
    through = min(host.bytes_per_second, host.memory_bytes_per_second / USES_OF_MEMORY / net.cards_per_node)
    return min(1.0, through / rate)


def _leaves_card(name: str) -> bool:
    return name.startswith("nic:") and ">gpu:" not in name


class _Links:
    """Patterns of the links of each sort in a network; empty where it has none."""

    def __init__(self, net: Network) -> None:
        self._names = net.link_names(np.arange(net.link_count))
        self._cards = net.kinds["nic"][1] if "nic" in net.kinds else 0
        self.switched = any(name.startswith("gpu:0>nvswitch:") for name in self._names)

    def _first(self, source: str, *targets: str) -> str:
        """The cable of the first link from a node to a node of one of these kinds."""
        for name in self._names:
            start, _, end = name.partition(">")
            if start == source and end.partition(":")[0] in targets:
                return f"{start}-{end.partition('#')[0]}"
        return ""

    @cached_property
    def one_inside(self) -> str:
        return self._first("gpu:0", "nvswitch") or self._first("gpu:0", "gpu")

    @cached_property
    def all_inside(self) -> str:
        return _every(self.one_inside)

    def _card(self, name: str) -> str:
        """The cable between a network card and the network."""
        ends = {name.partition(">")[2].partition(":")[0] for name in self._names if _leaves_card(name)}
        return self._first(name, *ends)

    @cached_property
    def one_card(self) -> str:
        return self._card("nic:0")

    @cached_property
    def last_card(self) -> str:
        return self._card(f"nic:{self._cards - 1}")

    @cached_property
    def all_cards(self) -> str:
        return _every(self.one_card)

    @cached_property
    def one_host(self) -> str:
        return self._first("nic:0", "gpu")


def _every(cable: str) -> str:
    """The pattern of all cables between nodes of the same kinds.

    >>> _every("nic:0-leaf:3")
    'nic:*-leaf:*'
    """
    return "-".join(f"{end.partition(':')[0]}:*" for end in cable.split("-")) if cable else ""


def _other_choices(machine: Machine) -> Iterator[_Cause]:
    """Another algorithm or protocol than NCCL would choose."""
    net = network_of(machine)
    chosen: dict[CollectiveQuestion, float] = {}

    def model_seconds(question: CollectiveQuestion) -> float:
        if question not in chosen:
            plain = replace(question, nccl=NcclSettings(measured=False))
            chosen[question] = predict_collective(plain, machine, net=net).seconds
        return chosen[question]

    for choice in CHOICES:
        algorithm, protocol = choice.split(":")
        choices = parse_choices(f"nccl:{choice}")

        def seconds(call: Call, choices: object = choices) -> float:
            held = predict_collective(replace(call.question, choices=choices), machine, net=net).seconds  # type: ignore[arg-type]
            return call.expected * held / model_seconds(call.question)

        yield _Cause(
            f"NCCL uses {algorithm} with {protocol} for all sizes (NCCL_ALGO={algorithm.upper()}, "
            f"NCCL_PROTO={protocol.upper()})",
            f"--collectives nccl:{choice}",
            seconds,
        )
