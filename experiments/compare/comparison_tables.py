"""The tables that `quadrille compare` prints: errors, causes of the difference, noise and drift."""

from rich.console import Group

from quadrille.experiments.compare.comparison import Comparison, KindComparison, Noise, OpComparison, Times
from quadrille.experiments.compare.drift import BUSY_FACTOR
from quadrille.experiments.compare.problem import problem_label
from quadrille.experiments.compare.record_folders import FolderComparison
from quadrille.experiments.output.tables import UNKNOWN, Row, duration, percent, table

PASSES_BEFORE, PASSES_SHOWN = 8, 32
"""Number of passes shown before the first difference, and in all."""
COLUMNS = ("", "predicted", "measured", "error", "drift removed", "spread")


def comparison_tables(compared: Comparison) -> list[Group]:
    """The tables of one comparison: errors in total, by kind and by op; causes of the difference; noise and drift."""
    waiting = [kind.waiting_seconds for kind in compared.kinds]
    waiting_totals = (sum(both.predicted for both in waiting), sum(both.measured for both in waiting))
    kinds = [("kind", *_times_row(_kind_name(kind), kind.seconds)) for kind in compared.kinds]
    kinds.append(("", "waiting", *map(duration, waiting_totals), UNKNOWN, UNKNOWN, UNKNOWN))
    ops = [("op", *_times_row(_op_name(op), op.seconds)) for op in compared.ops]
    total = [("total", *_times_row("", compared.seconds))]
    return [
        table(problem_label(compared.problem), ("", *COLUMNS), total, kinds, ops, names=2),
        _attribution_table(compared),
        _noise_table(compared),
        *([_pass_order_table(compared)] if compared.pass_orders else []),
    ]


def cases_tables(compared: FolderComparison) -> list[Group]:
    """The tables of two folders: a line for each pair of records, and the errors over all pairs."""
    rows = [_times_row(problem_label(comparison.problem), comparison.seconds) for comparison in compared.comparisons]
    summary = compared.summary
    errors = [("raw", *map(unsigned_percent, (summary.median, summary.p90, summary.worst)))]
    if summary.drift_removed is not None:
        removed = summary.drift_removed
        errors.append(("drift removed", *map(unsigned_percent, (removed.median, removed.p90, removed.worst))))
    return [
        table(f"{summary.cases} case{'s' if summary.cases > 1 else ''}", COLUMNS, rows),
        table("Size of the error over all cases", ("", "median", "90th percentile", "worst"), errors),
    ]


def unsigned_percent(fraction: float | None) -> str:
    """A fraction as percent, without its sign.

    >>> unsigned_percent(0.0416)
    '4.2 %'
    """
    return percent(fraction, signed=False)


def _kind_name(kind: KindComparison) -> str:
    return f"{kind.kind} ({kind.ops} ops)" if kind.ops > 1 else kind.kind


def _op_name(op: OpComparison) -> str:
    """The name of an op, with a star if its prediction is extrapolated beyond the calibration."""
    return f"{op.name} *" if op.extrapolated else op.name


def _times_row(name: str, times: Times) -> Row:
    return (
        name,
        duration(times.predicted),
        duration(times.measured),
        percent(times.relative_error),
        percent(times.relative_error_drift_removed),
        unsigned_percent(times.spread),
    )


def _pass_order_table(compared: Comparison) -> Group:
    """The order of forward (F) and backward (B) passes on each stage, from a few passes before the first difference."""
    rows = []
    for stage in compared.pass_orders:
        begin = max(0, stage.parts_at - PASSES_BEFORE)
        shown = slice(begin, begin + PASSES_SHOWN)
        orders = (f"{'…' if begin else ''}{order[shown]}" for order in (stage.predicted, stage.measured))
        rows.append((f"stage {stage.stage}", *orders, f"pass {stage.parts_at}" if stage.parts_at else "nowhere"))
    return table("Order of passes", ("", "predicted", "measured", "first difference"), rows)


def _attribution_table(compared: Comparison) -> Group:
    causes = compared.attribution_seconds
    measured = compared.seconds.measured
    rows = [(cause, duration(part), percent(part / measured)) for cause, part in causes.by_cause().items()]
    total = [("total", duration(causes.total), percent(causes.total / measured))]
    title = "Predicted less measured, by cause"
    return table(title, ("", "difference", "of measured"), rows, total)


def _noise_table(compared: Comparison) -> Group:
    noise, factors = compared.noise, compared.drift
    factor_names = ["gemm", "memory", *(["messages"] if factors.messages != factors.memory else []), "total"]
    factor_of = {name: getattr(factors, name) for name in factor_names}
    drifts = ", ".join(f"{name} {_drift(factor)}" for name, factor in factor_of.items() if factor is not None)
    rows = [
        ("measured", _range(noise.median_seconds, noise.low_seconds, noise.high_seconds, noise.repeats)),
        ("prediction interval", _interval(noise)),
        ("error within the noise", _yes_or_no(noise.within_noise)),
        ("  drift removed", _yes_or_no(noise.within_noise_drift_removed)),
        ("drift since calibration", drifts or "not known"),
    ]
    return table("Noise and drift", ("", ""), rows, names=2)


def _range(middle: float, low: float, high: float, repeats: int) -> str:
    if repeats == 1:
        return f"{duration(middle)}, a single repeat"
    return f"{duration(middle)}, {duration(low)} to {duration(high)} (5 to 95 % of {repeats} repeats)"


def _interval(noise: Noise) -> str:
    if not noise.interval_known:
        return "unknown, counted as a miss"
    low, high = duration(noise.predicted_low_seconds), duration(noise.predicted_high_seconds)
    return f"{low} to {high}, {'holds' if noise.interval_holds_measurement else 'does not hold'} the measurement"


def _drift(factor: float) -> str:
    """A drift factor as text: the change in percent, or the factor itself if the machine was busy.

    >>> _drift(1.04), _drift(18.86), _drift(0.25)
    ('+4.0 %', '18.9 times as long', '0.25 times as long')
    """
    return percent(factor - 1) if 1 / BUSY_FACTOR < factor < BUSY_FACTOR else f"{factor:.3g} times as long"


def _yes_or_no(answer: bool | None) -> str:
    return "not known" if answer is None else "yes" if answer else "no"
