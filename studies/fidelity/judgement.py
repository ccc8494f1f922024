"""What trials came to, and how good predictions are: errors, order of configurations, gains of overlaps, intervals."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from quadrille.algorithms.formats.record import Cause, Record
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.compare.error_sizes import ErrorSizes, raw_and_drift_removed
from quadrille.studies.fidelity.trials import NO_OVERLAP, Trial

Group = Literal["shared memory", "laboratory", "laboratory, overlap", "library", "GPU"]
ALIKE = 0.08
"""Times closer than this are not told apart by a measurement here (relative)."""
CLEAR_GAIN = 0.05
"""Gains of an overlap that are predicted or measured above this share of the step must have the same sign."""
CLOSE_GAIN = 0.05
"""A gain is predicted well within so much of the step."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One trial: what it was, what was predicted and measured, and where the difference comes from.

    Parameters
    ----------
    command : what measures it again, as often
    problem : workload, dtype and passes, in words: configurations of one problem at one site are ordered
    configuration : algorithm, grid, overlap and collectives, in words
    causes : predicted less measured seconds, by cause; they add up to the difference
    spread : of the measurement, over its repeats
    """

    command: str
    site: str
    group: Group
    problem: str
    configuration: str
    overlap: str
    predicted_seconds: float
    predicted_low_seconds: float
    predicted_high_seconds: float
    measured_seconds: float
    relative_error: float
    relative_error_drift_removed: float | None
    spread: float | None
    interval_holds_measurement: bool
    causes: dict[Cause, float]


class Errors(ErrorSizes, frozen=True, kw_only=True):
    """Sizes of relative errors of one group, and how many prediction intervals hold the measurement."""

    median_drift_removed: float | None
    intervals_hold: float


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Kendall's tau over pairs of configurations of one problem at one site.

    Those that take alike are left out; those that are predicted to and do not count as pairs without an order.
    """

    pairs: int
    left_out: int
    tau: float | None


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What an overlap gains, as a share of the step without it.

    Parameters
    ----------
    group : of the trial with the overlap
    """

    site: str
    group: Group
    problem: str
    configuration: str
    predicted: float
    measured: float

    @property
    def close(self) -> bool:
        return abs(self.predicted - self.measured) <= CLOSE_GAIN

    @property
    def clear(self) -> bool:
        """Whether enough is predicted or measured to have a sign."""
        return max(abs(self.predicted), abs(self.measured)) > CLEAR_GAIN

    @property
    def sign_right(self) -> bool:
        return self.predicted * self.measured > 0


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All trials together.

    Parameters
    ----------
    order, intervals_hold : of those on hosts: nothing is asked of a GPU, whose intervals have no width, since its
        machine file says nothing of residuals
    """

    errors: dict[Group, Errors]
    order: Order
    gains: tuple[Gain, ...]
    intervals_hold: float


def result(trial: Trial, predicted: Record, comparison: Comparison, *, command: str) -> Result:
    """The trial with its two times.

    Parameters
    ----------
    command : what measures it again
    """
    times, problem = comparison.seconds, comparison.problem
    assert times.relative_error is not None, command
    grid = ",".join(f"{axis}={length}" for axis, length in problem.grid.items() if length > 1)
    return Result(
        command=command,
        site=trial.site.name,
        group=group(trial),
        problem=f"{_workload(trial)} {problem.dtype} {problem.passes}",
        configuration=f"{problem.algorithm} {grid} {problem.options.collectives}",
        overlap=trial.overlap,
        predicted_seconds=times.predicted,
        predicted_low_seconds=predicted.seconds_low,
        predicted_high_seconds=predicted.seconds_high,
        measured_seconds=times.measured,
        relative_error=times.relative_error,
        relative_error_drift_removed=times.relative_error_drift_removed,
        spread=comparison.noise.spread,
        interval_holds_measurement=comparison.noise.interval_holds_measurement,
        causes=comparison.attribution_seconds.by_cause(),
    )


def group(trial: Trial) -> Group:
    """By what a trial is judged."""
    if trial.site.gpu:
        return "GPU"
    if trial.library:
        return "library"
    if not trial.site.topology:
        return "shared memory"
    return "laboratory, overlap" if trial.overlap != NO_OVERLAP else "laboratory"


def _workload(trial: Trial) -> str:
    sizes = trial.experiment.workload
    if sizes.matmul is not None:
        return f"matmul {sizes.matmul.m},{sizes.matmul.k},{sizes.matmul.n}"
    assert sizes.mlp is not None
    return f"mlp {','.join(map(str, sizes.mlp.widths))} batch {sizes.mlp.rows}"


def judged(results: Sequence[Result]) -> Judgement:
    """What the results of all trials say together."""
    groups: dict[Group, list[Result]] = defaultdict(list)
    for one in results:
        groups[one.group].append(one)
    on_hosts = [one for one in results if one.group != "GPU"]
    return Judgement(
        errors={name: errors(groups[name]) for name in sorted(groups)},
        order=order(on_hosts),
        gains=tuple(gains(results)),
        intervals_hold=_holding(on_hosts),
    )


def errors(results: Sequence[Result]) -> Errors:
    """Sizes of the errors of some results."""
    raw, removed = raw_and_drift_removed(results)
    return Errors(
        **msgspec.structs.asdict(raw),
        median_drift_removed=removed.median if removed is not None else None,
        intervals_hold=_holding(results),
    )


def order(results: Iterable[Result]) -> Order:
    """How well predictions order what was measured, over all problems together."""
    alike: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for one in results:
        alike[one.site, one.problem].append(one)
    pairs = agreeing = opposing = left_out = 0
    for members in alike.values():
        for one, other in combinations(members, 2):
            shorter, longer = sorted((one.measured_seconds, other.measured_seconds))
            if longer <= shorter * (1 + ALIKE):
                left_out += 1
                continue
            predicted = (one.predicted_seconds - other.predicted_seconds) * (
                one.measured_seconds - other.measured_seconds
            )
            pairs, agreeing, opposing = pairs + 1, agreeing + (predicted > 0), opposing + (predicted < 0)
    return Order(pairs=pairs, left_out=left_out, tau=(agreeing - opposing) / pairs if pairs else None)


def gains(results: Sequence[Result]) -> Iterable[Gain]:
    """Of each trial with an overlap whose twin without it is there."""
    without = {_place(one): one for one in results if one.overlap == NO_OVERLAP}
    for one in results:
        if one.overlap != NO_OVERLAP and (twin := without.get(_place(one))) is not None:
            yield Gain(
                site=one.site,
                group=one.group,
                problem=one.problem,
                configuration=f"{one.configuration} {one.overlap}",
                predicted=1 - one.predicted_seconds / twin.predicted_seconds,
                measured=1 - one.measured_seconds / twin.measured_seconds,
            )


def _place(one: Result) -> tuple[str, str, str]:
    return one.site, one.problem, one.configuration


def _holding(results: Sequence[Result]) -> float:
    return sum(one.interval_holds_measurement for one in results) / len(results) if results else 0.0
