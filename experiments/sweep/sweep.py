"""A sweep: one answer at every one of many points, as a table, JSON, CSV and a figure.

A point that cannot be is a row with the reason.  Points are answered one after the other, or on
several processes.  Where a sweep ends early (Ctrl-C, a fault of ours) the CSV
and the JSON that were asked for are written first, each whole: they have a row
for every point, and those that were not reached say so.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import files
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.progress import StepCount, progress_line
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.sweep.outcomes import Sweep, SweepAnswer, rows_of
from quadrille.experiments.sweep.points import SweepPoint
from quadrille.experiments.sweep.report import reason_lines, sweep_table, write_files
from quadrille.experiments.sweep.varied import Varied
from quadrille.runtime.host.console import remark_all

Point = TypeVar("Point")
NOT_REACHED = SweepAnswer(reason="not reached: the sweep was interrupted")
MOST_REMARKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all points of a sweep have in common, for its report.

    Parameters
    ----------
    flags : the words of the base point, by flag
    varied : the keys that differ between points, with their values
    best_grid : whether the best grid is looked for at every point
    command : the words of the command line, for provenance
    """

    flags: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    varied: Sequence[Varied] = ()
    best_grid: bool = False
    command: Sequence[str] = ()


def sweep(
    points: Sequence[tuple[dict[str, str], Point]],
    common: Common,
    destinations: Destinations | None = None,
    *,
    jobs: int = 1,
    question: Callable[[Point], SweepAnswer],
) -> Sweep:
    """Asks the question at every point, prints the table, and writes what is asked for.

    Parameters
    ----------
    points : the value of each key at every point, and what is asked there
    destinations : files of JSON, CSV and figure, or `-` for stdout, and then no table
    jobs : processes that share the points
    question : gives the answer at a point, such as `predicted_at`

    Raises
    ------
    InputError : no point can be; a file that cannot be written
    """
    to = destinations or Destinations()
    answers = [NOT_REACHED] * len(points)
    try:
        asked = [point for _, point in points]
        for place, answer in with_progress(answered(asked, question, jobs), len(points), quiet=to.quiet):
            answers[place] = answer
    except BaseException:
        if any(answer.seconds is not None for answer in answers):
            write_files(_swept(points, common, answers), to.json, to.csv)
        raise
    swept = _swept(points, common, answers)
    if swept.baseline is None:
        raise InputError(f"none of the {len(points)} points can be; the first: {answers[0].reason}")
    write_files(swept, to.json, to.csv)
    if to.plot:
        from quadrille.experiments.sweep.figure import draw

        draw(swept, common.varied, to.plot)
    if files.STDOUT not in (to.json, to.csv):
        print_tables(sweep_table(swept))
        for line in reason_lines(swept):
            print(line)
    remark_all(_remarks(answers, swept))
    return swept


def answered(
    asked: Sequence[Point], question: Callable[[Point], SweepAnswer], jobs: int = 1
) -> Iterator[tuple[int, SweepAnswer]]:
    """Place and answer of every point, as they are found.

    Raises
    ------
    RunError : a process ended before its point was answered
    """
    if jobs == 1 or len(asked) == 1:
        yield from enumerate(map(question, asked))
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children

    others = set(active_children())
    pool = ProcessPoolExecutor(min(jobs, len(asked)), initializer=_ignore_interrupts)
    try:
        places = {pool.submit(question, point): place for place, point in enumerate(asked)}
        for future in as_completed(places):
            yield places[future], future.result()
    except BrokenProcessPool:
        raise RunError("a process of --jobs ended before its point was done; fewer need less memory") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - others:
            process.terminate()


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the first one ends the others."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def with_progress(
    answers: Iterable[tuple[int, SweepAnswer]], count: int, *, quiet: bool
) -> Iterator[tuple[int, SweepAnswer]]:
    """The same places and answers; their number is shown as progress, and how many points cannot be.

    Parameters
    ----------
    count : number of all points
    """
    refused = 0
    tally = StepCount("answered", "points", count, note=lambda: f", {refused} of them cannot be" if refused else "")
    with progress_line(tally.words, shown=not quiet):
        for place, answer in answers:
            tally.done += 1
            refused += answer.reason is not None
            yield place, answer


def swept(points: Sequence[tuple[dict[str, str], SweepPoint]], *, jobs: int = 1) -> Sweep:
    """The prediction at every point; nothing is printed.

    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.experiments.sweep.points import OneGrid
    >>> from quadrille.experiments.workloads.matmul import MatmulExperiment
    >>> from quadrille.topologies.find_machine import find_machine
    >>> machine, grids = find_machine("perlmutter", gpus=4), {"z": Grid(z=4), "x": Grid(x=4)}
    >>> experiments = {axis: MatmulExperiment(Matmul(64, 64, 64), grid) for axis, grid in grids.items()}
    >>> points = [({"axis": axis}, OneGrid(experiment, machine)) for axis, experiment in experiments.items()]
    >>> [row["axis"] for row in swept(points).rows()]
    ['z', 'x']

    Parameters
    ----------
    points : the value of each key at every point, and what is predicted there
    jobs : processes that share the points
    """
    from quadrille.experiments.sweep.answers import predicted_at

    answers = [NOT_REACHED] * len(points)
    for place, answer in answered([point for _, point in points], predicted_at, jobs):
        answers[place] = answer
    keys = list(dict.fromkeys(key for labels, _ in points for key in labels))
    values = {key: tuple(dict.fromkeys(labels[key] for labels, _ in points if key in labels)) for key in keys}
    return _swept(points, Common(varied=[Varied(key, values[key]) for key in keys]), answers)


def _swept(points: Sequence[tuple[dict[str, str], Point]], common: Common, answers: Sequence[SweepAnswer]) -> Sweep:
    rows, baseline = rows_of([(labels, answer) for (labels, _), answer in zip(points, answers, strict=True)])
    return Sweep(
        flags={flag: value for flag, value in common.flags.items() if value},
        varied={key.key: key.values for key in common.varied},
        best_grid=common.best_grid,
        points=rows,
        baseline=baseline,
        provenance=provenance(common.command),
    )


def _remarks(answers: Sequence[SweepAnswer], sweep: Sweep) -> Iterator[str]:
    """What several points have in common, once."""
    if sweep.baseline:
        yield "the first point cannot be; speed-ups compare with the first one that can"
    counts = Counter(said for answer in answers for said in answer.remarks)
    for said, count in counts.most_common(MOST_REMARKS):
        yield said + ("" if count == len(answers) else f" ({count} of {len(answers)} points)")
    if len(counts) > MOST_REMARKS:
        yield f"{len(counts) - MOST_REMARKS} more remarks: --json FILE has them all"
