"""Tables on a terminal: no control characters as text, and no cell that is cut."""

import copy
import fcntl
import os
import pickle
import pty
import struct
import subprocess
import sys
import termios

import pytest

from quadrille.experiments.output.tables import duration, print_tables, table
from tests.support.quadrille import ROOT

TABLE = """
from quadrille.cli import standard_streams
from quadrille.experiments.output.tables import print_tables, table
standard_streams.prepare()
names = ["op", *(f"column {number}" for number in range(9)), "grid"]
print_tables(table("a title", names, [["multiply", *["123.4 ms"] * 9, "data=4,z=64"]], names=1))
"""


def on_terminal(columns, *words):
    """What a Python program writes to a terminal with so many columns, and its exit status."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-P", *words],
        cwd=ROOT,
        env=variables | {"TERM": "xterm-256color"},
        stdout=theirs,
        stdin=theirs,
    )
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 1 << 16):
            written += block
    except OSError:  # the terminal's other side is closed
        pass
    os.close(ours)
    return written.decode(), process.wait(60)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_cell_is_cut_on_a_terminal_of_any_width(columns):
    text, status = on_terminal(columns, "-c", TABLE)
    assert status == 0 and "…" not in text
    assert text.count("123.4 ms") == 9 and "data=4,z=64" in text and "a title" in text


def test_tables_on_a_terminal_hold_no_control_characters_as_text():
    text, status = on_terminal(100, "-m", "quadrille", "models")
    assert status == 0 and "gpt3-175b" in text
    assert "\\x1b" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00099996, "1.000 ms"),
        (0.09999999, "100.0 ms"),
        (0.99999, "1.000 s"),
        (0.0000154, "15.40 us"),
        (-0.0001, "-100.0 us"),
        (123.456, "123.5 s"),
        (1e306, "1e+306 s"),
        (4e-10, "0 ms"),
        (None, "-"),
    ],
)
def test_a_time_has_four_significant_digits_in_its_own_unit(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("times", "cells"),
    [
        ((71.084, 0.25, None, 0.0), ("71.08 s", "0.2500 s", "-", "0 s")),
        ((0.834, 0.000154), ("834.0 ms", "0.1540 ms")),
        ((3.875e-05, 7.989e-06), ("38.75 us", "7.989 us")),
    ],
)
def test_all_times_of_a_table_have_the_unit_of_the_longest(capsys, times, cells):
    rows = [(f"op {place}", duration(seconds), duration(times[0])) for place, seconds in enumerate(times)]
    print_tables(table("", ("op", "time", "total"), rows[:1], rows[1:]))
    lines = [line for line in capsys.readouterr().out.splitlines() if "op " in line and "time" not in line]
    for line, cell in zip(lines, cells, strict=True):
        assert line.split("   ")[1:] and cell in line and cells[0] in line


def test_a_duration_is_the_same_in_a_copy_and_in_another_process():
    cells = [duration(0.0123456), duration(None)]
    for again in (pickle.loads(pickle.dumps(cells)), copy.deepcopy(cells)):
        assert again == cells == ["12.35 ms", "-"]
        assert again[0].seconds == 0.0123456
