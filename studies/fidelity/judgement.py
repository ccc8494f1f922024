"""The results of trials and the accuracy of their predictions.

The accuracy has four parts: relative errors by group, Kendall's rank correlation of configurations, gains of overlaps,
and the share of prediction intervals that contain the measurement.
"""

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
INDISTINGUISHABLE = 0.08
"""Relative difference of two times below which a measurement here does not distinguish them."""
CLEAR_GAIN = 0.05
"""Gains of an overlap that are predicted or measured above this share of the step must have the same sign."""
CLOSE_GAIN = 0.05
"""Largest error of a predicted gain that counts as close, as a share of the step."""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial: its configuration, its predicted and measured time, and the causes of the difference.

    Parameters
    ----------
    command : command line that repeats the measurement with the same number of repeats
    site : name of the site
    group : group of the trial
    problem : workload, dtype and passes as text; configurations of the same problem at the same site are compared
    configuration : algorithm, grid and collectives as text
    overlap : overlaps and bands as text, or `none`
    predicted_seconds, predicted_low_seconds, predicted_high_seconds : predicted time and its interval [s]
    measured_seconds : median measured time [s]
    relative_error : predicted / measured - 1
    relative_error_drift_removed : the same after correction for the drift of the machine since its calibration
    spread : relative spread of the measurement over its repeats
    interval_holds_measurement : whether the prediction interval contains the measurement
    causes : predicted minus measured seconds, by cause; the causes add up to the whole difference
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
    """The absolute relative errors of one group.

    Parameters
    ----------
    median_drift_removed : median error after correction for the drift of the machine
    intervals_hold : share of the prediction intervals that contain the measurement
    """

    median_drift_removed: float | None
    intervals_hold: float


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Kendall's rank correlation of predicted and measured times, over pairs of configurations of the same problem.

    Parameters
    ----------
    pairs : number of pairs
    left_out : number of pairs whose measured times are indistinguishable, which do not count
    tau : (concordant - discordant) / pairs; a pair with equal predictions is neither
    """

    pairs: int
    left_out: int
    tau: float | None


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The gain of an overlap: the saved time as a share of the step without overlap.

    Parameters
    ----------
    site : name of the site
    group : group of the trial with the overlap
    problem : workload, dtype and passes as text
    configuration : algorithm, grid, collectives and overlap as text
    predicted, measured : predicted and measured gain
    """

    site: str
    group: Group
    problem: str
    configuration: str
    predicted: float
    measured: float

    @property
    def close(self) -> bool:
        """Whether the predicted gain is close to the measured gain."""
        return abs(self.predicted - self.measured) <= CLOSE_GAIN

    @property
    def clear(self) -> bool:
        """Whether the predicted or the measured gain is large enough for its sign to count."""
        return max(abs(self.predicted), abs(self.measured)) > CLEAR_GAIN

    @property
    def sign_right(self) -> bool:
        """Whether the predicted and the measured gain have the same sign."""
        return self.predicted * self.measured > 0


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy over all trials.

    Parameters
    ----------
    errors : relative errors by group
    gains : gains of overlaps
    order, intervals_hold : rank correlation, and share of the intervals that contain the measurement, over the trials
        on hosts; trials on a GPU are left out, because a GPU's machine file has no residuals and its intervals have no
        width
    """

    errors: dict[Group, Errors]
    order: Order
    gains: tuple[Gain, ...]
    intervals_hold: float


def trial_result(trial: Trial, predicted: Record, comparison: Comparison, *, command: str) -> TrialResult:
    """The result of a trial, from its prediction and its measurement.

    Parameters
    ----------
    trial : trial
    predicted : record of the prediction
    comparison : comparison of the predicted and the measured record
    command : command line that repeats the measurement
    """
    times, problem = comparison.seconds, comparison.problem
    assert times.relative_error is not None, command
    grid = ",".join(f"{axis}={length}" for axis, length in problem.grid.items() if length > 1)
    return TrialResult(
        command=command,
        site=trial.site.name,
        group=group_of(trial),
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


def group_of(trial: Trial) -> Group:
    """The group of a trial, whose thresholds apply to it."""
    if trial.site.gpu:
        return "GPU"
    if trial.is_by_library:
        return "library"
    if not trial.site.topology:
        return "shared memory"
    return "laboratory, overlap" if trial.overlap != NO_OVERLAP else "laboratory"


def _workload(trial: Trial) -> str:
    """The workload of a trial as text."""
    sizes = trial.experiment.workload
    if sizes.matmul is not None:
        return f"matmul {sizes.matmul.m},{sizes.matmul.k},{sizes.matmul.n}"
    assert sizes.mlp is not None
    return f"mlp {','.join(map(str, sizes.mlp.widths))} batch {sizes.mlp.rows}"


def judge_results(results: Sequence[TrialResult]) -> Judgement:
    """The accuracy of the predictions over the results of all trials."""
    groups: dict[Group, list[TrialResult]] = defaultdict(list)
    for result in results:
        groups[result.group].append(result)
    on_hosts = [result for result in results if result.group != "GPU"]
    return Judgement(
        errors={name: errors(groups[name]) for name in sorted(groups)},
        order=rank_correlation(on_hosts),
        gains=tuple(gains(results)),
        intervals_hold=_interval_coverage(on_hosts),
    )


def errors(results: Sequence[TrialResult]) -> Errors:
    """The absolute relative errors of some results."""
    raw, removed = error_sizes_raw_and_drift_removed(results)
    return Errors(
        **msgspec.structs.asdict(raw),
        median_drift_removed=removed.median if removed is not None else None,
        intervals_hold=_interval_coverage(results),
    )


def rank_correlation(results: Iterable[TrialResult]) -> Order:
    """Kendall's rank correlation of predicted and measured times, over all problems.

    Parameters
    ----------
    results : results; pairs are formed of results with the same problem at the same site
    """
    by_problem: dict[tuple[str, str], list[TrialResult]] = defaultdict(list)
    for result in results:
        by_problem[result.site, result.problem].append(result)
    pairs = agreeing = opposing = left_out = 0
    for members in by_problem.values():
        for first, second in combinations(members, 2):
            shorter, longer = sorted((first.measured_seconds, second.measured_seconds))
            if longer <= shorter * (1 + INDISTINGUISHABLE):
                left_out += 1
                continue
            predicted = (first.predicted_seconds - second.predicted_seconds) * (
                first.measured_seconds - second.measured_seconds
            )
            pairs, agreeing, opposing = pairs + 1, agreeing + (predicted > 0), opposing + (predicted < 0)
    return Order(pairs=pairs, left_out=left_out, tau=(agreeing - opposing) / pairs if pairs else None)


def gains(results: Sequence[TrialResult]) -> Iterable[Gain]:
    """The gain of each trial that has an overlap, if the results include the same trial without overlap."""
    without = {_configuration_key(result): result for result in results if result.overlap == NO_OVERLAP}
    for result in results:
        if result.overlap != NO_OVERLAP and (without_overlap := without.get(_configuration_key(result))) is not None:
            yield Gain(
                site=result.site,
                group=result.group,
                problem=result.problem,
                configuration=f"{result.configuration} {result.overlap}",
                predicted=1 - result.predicted_seconds / without_overlap.predicted_seconds,
                measured=1 - result.measured_seconds / without_overlap.measured_seconds,
            )


def _configuration_key(result: TrialResult) -> tuple[str, str, str]:
    """The key that a trial shares with the same trial with other overlaps."""
    return result.site, result.problem, result.configuration


def _interval_coverage(results: Sequence[TrialResult]) -> float:
    """The share of the prediction intervals that contain the measurement."""
    return sum(result.interval_holds_measurement for result in results) / len(results) if results else 0.0
