"""What would explain measured times of collectives that differ from the expected ones: each cause is simulated.

A cause changes the machine (a slow link), what NCCL does (an algorithm, a protocol), or adds a time to every call.  Its
times are compared with the measured times of a few sizes; the distance is the root mean square of the logarithms of
their ratios, so 0.1 means about 10 % apart.  Sizes below 1 MiB, which are predicted less well, have the weight
`SMALL_WEIGHT`.

    The share of its rate that a slow link keeps is fitted.  While a link limits a call, the time of the call is linear
    in 1 / share; so a few shares are simulated, the share of the least distance is interpolated, and it is simulated,
    too.

    A cause with p fitted numbers is judged by  n log(distance^2) + p log(n) - 2 log(share),  the least first, where n
    is the sum of the weights of the sizes: the Bayesian information criterion, and a prior that is proportional to the
    share that a slow link keeps, so that the milder fault comes first where two have nearly the same times.  A
    distance below `MODEL_ERROR` counts as that.
    Causes are one explanation, the mildest fault first, if n sizes cannot tell them apart: if the root mean square of
    the logarithms of the ratios of their times is below two standard errors, 2 noise / sqrt(n), where noise is the
    least distance of all causes.

    NCCL's tables hold measured times of NCCL's own choice.  Another algorithm or protocol therefore takes
    expected seconds x model(other) / model(NCCL's choice).

Source: Schwarz, "Estimating the dimension of a model", Annals of Statistics 6(2), 1978.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import median

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.check.link_patterns import Links, share_without_gpudirect
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.what_if import with_faults

SHARES = (0.5, 0.25, 0.0625)
"""Shares of a link's rate that are simulated before a share is fitted."""
REFINEMENTS = 2
"""Fitted shares that are simulated, each with the shares before it."""
CANDIDATES = np.geomspace(SHARES[-1], 1.0, 400)
"""Shares among which the nearest is interpolated."""
CHOICES = ("ring:LL", "ring:LL128", "ring:Simple", "tree:LL", "tree:LL128", "tree:Simple")
"""Algorithms and protocols that NCCL can be held to."""
LARGE = 2**20
"""Size from which on a time depends on bandwidths more than on latencies [B]."""
WITHIN_MODEL, WITHIN_SMALL = 1.5, 2.0
"""Factors within which a measured time is as expected, from `LARGE` on and below."""
SMALL_WEIGHT = (log(WITHIN_MODEL) / log(WITHIN_SMALL)) ** 2
"""Weight of a size below `LARGE`: the square of the ratio of the errors that are expected."""
MODEL_ERROR = 0.03
"""Distance below which no cause is nearer than another: the median error of a prediction.

Source: studies/collective_tables/README.md.
"""
MOST_NOISE = 0.06
"""Largest noise of measured times: a larger distance is a cause that is not known."""
SAME = 0.01
"""Root mean square of the logarithms of ratios up to which a single link has the times of all links of its sort."""
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
    """Weighted root mean square of log(measured / seconds).

    >>> from quadrille.experiments.network.collective_question import CollectiveQuestion
    >>> call = Call(CollectiveQuestion(kind="all_gather", bytes=8, gpus=2, group=2), 2.0, 1.0)
    >>> round(distance([call], [1.0]), 3)
    0.693
    """
    return _distance(_weights(calls), [call.measured for call in calls], seconds)


def _weights(calls: Sequence[Call]) -> list[float]:
    return [1.0 if call.question.bytes >= LARGE else SMALL_WEIGHT for call in calls]


def _distance(weights: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float:
    """Weighted root mean square of log(first / second)."""
    squares = [
        weight * log(one_time / other_time) ** 2
        for weight, one_time, other_time in zip(weights, first, second, strict=True)
    ]
    return sqrt(sum(squares) / sum(weights))


def explanations(calls: Sequence[Call], machine: Machine, across: bool) -> list[Explanation]:
    """The causes that explain the measured times, the likeliest first; empty if none comes nearer than no cause.

    Causes that the measured times cannot tell apart are one explanation, with all their words and the flags of the
    first.

    Parameters
    ----------
    calls : a few measured calls of different sizes
    machine : machine of the expected times
    across : whether the ranks are on several nodes
    """
    before = distance(calls, [call.expected for call in calls])
    causes = [cause for cause in _causes(calls, machine, across) if cause.distance < LEAST_GAIN * before]
    noise = min(MOST_NOISE, max(MODEL_ERROR, min((cause.distance for cause in causes), default=0.0)))
    weights = _weights(calls)
    same_times = 2 * noise / sqrt(sum(weights))
    joined: list[list[_Simulated]] = []
    for cause in sorted(causes, key=lambda cause: -cause.share):
        same = next(
            (group for group in joined if _distance(weights, cause.seconds, group[0].seconds) < same_times), None
        )
        if same is None:
            joined.append([cause])
        else:
            same.append(cause)
    joined.sort(key=lambda group: group[0].score(sum(weights)))
    return [
        Explanation(", or ".join(cause.words for cause in group), group[0].try_it, group[0].distance)
        for group in joined
    ]


@dataclass(frozen=True, slots=True)
class _Simulated:
    """A cause with its times.

    Parameters
    ----------
    seconds : time of each call [s]
    fitted : number of fitted numbers
    share : share of its rate that a slow link keeps; 1 if none is slow
    """

    words: str
    try_it: str
    seconds: tuple[float, ...]
    distance: float
    fitted: int = 0
    share: float = 1.0

    def score(self, count: float) -> float:
        """The Bayesian information criterion with the prior of the share, up to a constant.

        Parameters
        ----------
        count : sum of the weights of all calls
        """
        return 2 * count * log(max(self.distance, MODEL_ERROR)) + self.fitted * log(count) - 2 * log(self.share)


def _causes(calls: Sequence[Call], machine: Machine, across: bool) -> Iterator[_Simulated]:
    yield from _slow_links(calls, machine, across)
    yield from _other_choices(calls, machine)
    longer = median(call.measured - call.expected for call in sorted(calls, key=lambda call: call.expected)[:3])
    if longer > 0:
        seconds = tuple(call.expected + longer for call in calls)
        words = (
            f"each call takes {format_seconds(longer)} longer, whatever its size: a busy host, or launches that wait"
        )
        yield _Simulated(words, "", seconds, distance(calls, seconds), 1)


# Slow links


class _Slow:
    """Links at a share of their rate; each share is simulated once.

    Parameters
    ----------
    words : the links
    pattern : pattern of the links, as `--degrade` takes it
    """

    def __init__(self, calls: Sequence[Call], machine: Machine, words: str, pattern: str) -> None:
        self._calls, self._machine = calls, machine
        self._words, self._pattern = words, pattern
        self._times: dict[float, tuple[float, ...]] = {}

    def at(self, share: float, words: str = "", fitted: int = 1) -> _Simulated:
        """The links at this share.

        Raises
        ------
        InputError : a network without a path, or a collective that NCCL lacks there
        """
        if share not in self._times:
            changed = with_faults(self._machine, degrade=[f"{self._pattern}={share:g}"])
            net = network_of(changed)
            times = (predict_collective(call.question, changed, net=net).seconds for call in self._calls)
            self._times[share] = tuple(times)
        words = words or f"{self._words} at {share:.2g} of the rate"
        seconds = self._times[share]
        try_it = f"--degrade '{self._pattern}={share:.2g}'"
        kept = share if fitted else 1.0
        return _Simulated(words, try_it, seconds, distance(self._calls, seconds), fitted, kept)

    def fitted_share(self) -> float | None:
        """The share of the least distance; None if the full rate is nearer.

        Raises
        ------
        InputError : as `at`
        """
        causes = {share: self.at(share) for share in SHARES}
        full = tuple(call.expected for call in self._calls)
        for _ in range(REFINEMENTS):
            share = self._interpolated({1.0: full, **{share: cause.seconds for share, cause in causes.items()}})
            if share == 1.0 or share in causes:
                break
            causes[share] = self.at(share)
        nearest = min(causes, key=lambda share: causes[share].distance)
        return nearest if causes[nearest].distance < distance(self._calls, full) else None

    def _interpolated(self, times: Mapping[float, tuple[float, ...]]) -> float:
        """The candidate of the least distance, with times that are linear in 1 / share between these, in two digits."""
        shares = sorted(times, reverse=True)
        inverse = [1 / share for share in shares]
        squares = sum(
            weight
            * np.log(np.interp(1 / CANDIDATES, inverse, [times[share][place] for share in shares]) / call.measured) ** 2
            for place, (call, weight) in enumerate(zip(self._calls, _weights(self._calls), strict=True))
        )
        return float(f"{CANDIDATES[int(np.argmin(squares))]:.2g}")


def _slow_links(calls: Sequence[Call], machine: Machine, across: bool) -> Iterator[_Simulated]:
    """Slow links, and messages through host memory."""
    net = network_of(machine)
    links = Links(net)
    named: list[tuple[tuple[str, str], ...]] = [
        (
            ("the NVLinks of one GPU" if links.switched else "the link between two GPUs", links.one_inside),
            ("all links between GPUs of a node", links.all_inside),
        )
    ]
    if across:
        named += [
            (
                ("one network card of the last node", links.last_card),
                ("one network card of the first node, by which NCCL chooses,", links.one_card),
                ("every network card", links.all_cards),
            ),
            (
                ("the PCIe link between one GPU and its network card", links.one_host),
                ("every PCIe link between a GPU and its network card", links.all_hosts),
            ),
        ]
    for sort in named:
        yield from _sort([_Slow(calls, machine, words, pattern) for words, pattern in sort if pattern])
    share = share_without_gpudirect(machine, net)
    if across and links.all_cards and share < 1:
        words = f"GPUDirect RDMA is missing: messages go through host memory, at {share:.2g} of a card's rate"
        yield _Slow(calls, machine, "", links.all_cards).at(share, words, 0)


def _sort(slow: Sequence[_Slow]) -> Iterator[_Simulated]:
    """Slow links of a sort, at their fitted shares: single links, then all; none in a network without a path.

    A single link is simulated at the share of all links first: where the slowest rank decides, it has their times, and
    no share of its own is fitted.
    """
    if not slow:
        return
    *single, every = slow
    share = every.fitted_share()
    for links in single:
        joint = links.at(share) if share else None
        if joint and share and _distance([1.0] * len(joint.seconds), joint.seconds, every.at(share).seconds) < SAME:
            yield joint
        elif own := links.fitted_share():
            yield links.at(own)
    if share:
        yield every.at(share)


def _other_choices(calls: Sequence[Call], machine: Machine) -> Iterator[_Simulated]:
    """Another algorithm or protocol than NCCL would choose."""
    net = network_of(machine)
    usual = NcclSettings(measured=False)
    model = [predict_collective(replace(call.question, nccl=usual), machine, net=net).seconds for call in calls]
    for choice in CHOICES:
        algorithm, protocol = choice.split(":")
        choices = parse_choices(f"nccl:{choice}")
        try:
            held = [
                predict_collective(replace(call.question, choices=choices), machine, net=net).seconds for call in calls
            ]
        except InputError:  # an algorithm that NCCL lacks here
            continue
        seconds = tuple(
            call.expected * time / usual_time for call, time, usual_time in zip(calls, held, model, strict=True)
        )
        words = f"(NCCL_ALGO={algorithm.upper()}, NCCL_PROTO={protocol.upper()})"
        yield _Simulated(
            f"NCCL uses {algorithm} with {protocol} for all sizes {words}",
            f"--collectives nccl:{choice}",
            seconds,
            distance(calls, seconds),
        )
