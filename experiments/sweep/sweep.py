"""`quadrille sweep`: an answer at each of many points, as a table, JSON, CSV and a figure.

An impossible point is a row with the reason.  Points are tasks (`quadrille.experiments.tasks`):
this process or several answer them, and a store keeps their answers for the next sweep.  If a
sweep ends early (Ctrl-C, TERM, HUP, or an error), the CSV and the JSON are written first: they
have a row for every point, and points that were not reached have a reason that says so.  The
files are also written while the sweep runs (`SavedAnswers`).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from quadrille.algorithms.errors import InputError, Interruption, QuadrilleError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.progress import StepCount, progress_line
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.sweep.sweep_points import SweepPoint
from quadrille.experiments.sweep.sweep_report import reason_lines, sweep_table, write_files
from quadrille.experiments.sweep.sweep_result import (
    NOT_REACHED,
    SearchResult,
    Sweep,
    SweepAnswer,
    point_text,
    sweep_rows,
)
from quadrille.experiments.sweep.varied_key import VariedKey
from quadrille.experiments.tasks.answer_tasks import StoredTasks, answer_group, answer_points, answer_tasks
from quadrille.experiments.tasks.kept_words import kept_words
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.runtime.host.console import remark, remark_all
from quadrille.runtime.launching.supervise import signals_as_interrupts

if TYPE_CHECKING:
    from quadrille.experiments.sweep.point_search import SearchOptions

Point = TypeVar("Point")
MOST_BEST = 12
"""Largest number of best points that a search names."""
MOST_STORE_QUERIES = 1 << 15
"""Most points of a search for which a store is queried before the search begins."""
MOST_REMARKS = 8
SAVE_SECONDS = 1.0
"""Shortest time between two writes of the answers so far [s]."""
SAVE_SHARE = 0.05
"""Largest share of the time that writing the answers so far takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDescription:
    """The properties of a sweep that all its points share, for its report.

    Parameters
    ----------
    flags : flags that all points share, as typed
    varied : keys that differ between points, with their values
    best_grid : whether every point has its best grid
    inputs : SHA-256 of each file that points read, by flag
    command : words of the command line, for provenance
    """

    flags: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    varied: Sequence[VariedKey] = ()
    best_grid: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()


def sweep(
    points: Sequence[tuple[dict[str, str], Point]],
    description: SweepDescription,
    destinations: Destinations | None = None,
    *,
    options: TaskOptions | None = None,
    question: Callable[[Point], SweepAnswer],
    arguments: Callable[[Point], object] = lambda point: point,
    label: Callable[[Point], str] = str,
) -> Sweep:
    """Answers every point, and prints the table or writes the requested files.

    Parameters
    ----------
    points : values of the varied keys at every point, and the point itself
    description : properties that all points share
    destinations : files of JSON, CSV and figure; with `-` for stdout no table is printed
    options : workers of the points, and the store of their answers
    question : function that returns the answer at a point, such as `predict_point`
    arguments : function that returns the values which decide the answer at a point, for a store
    label : function that returns a point as text, for people who read a store

    Raises
    ------
    InputError : no point is possible, or a file or the store cannot be written
    RunError : a worker ended early, or the store cannot be written any more
    Interruption : the sweep was interrupted; the message says how many answers are kept
    """
    to, options = destinations or Destinations(), options or TaskOptions()
    answers = [NOT_REACHED] * len(points)

    def write_answers(files: Destinations) -> None:
        if any(answer.seconds is not None for answer in answers):
            write_files(_sweep_result(points, description, answers), files.json, files.csv)

    saved = SavedAnswers(to, write_answers)
    with options.open_store() as store:
        stored = _stored_points(store, arguments, label)
        with _answers_kept(lambda: answers, write_answers, to, options, description.command, len(points)):
            put_answers(
                answers,
                (point for _, point in points),
                question,
                options,
                stored=stored,
                quiet=to.quiet,
                after_answer=saved.write_if_due,
            )
    if stored is not None:
        remark(f"{stored.kept} of {len(points)} points were in {options.store}")
    result = _sweep_result(points, description, answers)
    if result.baseline is None:
        raise InputError(f"none of the {len(points)} points can be; the first: {answers[0].reason}")
    _present(result, answers, description, to)
    return result


def search_sweep(
    points: Sequence[tuple[dict[str, str], Point]],
    description: SweepDescription,
    search: "SearchOptions",
    destinations: Destinations | None = None,
    *,
    options: TaskOptions | None = None,
    question: Callable[[Point], SweepAnswer],
    arguments: Callable[[Point], object] = lambda point: point,
    label: Callable[[Point], str] = str,
) -> Sweep:
    """Answers the points that a search asks for, and prints or writes them in the order of the full product.

    The search learns first from the answers that the store has, and its best points may be of these. An interrupted
    search writes the answers so far.

    Parameters
    ----------
    search : objectives, budget and limits of the search; the other parameters are those of `sweep`

    Raises
    ------
    InputError : no point is accepted, a file or the store cannot be written, or the search is not installed
    RunError : a worker ended early, or the store cannot be written any more
    Interruption : the search was interrupted; the message says how many answers are kept
    """
    search.check()
    to, options = destinations or Destinations(), options or TaskOptions()
    searched = _SearchedPoints(points, description, search)
    with options.open_store() as store:
        stored = _stored_points(store, arguments, label)
        if stored is not None:
            searched.take_stored(stored, quiet=to.quiet)
        with _answers_kept(searched.answers.values, searched.write, to, options, description.command, searched.most):
            searched.ask(options, question, stored, quiet=to.quiet)
    answers = searched.answers
    if stored is not None:
        remark(f"{stored.kept} of {len(answers)} points were in {options.store}")
    best = searched.best()
    _present(result := searched.result(best), list(answers.values()), description, to)
    for place in best[:MOST_BEST]:
        amounts = search.words(answers[place])
        remark(f"best of {len(answers)} of {len(points)} points: {point_text(points[place][0])}: {amounts}")
    return result


@dataclass(slots=True)
class _SearchedPoints(Generic[Point]):
    """The points of a search, and the answers so far by their place in the full product.

    Parameters
    ----------
    points, description, search : as for `search_sweep`
    """

    points: Sequence[tuple[dict[str, str], Point]]
    description: SweepDescription
    search: "SearchOptions"
    answers: dict[int, SweepAnswer] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """The largest number of points that have an answer in the end."""
        return max(len(self.answers), int(min(self.search.points, len(self.points))))

    def take_stored(self, stored: StoredTasks[Point, SweepAnswer], *, quiet: bool) -> None:
        """Take the answers that the store has; of very many points none, because each takes time to look up."""
        digests = stored.digests() if len(self.points) <= MOST_STORE_QUERIES else frozenset()
        if not digests:
            return
        step_count = StepCount("looked up", "points", len(self.points))
        with progress_line(step_count.words, share=step_count.share, shown=not quiet), signals_as_interrupts():
            for place, (_, point) in enumerate(self.points):
                digest = stored.digest(point)
                answer = stored.result(digest) if digest in digests else None
                if answer is not None:
                    self.answers[place] = answer
                step_count.done += 1

    def ask(
        self,
        options: TaskOptions,
        question: Callable[[Point], SweepAnswer],
        stored: StoredTasks[Point, SweepAnswer] | None,
        *,
        quiet: bool,
    ) -> None:
        """Answer the points that the search asks for, with progress on stderr."""
        from quadrille.experiments.sweep.point_search import TOGETHER, search_points

        most = self.most
        together = len(self.points) if most == len(self.points) else TOGETHER
        workers = options.in_groups_of(together).workers(question, min(together, most))
        step_count = StepCount("answered", "points", most, most_seconds=self.search.seconds)
        step_count.kept = None if stored is None else lambda: stored.kept
        step_count.done = len(self.answers)

        def answers_at(places: Sequence[int]) -> list[SweepAnswer]:
            for number, answer in answer_group((self.points[place][1] for place in places), workers, stored):
                self.answers[places[number]] = answer
                step_count.done = len(self.answers)
            return [self.answers[place] for place in places]

        shown = progress_line(step_count.words, share=step_count.share, shown=not quiet)
        with shown, signals_as_interrupts(), closing(workers):
            search_points(self.description.varied, answers_at, self.search, dict(self.answers))

    def best(self) -> list[int]:
        """The places of the best points.

        Raises
        ------
        InputError : no point is accepted
        """
        from quadrille.experiments.sweep.point_search import best_places

        best = best_places(self.answers, self.search)
        if not best:
            raise InputError(f"none of the {len(self.answers)} points that --search asked for is accepted")
        return best

    def result(self, best: Sequence[int] = ()) -> Sweep:
        """The answers so far, in the order of the full product; speed-ups need the answers of all points.

        Parameters
        ----------
        best : places of the best points, after the search
        """
        places = sorted(self.answers)
        asked, answers = [self.points[place] for place in places], [self.answers[place] for place in places]
        result = _sweep_result(asked, self.description, answers, compared=len(places) == len(self.points))
        searched = SearchResult(
            objectives=self.search.objectives,
            combinations=len(self.points),
            best=tuple(places.index(place) for place in best),
        )
        return msgspec.structs.replace(result, search=searched)

    def write(self, files: Destinations) -> None:
        """Write the answers so far, if one of them has a time."""
        if any(answer.seconds is not None for answer in self.answers.values()):
            write_files(self.result(), files.json, files.csv)


@contextmanager
def _answers_kept(
    answers: Callable[[], Iterable[SweepAnswer]],
    write: Callable[[Destinations], None],
    to: Destinations,
    options: TaskOptions,
    command: Sequence[str],
    count: int,
) -> Iterator[None]:
    """A context that writes the answers so far if its body ends early, and says what is kept after an interruption.

    Parameters
    ----------
    answers : function that returns the answers so far, `NOT_REACHED` for points without one
    write : function that writes the answers so far to files
    count : number of points
    """
    try:
        yield
    except QuadrilleError:
        with suppress(QuadrilleError):  # the first error is the one to report
            write(to)
        raise
    except BaseException as error:
        write(to)
        if not isinstance(error, KeyboardInterrupt):
            raise
        reached = sum(answer is not NOT_REACHED for answer in answers())
        files = to.lasting_answers if any(answer.seconds is not None for answer in answers()) else []
        raise Interruption(kept_words(f"{reached} of {count} points", options.store, command, files)) from None


def _stored_points(
    store: TaskStore | None, arguments: Callable[[Point], object], label: Callable[[Point], str]
) -> StoredTasks[Point, SweepAnswer] | None:
    """The tasks of a sweep with their store; None without a store."""
    if store is None:
        return None
    return StoredTasks(store=store, function="sweep point", arguments=arguments, form=SweepAnswer, label=label)


def _present(result: Sweep, answers: Sequence[SweepAnswer], description: SweepDescription, to: Destinations) -> None:
    """Write the files of a sweep, and print its table, reasons and remarks."""
    write_files(result, to.json, to.csv)
    if to.plot:
        from quadrille.experiments.sweep.sweep_figure import draw_sweep

        draw_sweep(result, description.varied, to.plot)
    if schema_files.STDOUT not in (to.json, to.csv):
        print_tables(sweep_table(result))
        for line in reason_lines(result):
            print(line)
    remark_all(_remarks(answers, result))


class SavedAnswers:
    """The files with the answers so far of a running sweep.

    A write follows an answer if `SAVE_SECONDS` have passed since the last write, and if writing takes no more than
    `SAVE_SHARE` of the time. A write that fails is left out, because the last write of the sweep reports the reason.

    Parameters
    ----------
    destinations : files of the sweep; pipes, devices and stdout get the whole sweep at the end only
    write : function that writes the answers so far to such files
    """

    def __init__(self, destinations: Destinations, write: Callable[[Destinations], None]) -> None:
        json, csv = (
            "" if path == schema_files.STDOUT or schema_files.is_stream(path) else path
            for path in (destinations.json, destinations.csv)
        )
        self._files, self._write = replace(destinations, json=json, csv=csv), write
        self._next = time.monotonic() + SAVE_SECONDS

    def write_if_due(self) -> None:
        """Write the answers so far, unless the last write was too recent."""
        begin = time.monotonic()
        if begin < self._next or not (self._files.json or self._files.csv):
            return
        with suppress(QuadrilleError):
            self._write(self._files)
        end = time.monotonic()
        self._next = end + max(SAVE_SECONDS, (end - begin) / SAVE_SHARE)


def put_answers(
    answers: list[SweepAnswer],
    points_to_answer: Iterable[Point],
    question: Callable[[Point], SweepAnswer],
    options: TaskOptions,
    *,
    quiet: bool,
    stored: StoredTasks[Point, SweepAnswer] | None = None,
    after_answer: Callable[[], None] = lambda: None,
) -> None:
    """Put the answer of each point into its place in `answers`, with progress on stderr.

    TERM and HUP end the points as Ctrl-C does, and processes that answer points end, too.

    Parameters
    ----------
    answers : one place for each point
    points_to_answer, question, stored : as for `answer_tasks`
    options : workers of the points
    quiet : whether no progress is shown
    after_answer : function that is called after each answer
    """
    answers_in_any_order = answer_tasks(points_to_answer, options.workers(question, len(answers)), stored)
    kept = None if stored is None else lambda: stored.kept
    with signals_as_interrupts(), closing(answers_in_any_order):
        for number, answer in show_progress(answers_in_any_order, len(answers), quiet=quiet, kept=kept):
            answers[number] = answer
            after_answer()


def show_progress(
    answers: Iterable[tuple[int, SweepAnswer]], count: int, *, quiet: bool, kept: Callable[[], int] | None = None
) -> Iterator[tuple[int, SweepAnswer]]:
    """The indices and answers, unchanged; a progress line shows their number and the number of impossible points.

    Parameters
    ----------
    answers : index and answer of each point
    count : number of all points
    quiet : whether no progress is shown
    kept : function that returns the number of answers from a store; None without a store
    """
    impossible = 0
    step_count = StepCount(
        "answered",
        "points",
        count,
        note=lambda: f", {impossible} of them cannot be" if impossible else "",
        kept=kept,
    )
    with progress_line(step_count.words, share=step_count.share, shown=not quiet):
        for number, answer in answers:
            step_count.done += 1
            impossible += answer.reason is not None
            yield number, answer


def predict_points(points: Sequence[tuple[dict[str, str], SweepPoint]], *, jobs: int = 1) -> Sweep:
    """The predictions at all points of a sweep; nothing is printed.

    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.experiments.sweep.sweep_points import OneGrid
    >>> from quadrille.experiments.workloads.matmul import MatmulExperiment
    >>> from quadrille.topologies.find_machine import find_machine
    >>> machine, grids = find_machine("perlmutter", gpus=4), {"z": Grid(z=4), "x": Grid(x=4)}
    >>> experiments = {axis: MatmulExperiment(Matmul(64, 64, 64), grid) for axis, grid in grids.items()}
    >>> points = [({"axis": axis}, OneGrid(experiment, machine)) for axis, experiment in experiments.items()]
    >>> [row["axis"] for row in predict_points(points).rows()]
    ['z', 'x']

    Parameters
    ----------
    points : values of the varied keys at every point, and the point itself
    jobs : number of processes that share the points
    """
    from quadrille.experiments.sweep.point_predictions import predict_point

    answers = [NOT_REACHED] * len(points)
    for number, answer in answer_points([point for _, point in points], predict_point, jobs):
        answers[number] = answer
    keys = list(dict.fromkeys(key for labels, _ in points for key in labels))
    values = {key: tuple(dict.fromkeys(labels[key] for labels, _ in points if key in labels)) for key in keys}
    return _sweep_result(points, SweepDescription(varied=[VariedKey(key, values[key]) for key in keys]), answers)


def _sweep_result(
    points: Sequence[tuple[dict[str, str], Point]],
    description: SweepDescription,
    answers: Sequence[SweepAnswer],
    *,
    compared: bool = True,
) -> Sweep:
    """The answers with the properties that all points share.

    Parameters
    ----------
    compared : whether speed-ups compare with the first point that has an answer
    """
    labelled = [(labels, answer) for (labels, _), answer in zip(points, answers, strict=True)]
    rows, baseline = sweep_rows(labelled, compared=compared)
    return Sweep(
        flags={flag: value for flag, value in description.flags.items() if value},
        varied={key.key: key.values for key in description.varied},
        best_grid=description.best_grid,
        inputs=dict(description.inputs),
        points=rows,
        baseline=baseline,
        provenance=provenance(description.command),
    )


def _remarks(answers: Sequence[SweepAnswer], sweep: Sweep) -> Iterator[str]:
    """The remarks of all points, each remark once with the number of its points."""
    if sweep.baseline:
        yield "the first point cannot be; speed-ups compare with the first one that can"
    counts = Counter(remark for answer in answers for remark in answer.remarks)
    for text, count in counts.most_common(MOST_REMARKS):
        yield text + ("" if count == len(answers) else f" ({count} of {len(answers)} points)")
    if len(counts) > MOST_REMARKS:
        yield f"{len(counts) - MOST_REMARKS} more remarks: --json FILE has them all"
