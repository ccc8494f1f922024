"""`quadrille study published-training`: the error of predicted training steps against published training runs.

Each published row gets a prediction and a role: `judged`, `calibration` (the row sets a parameter of its machine by the
rule in `machine_calibration.py`), or `skipped` with the reason.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.training.flops import full_square_flops
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.work_sharing import open_work_sharing
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.simulator.machine.network import network_of
from quadrille.studies.judged_rows import Role
from quadrille.studies.known_answers import KnownAnswers
from quadrille.studies.published_collectives import collective_rows
from quadrille.studies.published_collectives.machine_calibration import machine_of
from quadrille.studies.published_training.claims import claims_named, predicted_claims
from quadrille.studies.published_training.machine_calibration import (
    TrainingCalibration,
    calibrate,
    question_of,
    slow_networks,
)
from quadrille.studies.published_training.published_runs import PublishedRun, run_or_reason
from quadrille.studies.published_training.published_steps import (
    STEPS,
    PublishedStep,
    peak_bytes,
    published_step,
    step_of,
)
from quadrille.studies.published_training.report import (
    JudgedTraining,
    TrainingAnswer,
    calibration_record,
    show,
    summarise,
)
from quadrille.studies.published_training.single_row import row_numbered, show_list, show_row
from quadrille.studies.published_training.training_rows import Metric, TrainingRow, read_rows
from quadrille.studies.published_training.weak_scaling import scaling_points
from quadrille.topologies.find_machine import find_machine

ROWS = Path(collective_rows.__file__).parent / "published_results.csv"
RESULTS = Path(__file__).parent / "results"
SCHEMA = "quadrille/published-training/1"
IN_MORE_DETAIL = "the same run as another row that is printed in more detail"
PREFERRED: tuple[Metric, ...] = tuple(metric for metric in get_args(Metric) if metric != "memory")
"""Metrics that state the same measurement of a run; the first that is printed is judged."""
FLOPS: Mapping[Metric, Literal["model", "hardware"]] = {
    "flops": "hardware",
    "total_flops": "hardware",
    "share": "hardware",
    "model_share": "model",
}
"""The operations that each rate of operations counts: of the model, or of the hardware (recomputation included)."""


def main() -> None:
    """Run the study on the project's own rows and on the claims, and write the answers to `results/`."""
    RESULTS.mkdir(exist_ok=True)
    command = ["quadrille", "study", "published-training"]
    published_training(json=str(RESULTS / "rows.json"), figure=str(RESULTS / "errors.png"), command=command)
    published_training(claims=True, json=str(RESULTS / "claims.json"), command=[*command, "--claims"])
    published_training(
        weak_scaling=True,
        json=str(RESULTS / "weak_scaling.json"),
        figure=str(RESULTS / "weak_scaling.png"),
        command=[*command, "--weak-scaling"],
    )


def published_training(
    rows: str = "",
    *,
    claims: bool = False,
    only: str = "",
    weak_scaling: bool = False,
    json: str = "",
    figure: str = "",
    jobs: int = 1,
    store: str = "",
    quiet: bool = False,
    command: Sequence[str] = (),
) -> TrainingAnswer:
    """Predict every row, judge the rows that can be judged, and print and write the results.

    The claims and the weak scaling take minutes, and are predicted instead of the project's own rows.

    Parameters
    ----------
    rows : CSV file of rows, by default the project's own; calibration always uses the project's own rows
    claims : whether to predict the papers' claims about their schemes
    only : part of the names of the claims to predict; empty for all claims
    weak_scaling : whether to predict the weak scaling of AxoNN
    json : file of the answer, `-` for stdout; empty: not written
    figure : file of the figure of the rows' errors, or of the weak scaling; empty: not written
    jobs : number of processes that share the rows
    store : path of the store of predicted steps; empty for none
    quiet : whether progress is not shown
    command : command line, for the provenance
    """
    if figure and claims and not weak_scaling:
        raise InputError(f"--plot {figure}: claims have no figure; rows and --weak-scaling have one")
    chosen = claims_named(only) if claims else []
    if only and not claims:
        raise InputError(f"--only {only}: names claims; --claims is needed")
    Destinations(json=json, plot=figure).check({"--rows": rows or str(ROWS)} | ({"--store": store} if store else {}))
    published = read_rows(rows or ROWS) if rows or not (claims or weak_scaling) else []
    if (store or jobs > 1) and not published:
        raise InputError(f"{'--store' if store else '--jobs'}: is for rows; --claims and --weak-scaling go without it")
    with open_work_sharing(quiet=quiet, jobs=jobs, store=store, command=command) as work_sharing:
        judged, sites = _judged_rows(published, KnownAnswers(step_of, STEPS, work_sharing))
        if work_sharing.store is not None:
            remark(work_sharing.store.use)
    answer = TrainingAnswer(
        rows=judged,
        summary=summarise(judged),
        calibration=[calibration_record(site) for site in sites.values() if site.rows],
        claims=list(predicted_claims(claims=chosen)),
        weak_scaling=list(scaling_points()) if weak_scaling else [],
        provenance=provenance(command),
    )
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    if figure:
        from quadrille.experiments.output.pictures import write_figure
        from quadrille.studies.published_training.figure import answer_figure

        write_figure(answer_figure(answer), figure)
    return answer


def _judged_rows(
    published: Sequence[TrainingRow], predictions: KnownAnswers[PublishedStep, TrainingStep]
) -> tuple[list[JudgedTraining], dict[str, TrainingCalibration]]:
    """The judged rows, and the calibration of their machines by name."""
    runs, again = runs_of(published), repeated_rows(published)
    chosen = {row.id: again.get(row.id) or runs[row.id] for row in published}
    sites = calibrate_machines(read_rows(ROWS), _machines(runs.values()), predictions) if published else {}
    steps = [
        published_step(run, _site_of(run, sites).between)
        for row in published
        if isinstance(run := chosen[row.id], PublishedRun) and row.metric is not None and row.metric[0] != "memory"
    ]
    with predictions.work_sharing.progress("predicted", "rows", len(steps)) as step_count:
        predictions.find(steps, step_count)
    judged = [judge(row, chosen[row.id], _preferred_duplicate(row, published), sites, predictions) for row in published]
    return judged, sites


def _site_of(run: PublishedRun, sites: Mapping[str, TrainingCalibration]) -> TrainingCalibration:
    """The calibration of a run's machine; a machine without one has the default values."""
    return sites.get(run.machine) or TrainingCalibration(run.machine)


def published_row(
    number: str, rows: str = "", *, explain: bool = False, json: str = "", command: Sequence[str] = ()
) -> JudgedTraining:
    """Predict one published row; prints it with its command line, and writes it as JSON.

    Parameters
    ----------
    number : identifier of the row
    rows : CSV file of rows, by default the project's own
    explain : whether to print where the time of the step goes
    json : file of the answer, `-` for stdout; empty: not written
    command : command line, for the provenance

    Raises
    ------
    InputError : no row has the identifier
    """
    Destinations(json=json).check({"--rows": rows or str(ROWS)})
    published = read_rows(rows or ROWS)
    row = row_numbered(published, number)
    run = repeated_rows(published).get(row.id) or runs_of(published)[row.id]
    machines = frozenset({run.machine}) if isinstance(run, PublishedRun) else frozenset[str]()
    sites = calibrate_machines(read_rows(ROWS), machines)
    judged = judge(row, run, _preferred_duplicate(row, published), sites)
    step = None
    if isinstance(run, PublishedRun):
        step = published_step(run, _site_of(run, sites).between)
    answer = TrainingAnswer(
        rows=[judged],
        summary=summarise([judged]),
        calibration=[calibration_record(site) for site in sites.values() if site.rows],
        claims=[],
        weak_scaling=[],
        provenance=provenance(command),
    )
    write_or_show(answer, json, SCHEMA, lambda: show_row(judged, step, explain=explain))
    return judged


def list_rows(rows: str = "") -> None:
    """Print every row with its role before calibration: to be judged, or skipped with the reason.

    Parameters
    ----------
    rows : CSV file of rows, by default the project's own
    """
    published = read_rows(rows or ROWS)
    runs, again = runs_of(published), repeated_rows(published)

    def listed(row: TrainingRow) -> JudgedTraining:
        """The row without a prediction."""
        run = again.get(row.id) or runs[row.id]
        if isinstance(run, str):
            return _entry(row, None, None, "skipped", run)
        repeats = _preferred_duplicate(row, published) is not None
        return _entry(row, run, None, *(("skipped", IN_MORE_DETAIL) if repeats else ("judged", "")))

    show_list([listed(row) for row in published])


def runs_of(rows: Sequence[TrainingRow]) -> dict[str, PublishedRun | str]:
    """The run of each row by its identifier, or the reason why it is not modelled."""
    same = _rows_by_run(rows)
    return {row.id: run_or_reason(row, same[row.run]) for row in rows}


def repeated_rows(rows: Sequence[TrainingRow]) -> dict[str, str]:
    """The rows that repeat the number of an earlier row, by identifier, each with the reason for skipping it."""
    first: dict[tuple[object, ...], str] = {}
    repeated: dict[str, str] = {}
    for row in rows:
        number = (row.run, row.columns["metric"], row.columns["unit"], row.columns["value"])
        if first.setdefault(number, row.id) != row.id:
            repeated[row.id] = f"the same number of the same run as row {first[number]}"
    return repeated


def calibrate_machines(
    own: Sequence[TrainingRow],
    machines: Collection[str],
    predicted: Callable[[PublishedStep], TrainingStep] = step_of,
) -> dict[str, TrainingCalibration]:
    """The calibration of machines, by the name of the machine.

    Parameters
    ----------
    own : all rows of the project's own file
    machines : names of the machines
    predicted : function that returns the predicted step
    """
    runs = runs_of(own)
    by_machine: dict[str, list[tuple[TrainingRow, PublishedRun]]] = defaultdict(list)
    for row in own:
        run = runs[row.id]
        if isinstance(run, PublishedRun) and run.machine in machines:
            by_machine[run.machine].append((row, run))
    slow = slow_networks(collective_rows.read_rows(ROWS), _all_reduce_seconds)
    return {name: calibrate(name, runs_of_machine, slow, predicted) for name, runs_of_machine in by_machine.items()}


def _machines(runs: Iterable[PublishedRun | str]) -> frozenset[str]:
    """The names of the machines of the modelled runs."""
    return frozenset(run.machine for run in runs if isinstance(run, PublishedRun))


def _all_reduce_seconds(row: collective_rows.CollectiveRow) -> float:
    """The predicted time of a published all-reduce [s]."""
    name = machine_of(row)
    assert name is not None, row.id
    machine = find_machine(name, (), gpus=row.gpus)
    return predict_collective(question_of(row), machine, net=network_of(machine)).seconds


def _rows_by_run(rows: Sequence[TrainingRow]) -> dict[tuple[str, ...], list[TrainingRow]]:
    """The rows of each run."""
    by_run: dict[tuple[str, ...], list[TrainingRow]] = defaultdict(list)
    for row in rows:
        by_run[row.run].append(row)
    return by_run


def _preferred_duplicate(row: TrainingRow, rows: Sequence[TrainingRow]) -> TrainingRow | None:
    """The preferred row that states the same measurement of the same run; None if there is none.

    A table that prints a run more than once has measured it more than once: the order of the rows
    distinguishes rows of the same metric.
    """
    if row.metric is None or row.metric[0] not in PREFERRED:
        return None
    same = [other_row for other_row in rows if other_row.run == row.run and other_row.metric is not None]
    place = [other_row.id for other_row in same if other_row.columns["metric"] == row.columns["metric"]].index(row.id)
    for metric in PREFERRED[: PREFERRED.index(row.metric[0])]:
        others = [other_row for other_row in same if other_row.metric is not None and other_row.metric[0] == metric]
        if place < len(others):
            return others[place]
    return None


def judge(
    row: TrainingRow,
    run: PublishedRun | str,
    duplicate: TrainingRow | None,
    sites: Mapping[str, TrainingCalibration],
    predicted_step: Callable[[PublishedStep], TrainingStep] = step_of,
) -> JudgedTraining:
    """The row with its prediction and role.

    Parameters
    ----------
    row : published row
    run : run of the row, or the reason why it is not modelled
    duplicate : row of the same measurement that is judged instead; None if there is none
    sites : calibration of each machine by its name
    predicted_step : function that returns the predicted step
    """
    if isinstance(run, str):
        return _entry(row, None, None, "skipped", run)
    site = _site_of(run, sites)
    predicted = predict(row, run, site, predicted_step)
    if row.id in site.rows.values():
        parameter = next(name for name, used in site.rows.items() if used == row.id)
        return _entry(row, run, predicted, "calibration", f"sets {parameter}")
    if duplicate is not None:
        role: Role = "calibration" if duplicate.id in site.rows.values() else "skipped"
        return _entry(row, run, predicted, role, IN_MORE_DETAIL)
    return _entry(row, run, predicted, "judged", "")


def predict(
    row: TrainingRow,
    run: PublishedRun,
    site: TrainingCalibration,
    predicted_step: Callable[[PublishedStep], TrainingStep] = step_of,
) -> float:
    """The predicted value of a row, in the row's unit.

    Parameters
    ----------
    row : row with a predicted metric
    run : run of the row
    site : calibration of the run's machine
    predicted_step : function that returns the predicted step
    """
    assert row.metric is not None
    metric, unit = row.metric
    if metric == "memory":
        return (peak_bytes(run) + site.rest_bytes) / unit
    seconds = predicted_step(published_step(run, site.between)).seconds
    tokens = run.batch * run.shape.sequence
    counted = full_square_flops(run.shape, run.batch, run.recompute)
    flops = counted.model if metric == "model_share" else counted.hardware
    match metric:
        case "seconds":
            value = seconds
        case "sequences":
            value = run.batch / seconds
        case "tokens":
            value = tokens / seconds
        case "tokens_per_gpu":
            value = tokens / seconds / run.gpus
        case "flops":
            value = flops / seconds / run.gpus
        case "total_flops":
            value = flops / seconds
        case "share" | "model_share":
            value = flops / seconds / run.gpus / run.gpu.peak_flops_per_second[run.dtype]
    return value / unit


def _entry(
    row: TrainingRow, run: PublishedRun | None, predicted: float | None, role: Role, reason: str
) -> JudgedTraining:
    """The row of the answer."""
    flops = FLOPS.get(row.metric[0]) if row.metric is not None and run is not None else None
    return JudgedTraining(
        id=row.id,
        paper=row.columns.get("paper") or row.columns["source"],
        source=row.columns["source"],
        machine=row.columns["machine"],
        model=run.machine if run is not None else None,
        workload=_workload(row),
        gpus=row.gpus,
        metric=row.columns["metric"],
        unit=row.columns["unit"],
        flops=flops,
        published=row.value,
        predicted=predicted,
        relative_error=predicted / row.value - 1 if predicted is not None else None,
        role=role,
        reason=reason,
    )


def _workload(row: TrainingRow) -> str:
    """The model, parallel groups and batch of a row as text."""
    values = {name: row.columns.get(name, "") for name in ("model", "tp", "pp", "dp", "micro_batch", "global_batch")}
    return f"{values.pop('model')} " + ", ".join(f"{name}={value}" for name, value in values.items() if value)


if __name__ == "__main__":
    run_as_program(main)
