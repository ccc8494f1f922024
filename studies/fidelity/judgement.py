"""What trials came to, and how good predictions are: errors, order of configurations, gains of overlaps, intervals."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from quadrille.algorithms.formats.record import Cause, Record
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.compare.error_sizes import ErrorSizes, error_sizes_raw_and_drift_removed
from quadrille.studies.fidelity.trials import NO_OVERLAP, Trial

Group = Literal["shared memory", "laboratory", "laboratory, overlap", "library", "GPU"]
ALIKE = 0.08
"""Times closer than this are not told apart by a measurement here (relative)."""
CLEAR_GAIN = 0.05
"""Gains of an overlap that are predicted or measured above this share of the step must have the same sign."""
CLOSE_GAIN = 0.05
"""A gain is predicted well within so much of the step."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial: its configuration, its predicted and measured time, and the causes of the difference.

    Parameters
    ----------
    command : command line that repeats the measurement with the same number of repeats
    problem : workload, dtype and passes, in words; configurations of the same problem at the same site are compared
    configuration : algorithm, grid, overlap and collectives, in words
    causes : predicted minus measured seconds, by cause; the causes add up to the whole difference
    spread : relative spread of the measurement over its repeats
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
    """The gain of an overlap, as a share of the step without overlap.

    Parameters
    ----------
    group : group of the trial that has the overlap
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
    """Accuracy over all trials.

    Parameters
    ----------
    order, intervals_hold : figures over the trials on hosts; trials on a GPU are left out, because a GPU's machine file
        has no residuals and its intervals have no width
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
    """The judgement over the results of all trials."""
    groups: dict[Group, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.group].append(result)
    on_hosts = [result for result in results if result.group != "GPU"]
    return Judgement(
        errors={name: errors(groups[name]) for name in sorted(groups)},
        order=order(on_hosts),
        gains=tuple(gains(results)),
        intervals_hold=_holding(on_hosts),
    )


def errors(results: Sequence[Result]) -> Errors:
    """Sizes of the errors of some results."""
    raw, removed = error_sizes_raw_and_drift_removed(results)
    return Errors(
        **msgspec.structs.asdict(raw),
        median_drift_removed=removed.median if removed is not None else None,
        intervals_hold=_holding(results),
    )


def order(results: Iterable[Result]) -> Order:
    """How well predictions rank measured configurations, over all problems."""
    alike: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        alike[result.site, result.problem].append(result)
    pairs = agreeing = opposing = left_out = 0
    for members in alike.values():
        for first, second in combinations(members, 2):
            shorter, longer = sorted((first.measured_seconds, second.measured_seconds))
            if longer <= shorter * (1 + ALIKE):
                left_out += 1
                continue
            predicted = (first.predicted_seconds - second.predicted_seconds) * (
                first.measured_seconds - second.measured_seconds
            )
            pairs, agreeing, opposing = pairs + 1, agreeing + (predicted > 0), opposing + (predicted < 0)
    return Order(pairs=pairs, left_out=left_out, tau=(agreeing - opposing) / pairs if pairs else None)


def gains(results: Sequence[Result]) -> Iterable[Gain]:
    """The gain of each trial that has an overlap, if the results include the same trial without overlap."""
    without = {_place(result): result for result in results if result.overlap == NO_OVERLAP}
    for result in results:
        if result.overlap != NO_OVERLAP and (twin := without.get(_place(result))) is not None:
            yield Gain(
                site=result.site,
                group=result.group,
                problem=result.problem,
                configuration=f"{result.configuration} {result.overlap}",
                predicted=1 - result.predicted_seconds / twin.predicted_seconds,
                measured=1 - result.measured_seconds / twin.measured_seconds,
            )


def _place(result: Result) -> tuple[str, str, str]:
    return result.site, result.problem, result.configuration


def _holding(results: Sequence[Result]) -> float:
    return sum(result.interval_holds_measurement for result in results) / len(results) if results else 0.0
