"""`fit_collectives`: a machine whose collectives take measured times, as far as a machine file can say so.

    what is fitted                                  to                                     by
    ------------------------------------------------------------------------------------------------------------
    bandwidth between GPUs of a node                rows inside a node, from 16 MiB        median ratio of times 1
    bandwidth of a network card                     rows between nodes, from 16 MiB;       the same
                                                    messages alone, if there are any
    device.collectives_between_share                collectives between nodes beside       the same, at most 1
                                                    messages
    device.collective_call_seconds                  rows up to 64 KiB                      median difference, from 0

A row tells a bandwidth only if its predicted time depends on it: if a bandwidth of `PROBE` times its size makes it
longer by at least half as much.  Of each kind, number of ranks and of nodes, every second size is fitted, the largest
first.  The other sizes judge the fit, and no number depends on them.  The interval of a number is that between the 5th
and the 95th percentile of the numbers that single rows imply.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from statistics import median

import msgspec
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.experiments.check.check import Layout
from quadrille.experiments.import_.collective_logs import CollectiveLog
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.machines.what_if import apply_settings
from quadrille.topologies.network import Network
from quadrille.topologies.quantity import name_with_unit

LARGE, SMALL = 2**24, 2**16
"""Least size of rows that tell a bandwidth, and largest size of rows that tell the time of a call [B]."""
INSIDE = ("nvlink_bandwidth", "package_bandwidth", "xgmi_bandwidth", "gpu_bandwidth")
BETWEEN = ("nic_bandwidth", "bandwidth")
"""Names of bandwidths of a topology, without their unit, the first that it has."""
LEAST_FACTOR, LARGEST_FACTOR = 1 / 64, 2.0
"""Range of a fitted bandwidth, as a multiple of that of the base machine."""
MOST_STEPS = 12
CLOSE = 1e-3
"""Change of a factor at which the fit ends."""
PASSES = 2
"""Times that all numbers are fitted: the time of a call counts in large rows, and bandwidths count in small rows."""
FOLLOWS = 0.1
"""Largest median of log(predicted / measured) of rows that are as expected without a bandwidth on which they depend."""
PROBE = 0.8
"""Factor on a bandwidth, by which rows that depend on it are found."""
SHARE = "device.collectives_between_share"
CALL = "device.collective_call_seconds"


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """A measured time of a collective [s].

    Parameters
    ----------
    nodes : number of nodes of the group
    gpus : GPUs of these nodes, used or not
    """

    question: CollectiveQuestion
    seconds: float
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class FittedNumber:
    """A fitted number of a machine file, in SI units.

    Parameters
    ----------
    path : path of the number in the machine file
    before : value of the base machine
    least, largest : 5th and 95th percentile of the values that single rows imply
    rows : number of fitted rows
    """

    path: str
    before: float
    value: float
    least: float
    largest: float
    rows: int


@dataclass(frozen=True, slots=True)
class FittedMachine:
    """A fitted machine.

    Parameters
    ----------
    numbers : fitted numbers
    untold : what the rows do not tell, a phrase each
    fitted, judged : rows that were fitted, and rows that were not
    """

    machine: Machine
    numbers: tuple[FittedNumber, ...]
    untold: tuple[str, ...]
    fitted: tuple[MeasuredCall, ...]
    judged: tuple[MeasuredCall, ...]


def measured_calls(log: CollectiveLog, layout: Layout) -> list[MeasuredCall]:
    """The calls of a log, each with the median of its measured times.

    Raises
    ------
    InputError : a row whose collective is unknown
    """
    times: dict[CollectiveQuestion, list[float]] = defaultdict(list)
    for row in log.rows:
        if row.kind is None:
            raise InputError("the file does not tell which collective it measured: --collective NAME does")
        times[layout.question(row.kind, row.bytes, row.item_bytes)].append(row.seconds)
    return [MeasuredCall(question, median(seconds), layout.nodes, layout.gpus) for question, seconds in times.items()]


def halves(calls: Sequence[MeasuredCall]) -> tuple[list[MeasuredCall], list[MeasuredCall]]:
    """Rows to fit and rows that judge the fit: every second size of each kind and group, the largest fitted."""
    groups: dict[tuple[object, ...], list[MeasuredCall]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: -call.question.bytes):
        groups[call.question.kind, call.question.group, call.nodes, call.question.item_bytes].append(call)
    return (
        [call for group in groups.values() for call in group[::2]],
        [call for group in groups.values() for call in group[1::2]],
    )


def fit_collectives(machine: Machine, calls: Sequence[MeasuredCall]) -> FittedMachine:
    """The machine with numbers that are fitted to measured calls.

    Raises
    ------
    InputError : a call that cannot be simulated on the machine
    """
    fitted, judged = halves(calls)
    numbers: dict[str, FittedNumber] = {}
    untold: tuple[str, ...] = ()
    for _ in range(PASSES):
        machine, call = _fit_call(machine, fitted)
        machine, rates, untold = _fit_rates(machine, fitted)
        for number in (*rates, *([call] if call is not None else [])):
            before = numbers[number.path].before if number.path in numbers else number.before
            numbers[number.path] = replace(number, before=before)
    if not any(call.question.bytes <= SMALL for call in fitted):
        untold = (*untold, "the time of a call (no row up to 64 KiB)")
    return FittedMachine(machine, tuple(numbers.values()), untold, tuple(fitted), tuple(judged))


def _fit_rates(machine: Machine, fitted: Sequence[MeasuredCall]) -> tuple[Machine, list[FittedNumber], tuple[str, ...]]:
    """The machine with fitted bandwidths, these, and what the rows do not tell of them."""
    inside, between = ([call for call in fitted if (call.nodes > 1) is across] for across in (False, True))
    messages = [call for call in between if call.question.kind == "send_receive"]
    others = [call for call in between if call.question.kind != "send_receive"]
    share = _Number(SHARE, machine.device.collectives_between_share)
    cards = _bandwidth(machine, BETWEEN)
    attempts: list[tuple[_Number | None, list[MeasuredCall], str, float]] = [
        (_bandwidth(machine, INSIDE), inside, "the bandwidth inside a node", LARGEST_FACTOR)
    ]
    by_messages = cards is not None and bool(others) and _tells(machine, cards, messages)
    attempts.append((cards, messages if by_messages else between, "the bandwidth of network cards", LARGEST_FACTOR))
    if by_messages:
        attempts.append((share, others, "the share of the cards' bandwidth that collectives reach", 1 / share.value))
    numbers, untold = [], []
    for number, rows, words, largest in attempts:
        large = [call for call in rows if call.question.bytes >= LARGE]
        if number is None or not large:
            untold.append(f"{words} ({'no such row from 16 MiB' if number else 'its topology has no such number'})")
        elif (result := _fit_factor(machine, number, large, largest)) is None:
            untold.append(f"{words} (the rows do not depend on it, or no value gives their times)")
        else:
            machine, fit = result
            numbers.append(fit)
    if between and not by_messages:
        untold.append("the share of the cards' bandwidth that collectives reach (no messages that depend on it)")
    return machine, numbers, tuple(untold)


def predicted_seconds(machine: Machine, calls: Sequence[MeasuredCall]) -> list[float]:
    """The predicted time of each call [s]."""
    nets: dict[int, tuple[Machine, Network]] = {}
    seconds = []
    for call in calls:
        gpus = call.gpus
        if gpus not in nets:
            sized = with_gpus(machine, gpus)
            nets[gpus] = sized, network_of(sized)
        seconds.append(predict_collective(call.question, nets[gpus][0], net=nets[gpus][1]).seconds)
    return seconds


def with_gpus(machine: Machine, gpus: int) -> Machine:
    """The machine with this number of GPUs, if it is one of the named machines; they have any number."""
    if machine.topology.get("family") not in MACHINES:
        return machine
    return msgspec.structs.replace(machine, topology={**machine.topology, "gpus": gpus})


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of a machine file: its path and its value."""

    path: str
    value: float

    def times(self, machine: Machine, factor: float) -> Machine:
        return apply_settings(machine, [f"{self.path}={self.value * factor!r}"])


def _bandwidth(machine: Machine, names: Sequence[str]) -> _Number | None:
    """The first of some bandwidths that the topology of a machine has; None if it has none."""
    family = machine.topology.get("family")
    usual = MACHINES[str(family)].optional_arguments() if family in MACHINES else {}
    numbers = {**usual, **machine.topology}
    for name in names:
        value = numbers.get(name_with_unit(name))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _Number(f"topology.{name_with_unit(name)}", float(value))
    return None


def _fit_factor(
    machine: Machine, number: _Number, calls: Sequence[MeasuredCall], largest: float
) -> tuple[Machine, FittedNumber] | None:
    """The machine with the bandwidth at which the median of predicted / measured is nearest to 1; None if none is near.

    The time of a large collective is nearly in proportion to 1 / bandwidth, so each step multiplies the bandwidth by
    predicted / measured.  A share of collectives stays 1 where they are faster than that.
    """
    factor, distance = 1.0, inf
    nearest: tuple[Machine, FittedNumber] | None = None
    for _ in range(MOST_STEPS):
        changed = number.times(machine, factor)
        telling, step = _telling(machine, number, factor, calls)
        if not telling and abs(log(step)) <= FOLLOWS:
            break
        if telling and abs(log(step)) < distance:
            distance = abs(log(step))
            least, most = np.quantile([number.value * factor * exp(ratio) for ratio in telling], (0.05, 0.95)).tolist()
            fit = FittedNumber(number.path, number.value, number.value * factor, least, most, len(telling))
            nearest = changed, fit
        if abs(step - 1) < CLOSE or factor * step < LEAST_FACTOR or (factor == largest and step > 1):
            break
        factor = min(largest, factor * step)
    is_share_of_one = number.path == SHARE and factor == largest
    return nearest if distance <= FOLLOWS or is_share_of_one else None


def _telling(
    machine: Machine, number: _Number, factor: float, calls: Sequence[MeasuredCall]
) -> tuple[list[float], float]:
    """log(predicted / measured) of the rows that depend on a bandwidth, and the median of predicted / measured.

    The median is that of all rows if none depends on the bandwidth.
    """
    ratios = _log_ratios(number.times(machine, factor), calls)
    slower = _log_ratios(number.times(machine, factor * PROBE), calls)
    telling = [old for old, new in zip(ratios, slower, strict=True) if new - old >= -log(PROBE) / 2]
    return telling, exp(median(telling or ratios))


def _tells(machine: Machine, number: _Number, calls: Sequence[MeasuredCall]) -> bool:
    """Whether rows tell a bandwidth."""
    large = [call for call in calls if call.question.bytes >= LARGE]
    return bool(large) and _fit_factor(machine, number, large, LARGEST_FACTOR) is not None


def _log_ratios(machine: Machine, calls: Sequence[MeasuredCall]) -> list[float]:
    """log(predicted / measured) of each call."""
    times = predicted_seconds(machine, calls)
    return [log(time / call.seconds) for time, call in zip(times, calls, strict=True)]


def _fit_call(machine: Machine, fitted: Sequence[MeasuredCall]) -> tuple[Machine, FittedNumber | None]:
    """The machine with the time of a call that small rows tell; without small rows, the machine as it is."""
    small = [call for call in fitted if call.question.bytes <= SMALL]
    if not small:
        return machine, None
    before = machine.device.collective_call_seconds
    plain = apply_settings(machine, [f"{CALL}=0.0"])
    differences = [call.seconds - time for call, time in zip(small, predicted_seconds(plain, small), strict=True)]
    value = max(0.0, median(differences))
    least, most = (max(0.0, bound) for bound in np.quantile(differences, (0.05, 0.95)).tolist())
    return apply_settings(plain, [f"{CALL}={value!r}"]), FittedNumber(CALL, before, value, least, most, len(small))


@dataclass(frozen=True, slots=True)
class Residuals:
    """Sizes of the relative errors of some rows.

    Parameters
    ----------
    median, high : median and 90th percentile of |predicted / measured - 1|
    """

    rows: int
    median: float
    high: float


def residuals(machine: Machine, calls: Sequence[MeasuredCall]) -> Residuals | None:
    """The residuals of rows; None without rows."""
    if not calls:
        return None
    errors = [abs(exp(ratio) - 1) for ratio in _log_ratios(machine, calls)]
    return Residuals(len(errors), median(errors), float(np.quantile(errors, 0.9)))


def by_kind(calls: Sequence[MeasuredCall]) -> Iterator[tuple[tuple[str, int, int, str], list[MeasuredCall]]]:
    """The rows by kind, ranks, nodes and range of sizes."""
    groups: dict[tuple[str, int, int, str], list[MeasuredCall]] = defaultdict(list)
    for call in calls:
        sizes = (
            "from 16 MiB"
            if call.question.bytes >= LARGE
            else "to 64 KiB"
            if call.question.bytes <= SMALL
            else "between"
        )
        groups[call.question.kind, call.question.group, call.nodes, sizes].append(call)
    yield from sorted(groups.items())
