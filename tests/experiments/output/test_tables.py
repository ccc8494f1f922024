"""Tables on a terminal: no control characters as text, and no cell that is cut."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from quadrille.experiments.output.tables import milliseconds
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
        (0.99999, "1000 ms"),
        (0.0000154, "0.01540 ms"),
        (-0.0001, "-0.1000 ms"),
        (123.456, "123456 ms"),
        (4e-10, "0 ms"),
    ],
)
def test_milliseconds_have_four_significant_digits(seconds, text):
    assert milliseconds(seconds) == text
