"""The program's stdout and stderr: control characters become text, and a failing stream ends the program in one line.

Names of machines, ops and nodes come from files, and a terminal would obey the control characters in them. A terminal
that cannot show a character gets ASCII instead. A full disk and a closed stdout are errors. A reader that closes the
pipe, such as `head`, is not an error.
"""

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from quadrille.algorithms.errors import RunError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters other than tab and newline, and those that reverse the direction of text."""
ASCII = {
    **dict.fromkeys("─━", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼", "+"),
    "×": "x",
    "·": ".",
    "…": "...",
    "–": "-",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "±": "+-",
    "µ": "u",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "█": "#",
    "’": "'",
}
"""ASCII replacements for characters of tables and formulas."""


def visible(text: str) -> str:
    r"""The text with control characters as text.

    >>> visible("a name\x1b[2J\n")
    'a name\\x1b[2J\n'
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """The ASCII replacement of characters that an encoding lacks, for `codecs.register_error`."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("quadrille.ascii", _in_ascii)


class PlainStream(io.TextIOWrapper):
    """An open output stream that writes control characters as text. After a failure, every later write fails too."""

    fault = ""
    """The reason why the stream cannot be written; empty if it can."""

    def write(self, text: str) -> int:
        """Write the text, with control characters as text.

        Raises
        ------
        RunError : the disk is full
        """
        shown = visible(text)
        with _failing(self):
            super().write(shown)
        return len(text)

    def write_control(self, text: str) -> None:
        """Write control characters of the program itself to the terminal."""
        with _failing(self):
            super().write(text)

    def flush(self) -> None:
        """Write what is buffered; errors are those of `write`."""
        with _failing(self):
            super().flush()


class ClosedStream(io.TextIOBase):
    """A stdout that was closed before the program began."""

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, _text: str) -> int:
        """Raises RunError."""
        sys.stdout = io.StringIO()
        raise RunError("stdout cannot be written: it is closed")


@contextmanager
def _failing(stream: PlainStream) -> Iterator[None]:
    """A context in which a failure of stdout becomes a RunError; a failure of stderr cannot be reported."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        stream.fault = error.strerror or str(error)
        discard(stream)
    if stream.fault and stream is sys.stdout:
        raise RunError(f"stdout cannot be written: {stream.fault}")


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device; otherwise Python would write its buffer again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def prepare() -> None:
    """Replace ordinary stdout and stderr of this process by `PlainStream`s."""
    if sys.stdout is None:
        sys.stdout = ClosedStream()
    elif type(sys.stdout) is io.TextIOWrapper:
        sys.stdout = _plain(sys.stdout)
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    elif type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = _plain(sys.stderr)


def end() -> None:
    """Prepare the exit: Python flushes the streams once more and must not report a failure a second time."""
    if isinstance(sys.stdout, PlainStream):
        sys.stdout.fault = ""


def _plain(stream: io.TextIOWrapper) -> PlainStream:
    """The stream, wrapped as a `PlainStream`."""
    encoding, line_buffering, write_through = stream.encoding, stream.line_buffering, stream.write_through
    return PlainStream(
        stream.detach(), encoding, "quadrille.ascii", line_buffering=line_buffering, write_through=write_through
    )
