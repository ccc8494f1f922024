"""The progress line of long work on stderr: a bar that is overwritten on a terminal, else a line each half minute.

Short work shows nothing.  A thread redraws the line, so that the line changes during a single long step too.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from math import inf

from quadrille.runtime.host.console import draw_line, erase_line, overwrites, remark


@dataclass(frozen=True, slots=True)
class Intervals:
    """The times between progress lines.

    Parameters
    ----------
    patience_seconds : time before the first line on a terminal [s]
    redraw_seconds : time between two drawings of the line on a terminal [s]
    log_seconds : time before a line, and between two lines, if stderr is no terminal [s]
    """

    patience_seconds: float = 2.0
    redraw_seconds: float = 0.5
    log_seconds: float = 30.0


DEFAULT_INTERVALS = Intervals()


@dataclass(slots=True)
class StepCount:
    """A count of finished steps and the time that is left, as the text of a progress line.

    >>> StepCount("evaluated", "layouts", total=432, done=120).words(15.0)
    'evaluated 120 of 432 layouts, 8 a second, about 39 s left'
    >>> StepCount("evaluated", "layouts", total=432).words(15.0)
    'evaluated 0 of 432 layouts'
    >>> StepCount("answered", "points", total=1000, done=910, kept=lambda: 900).words(2.0)
    'answered 910 of 1000 points, 5 a second, about 18 s left'
    >>> StepCount("answered", "points", total=1000, done=10, most_seconds=8.0).words(2.0)
    'answered 10 of at most 1000 points, 5 a second, about 6 s left'

    Parameters
    ----------
    verb, noun : participle of the work, and plural of its objects
    total : number of steps; it may fall while the work is done
    done : number of steps that are done
    note : function that returns further text, between the count and the time left
    kept : function that returns the number of steps of an earlier run, which take no time; None without one
    most_seconds : time from now on after which the work ends with the steps that are done; infinite for none [s]
    """

    verb: str
    noun: str
    total: int
    done: int = 0
    note: Callable[[], str] = field(default=str)
    kept: Callable[[], int] | None = None
    most_seconds: float = inf
    _begun: float = field(default_factory=time.monotonic, init=False)

    def words(self, elapsed: float) -> str:
        """The count, the mean rate since the start, and the time left at this rate.

        Parameters
        ----------
        elapsed : seconds since the start
        """
        done = min(self.done, self.total)
        new = done - (self.kept() if self.kept else 0)
        rate = f", {rough_rate(new / elapsed)}" if new > 0 and elapsed else ""
        seconds = min(elapsed / new * (self.total - done), max(0.0, self.most_seconds - elapsed)) if new > 0 else 0.0
        left = f", about {rough_seconds(seconds)} left" if new > 0 else ""
        total = f"at most {self.total}" if self.most_seconds < inf else f"{self.total}"
        return f"{self.verb} {done} of {total} {self.noun}{self.note()}{rate}{left}"

    def share(self) -> float:
        """The share of the steps that are done, or of the time that has passed if it is larger."""
        passed = (time.monotonic() - self._begun) / self.most_seconds
        return min(1.0, max(passed, self.done / self.total)) if self.total else 1.0


def rough_rate(rate: float) -> str:
    """A rate [1/s] as text, in the unit in which it is at least 1.

    >>> rough_rate(38.4), rough_rate(0.05), rough_rate(0.002)
    ('38 a second', '3 a minute', '7.2 an hour')
    """
    for count, unit in ((rate, "a second"), (60 * rate, "a minute")):
        if count >= 1:
            return f"{float(f'{count:.2g}'):g} {unit}"
    return f"{float(f'{3600 * rate:.2g}'):g} an hour"


def rough_seconds(seconds: float) -> str:
    """A time as text, rounded to whole seconds, whole minutes or tenths of hours.

    >>> rough_seconds(0.2), rough_seconds(39.4), rough_seconds(200), rough_seconds(9000)
    ('1 s', '39 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress_line(
    words: Callable[[float], str],
    *,
    share: Callable[[], float] | None = None,
    shown: bool = True,
    intervals: Intervals | None = None,
) -> Iterator[None]:
    """A context that shows the progress of the work inside it.

    Parameters
    ----------
    words : function that returns the line, given the seconds since the start
    share : function that returns the share of the work that is done, for the bar; None for no bar
    shown : whether the line is shown; False on ranks other than rank 0, and with `--quiet`
    intervals : times between lines; None for `DEFAULT_INTERVALS`
    """
    if not shown:
        yield
        return
    ended = threading.Event()
    drawing = threading.Thread(target=_draw, args=(words, share, ended, intervals or DEFAULT_INTERVALS), daemon=True)
    drawing.start()
    try:
        yield
    finally:
        ended.set()
        drawing.join()


def bar(share: float, width: int = 20) -> str:
    """A bar without colours; `width` columns are the whole work.

    >>> bar(0.5, width=8)
    '━━━━    '
    """
    from rich.console import Console
    from rich.progress_bar import ProgressBar

    console = Console(file=StringIO(), width=width, no_color=True)
    console.print(ProgressBar(total=1.0, completed=share, width=width), end="")
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().ljust(width)


def _draw(
    words: Callable[[float], str], share: Callable[[], float] | None, ended: threading.Event, intervals: Intervals
) -> None:
    """Draws the line until the work has ended, and then erases the line."""
    begun = time.monotonic()
    if not overwrites(sys.stderr):
        while not ended.wait(intervals.log_seconds):
            remark(words(time.monotonic() - begun))
        return
    wait = intervals.patience_seconds
    while not ended.wait(wait):
        line = words(time.monotonic() - begun)
        draw_line(sys.stderr, line if share is None else f"{line} {bar(share())}")
        wait = intervals.redraw_seconds
    erase_line(sys.stderr)
    sys.stderr.flush()
