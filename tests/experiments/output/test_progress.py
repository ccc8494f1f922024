import io
import threading
import time
from types import SimpleNamespace

import pytest

from quadrille.experiments.output import progress
from quadrille.experiments.output.progress import Intervals, StepCount, progress_line
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.runtime.host import console
from quadrille.runtime.host.console import ERASE, remark

SHORT = Intervals(patience_seconds=0.01, redraw_seconds=0.01, log_seconds=0.01)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A stderr that is a terminal of 40 columns, where progress is shown at once."""
    stream = Terminal()
    for module in (progress, console):
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return stream


def until(happened):
    """Wait until something has happened; fail after some seconds."""
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_terminal_shows_one_line_that_is_overwritten_and_taken_away(terminal):
    with progress_line(lambda _: "x" * 50, intervals=SHORT):
        until(lambda: terminal.getvalue().count("x" * 39) > 1)
    drawn = terminal.getvalue()
    assert "\n" not in drawn and "x" * 40 not in drawn
    assert drawn.startswith(ERASE + "x") and drawn.endswith("x" + ERASE)


def test_a_remark_takes_the_place_of_the_line_of_progress(terminal):
    with progress_line(lambda _: "working", intervals=SHORT):
        until(lambda: "working" in terminal.getvalue())
        remark("a fact")
    assert f"{ERASE}quadrille: a fact\n" in terminal.getvalue()


def test_short_work_shows_nothing_but_an_empty_line(terminal):
    with progress_line(lambda _: "working", intervals=Intervals(patience_seconds=threading.TIMEOUT_MAX)):
        pass  # a line that waited for its patience would never end
    assert terminal.getvalue().replace(ERASE, "") == ""


def test_a_file_gets_whole_lines_now_and_then(capsys):
    said = []
    with progress_line(lambda elapsed: said.append(elapsed) or "working", intervals=SHORT):
        until(lambda: len(said) > 2)
    assert said == sorted(said) and said[0] >= 0.01
    assert set(capsys.readouterr().err.splitlines()) == {"quadrille: working"}


def test_a_terminal_that_cannot_take_lines_away_gets_whole_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with progress_line(lambda _: "working", intervals=SHORT):
        until(terminal.getvalue)
    assert set(terminal.getvalue().splitlines()) == {"quadrille: working"}


def test_the_line_is_taken_away_when_the_work_fails(terminal):
    with pytest.raises(KeyboardInterrupt), progress_line(lambda _: "working"):
        until(lambda: "working" in terminal.getvalue())
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith(ERASE)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_crew_counts_its_answers_unless_it_is_quiet(terminal, quiet):
    def answer(number):
        if not quiet:
            until(lambda: f"squared {number} of 3 numbers" in terminal.getvalue())
        return number**2

    assert WorkSharing(quiet=quiet).share(answer, range(3), "squared", "numbers") == [0, 1, 4]
    assert bool(terminal.getvalue()) is not quiet


def test_a_bar_follows_the_words_on_a_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    count = StepCount("squared", "numbers", total=4, done=2)
    with progress_line(count.words, share=count.share, intervals=SHORT):
        until(lambda: "2 of 4 numbers" in terminal.getvalue() and "━━━━━" in terminal.getvalue())


def test_a_total_that_falls_shortens_the_time_left():
    tally = StepCount("evaluated", "layouts", total=40, done=10)
    assert tally.words(10.0) == "evaluated 10 of 40 layouts, 1 a second, about 30 s left"
    tally.total -= 20
    assert tally.words(10.0) == "evaluated 10 of 20 layouts, 1 a second, about 10 s left"
