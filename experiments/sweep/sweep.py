"""`quadrille sweep`: one prediction at every combination of the values of some flags.

All that can be refused is refused before the first point runs; a point that
cannot be is a row with the reason.  Points run one after the other, or on
several processes.  Where a sweep ends early (Ctrl-C, a fault of ours) the CSV
and the JSON that were asked for are written first, each whole: they have a row
for every point, and those that were not reached say so.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import files
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.sweep.answers import Question, predicted_matmul
from quadrille.experiments.sweep.checks import check
from quadrille.experiments.sweep.collectives import predicted_collective
from quadrille.experiments.sweep.figure import draw
from quadrille.experiments.sweep.outcomes import Sweep, SweepAnswer, rows_of
from quadrille.experiments.sweep.points import KIND, Asked, Varied, parse_varied, points
from quadrille.experiments.sweep.report import reason_lines, sweep_table, write_files
from quadrille.experiments.words.experiment import own_flags
from quadrille.experiments.words.runs import files_read
from quadrille.runtime.host.console import remark, remark_all

NOT_REACHED = SweepAnswer(reason="not reached: the sweep was interrupted")
QUIET_SECONDS = 5.0
"""Between two lines of progress."""
MOST_REMARKS = 8


def sweep(
    base: Asked,
    vary: Sequence[str],
    *,
    json: str = "",
    csv: str = "",
    plot: str = "",
    jobs: int = 1,
    question: Question | None = None,
    command: Sequence[str] = (),
) -> Sweep:
    """Asks the question at every point, prints the table, and writes what is asked for.

    Parameters
    ----------
    base : what all points have in common
    vary : each `KEY=VALUE,…`, as `quadrille.experiments.sweep.points` says
    json, csv : files, or `-` for stdout, and then no table
    plot : a file for the figure (png, svg, pdf)
    jobs : processes that share the points
    question : what is asked at each; by default for the prediction of the multiplication or collective
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : what can never be, at any point; a file that cannot be written
    """
    varied = parse_varied(vary, base.keys)
    Destinations(json=json, csv=csv, plot=plot).check(_files_read(base, varied))
    check(base, varied)
    asked = list(points(base, varied))
    answers = [NOT_REACHED] * len(asked)
    question = question or (predicted_matmul if base.collective is None else predicted_collective)
    try:
        for place, answer in with_progress(answered([one for _, one in asked], question, jobs), len(asked)):
            answers[place] = answer
    except BaseException:
        if any(answer.seconds is not None for answer in answers):
            write_files(_found(base, varied, asked, answers, command), json, csv)
        raise
    found = _found(base, varied, asked, answers, command)
    if found.baseline is None:
        raise InputError(f"none of the {len(asked)} points can be; the first: {answers[0].reason}")
    write_files(found, json, csv)
    if plot:
        draw(found, varied, plot)
    if files.STDOUT not in (json, csv):
        print_tables(sweep_table(found))
        for line in reason_lines(found):
            print(line)
    remark_all(_remarks(answers, found))
    return found


def _files_read(base: Asked, varied: Sequence[Varied]) -> dict[str, str]:
    """The files that points read, by the flag or the value that names them."""
    read = _read_at(base)
    for one in varied:
        for value in one.values:
            at_value = _read_at(base.given(one.key, value))
            read |= {f"--vary {one.key}={value}": path for path in at_value.values() if path == value}
    return read


def _read_at(asked: Asked) -> dict[str, str]:
    return asked.on.files | files_read(asked.collective or asked.flags)


def answered(asked: Sequence[Asked], question: Question, jobs: int = 1) -> Iterator[tuple[int, SweepAnswer]]:
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
        places = {pool.submit(question, one): place for place, one in enumerate(asked)}
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


def with_progress(found: Iterable[tuple[int, SweepAnswer]], count: int) -> Iterator[tuple[int, SweepAnswer]]:
    """The same, with a line on stderr from time to time."""
    said, without = time.monotonic(), 0
    for done, (place, answer) in enumerate(found, 1):
        yield place, answer
        without += answer.reason is not None
        if done < count and time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            refused = f", {without} of them cannot be" if without else ""
            remark(f"{done} of {count} points{refused}")


def _found(
    base: Asked,
    varied: Sequence[Varied],
    asked: Sequence[tuple[dict[str, str], Asked]],
    answers: Sequence[SweepAnswer],
    command: Sequence[str],
) -> Sweep:
    rows, baseline = rows_of([(point, answer) for (point, _), answer in zip(asked, answers, strict=True)])
    flags = {"gpus": base.gpus, **_typed(base), **asdict(base.on)}
    return Sweep(
        flags={flag: value for flag, value in flags.items() if value},
        varied={one.key: one.values for one in varied},
        best_grid=base.best_grid,
        rows=rows,
        baseline=baseline,
        provenance=provenance(command),
    )


def _typed(base: Asked) -> dict[str, str]:
    """The flags of the multiplication, the training steps or the collective, by their names on the command line."""
    if base.collective is None:
        return own_flags(base.flags)
    flags = asdict(base.collective)
    return {KIND: flags.pop("kind"), **{name: value for name, value in flags.items() if name != "gpus"}}


def _remarks(answers: Sequence[SweepAnswer], found: Sweep) -> Iterator[str]:
    """What several points have in common, once."""
    if found.baseline:
        yield "the first point cannot be; speed-ups compare with the first one that can"
    counts = Counter(said for answer in answers for said in answer.remarks)
    for said, count in counts.most_common(MOST_REMARKS):
        yield said + ("" if count == len(answers) else f" ({count} of {len(answers)} points)")
    if len(counts) > MOST_REMARKS:
        yield f"{len(counts) - MOST_REMARKS} more remarks are in the JSON"
