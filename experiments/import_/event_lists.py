"""Reader of the long list in a trace: `{"traceEvents": [EVENT, …], …}` in a few MiB of memory, whatever its length.

The text is read in chunks.  A chunk is cut at its last `},{`, and the events before the cut are decoded at once: the
cut is a border between two events if and only if they decode, since a cut inside an event leaves a bracket or a string
open.  A chunk where that fails, such as the last one, is walked event by event; the walk also finds the place of a
fault.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Generic, TypeVar, cast

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import TOO_DEEP, open_regular

Event = TypeVar("Event")
Form = TypeVar("Form")
CHUNK_BYTES = 2**23
MOST_AROUND = 2**26
"""Most bytes before and after the list [B]."""
MOST_EVENT = 2**24
"""Most bytes of an event [B]."""
MOST_BYTES = 2**35
"""Most bytes of a trace, decompressed [B]."""
MOST_CUTS, MOST_BRACES = 3, 1000
"""Cuts of a chunk that are tried, and opening braces among which a cut is looked for, before the events are walked."""
LIST_KEY = b'"traceEvents"'
GZIP = b"\x1f\x8b"
SPACE = b" \t\r\n"


@contextmanager
def open_trace(path: str | Path) -> Iterator[IO[bytes]]:
    """The text of a trace while it is open, decompressed if the file is in gzip format.

    Raises
    ------
    OSError : a file that cannot be read
    """
    with open_regular(path) as file:
        magic = file.read(len(GZIP))
        file.seek(0)
        if magic == GZIP:
            with gzip.GzipFile(fileobj=file) as text:
                yield cast(IO[bytes], text)
        else:
            yield file


class EventLists(Generic[Event]):
    """The events of a trace, in lists of the events of a chunk.

    Parameters
    ----------
    file : text of the trace
    form : type of an event
    """

    def __init__(self, file: IO[bytes], form: type[Event]) -> None:
        self._file = file
        self._decoder = msgspec.json.Decoder(list[form])  # type: ignore[valid-type]
        self._buffer, self._offset, self._ended = b"", 0, False
        self._count = 0
        self._around = b""

    def __iter__(self) -> Iterator[list[Event]]:
        """The events of each chunk.

        Raises
        ------
        InputError : no trace, or a fault in it, with its place
        """
        head = self._read_head()
        closed = False
        while not closed:
            self._fill()
            events, closed = self._quick(), False
            if events is None:
                events, closed = self._walked()
            self._count += len(events)
            yield events
        self._around = head + b"]" + self._read_tail() if head.lstrip(SPACE) != b"[" else b""
        if self._around:
            self.header(msgspec.Raw)

    def header(self, form: type[Form]) -> Form | None:
        """The object around the list, whose list is then empty; None if the trace is a bare list."""
        if not self._around:
            return None
        try:
            return msgspec.json.decode(self._around, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"before or after traceEvents: {_fault(error)}") from None

    def _fill(self) -> None:
        """Reads one more chunk into the buffer."""
        if self._ended:
            return
        try:
            more = self._file.read(CHUNK_BYTES)
        except EOFError:
            place = self._offset + len(self._buffer)
            raise InputError(f"truncated: the gzip data end after byte {place} of the text") from None
        except (zlib.error, gzip.BadGzipFile) as error:
            place = self._offset + len(self._buffer)
            raise InputError(f"damaged gzip data after byte {place} of the text ({error})") from None
        self._ended = not more
        self._buffer += more
        if self._offset + len(self._buffer) > MOST_BYTES:
            raise InputError(f"longer than {MOST_BYTES} bytes, the limit of a trace")

    def _drop(self, count: int) -> bytes:
        """Takes bytes from the front of the buffer."""
        dropped, self._buffer = self._buffer[:count], self._buffer[count:]
        self._offset += count
        return dropped

    def _read_head(self) -> bytes:
        """The text up to the list and its opening bracket."""
        while True:
            self._fill()
            place = _list_begin(self._buffer)
            if place:
                return self._drop(place)
            if self._ended or len(self._buffer) > MOST_AROUND:
                raise InputError('no "traceEvents": a trace of PyTorch\'s profiler (Kineto) is needed')

    def _read_tail(self) -> bytes:
        """The text after the list."""
        while not self._ended:
            self._fill()
            if len(self._buffer) > MOST_AROUND:
                raise InputError(f"more than {MOST_AROUND} bytes after traceEvents")
        return self._drop(len(self._buffer))

    def _quick(self) -> list[Event] | None:
        """The events up to the last border in the buffer; None if no border is found."""
        end, data = len(self._buffer), self._buffer
        for _ in range(MOST_CUTS):
            comma = _last_comma(data, end)
            if comma <= 0:
                return None
            start = 1 if self._count and data[:1] == b"," else 0
            try:
                events: list[Event] = self._decoder.decode(b"[" + data[start:comma] + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                end = comma
                continue
            self._drop(comma)
            return events
        return None

    def _walked(self) -> tuple[list[Event], bool]:
        """The events of the buffer, one by one, and whether the list ended; a cut event stays in the buffer."""
        text = self._buffer.decode("latin-1")  # one character for each byte
        scan, place, events = json.JSONDecoder().raw_decode, 0, list[Event]()
        while True:
            start = _after_space(text, place)
            first = not self._count and not events
            if text[start : start + 1] == "]":
                self._drop(start + 1)
                return events, True
            if not first and text[start : start + 1] == ",":
                start = _after_space(text, start + 1)
            elif not first and start < len(text):
                raise InputError(f"byte {self._offset + start}: a comma or the end of traceEvents is needed")
            try:
                _, end = scan(text, start)
            except RecursionError:
                raise InputError(f"byte {self._offset + start}: {TOO_DEEP}") from None
            except ValueError as error:
                self._check_cut(text, start, error)
                self._drop(place)
                return events, False
            events += self._decoded(start, end, len(events))
            place = end

    def _check_cut(self, text: str, start: int, error: ValueError) -> None:
        """Checks that an event which does not parse may be cut by the end of the chunk."""
        if self._ended and start >= len(text.rstrip()):
            raise InputError(f"truncated: the text ends at byte {self._offset + len(text)}, inside traceEvents")
        if self._ended:
            place = self._offset + getattr(error, "pos", start)
            raise InputError(f"byte {place}: truncated or not JSON ({str(error).split(':')[0]})")
        if len(text) - start > MOST_EVENT:
            raise InputError(f"byte {self._offset + start}: no JSON value, or one longer than {MOST_EVENT} bytes")

    def _decoded(self, start: int, end: int, before: int) -> list[Event]:
        try:
            events: list[Event] = self._decoder.decode(b"[" + self._buffer[start:end] + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            number = self._count + before
            raise InputError(f"event {number} (byte {self._offset + start}): {_fault(error)}") from None
        return events


def _list_begin(data: bytes) -> int:
    """The place behind the opening bracket of the list; 0 if it is not there."""
    stripped = data.lstrip(SPACE)
    if stripped[:1] == b"[":
        return len(data) - len(stripped) + 1
    place = data.find(LIST_KEY)
    while place >= 0:
        rest = data[place + len(LIST_KEY) : place + len(LIST_KEY) + 100].lstrip(SPACE)
        if rest[:1] == b":" and rest[1:].lstrip(SPACE)[:1] == b"[" and data[place - 1 : place] != b"\\":
            return data.index(b"[", place) + 1
        place = data.find(LIST_KEY, place + 1)
    return 0


def _last_comma(data: bytes, end: int) -> int:
    """The place of the last comma between a closing and an opening brace; 0 or less if none is near the end."""
    for _ in range(MOST_BRACES):
        brace = data.rfind(b"{", 0, end)
        if brace <= 0:
            return 0
        before = data[max(0, brace - 100) : brace].rstrip(SPACE)
        if before[-1:] == b"," and before[:-1].rstrip(SPACE)[-1:] == b"}":
            return data.rindex(b",", 0, brace)
        end = brace
    return 0


def _after_space(text: str, place: int) -> int:
    """The first place that has no space, tab or line end."""
    while text[place : place + 1] in (" ", "\n", "\t", "\r"):
        place += 1
    return place


def _fault(error: Exception) -> str:
    """The fault of a text that does not decode."""
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "is not text in UTF-8"
    return str(error).replace("`", "").replace("$[0].", "").replace("$[0]", "it").replace(" - at ", ": ")
