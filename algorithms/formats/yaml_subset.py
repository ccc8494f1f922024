"""A reader of the part of YAML that configurations and topology files are written in.

Mappings and lists in block form, lists and mappings in flow form on one line, such as `[a, b]` and `{a: 1}`, and
quoted, plain and literal scalars are read; every scalar is a text.  Anchors, aliases and tags are refused, so a small
file cannot stand for a large value.  A plain or quoted scalar of several lines is refused, too.
"""

import re
from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.errors import InputError

DEEPEST = 32
MOST_LINES = 1 << 20
MOST_ITEMS = 1 << 20
"""Limit of the items in flow form in a document."""
KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s\[\]{},#&*!|>'"%@`-][^#:]*?(?::[^\s#][^#:]*?)*|-[^\s#:][^#:]*?)\s*:(?:\s+|$)"""
)


BLOCK = re.compile(r"(?:^|[:-]\s+)([|>])[+-]?$")
"""The end of a line below which a text of several lines stands."""
SPECIAL = re.compile(r"[][{},:]")
PAIR = re.compile(r":(?:[\s,}]|$)")
"""A colon that makes a pair of the text before it and the text behind it."""
REASONS = dict.fromkeys("&*!", "anchors, aliases and tags are not accepted")


@dataclass(frozen=True, slots=True)
class Line:
    """A line with content.

    Parameters
    ----------
    number : its number in the file
    indent : its indentation in spaces
    text : its text without comment
    below : the text of several lines that its last letter, `|` or `>`, announces
    """

    number: int
    indent: int
    text: str
    below: str = ""


def parse_yaml(text: str, path: str) -> Any:
    r"""The value of a YAML document; mappings are dicts, lists are lists, and scalars are texts.

    >>> parse_yaml("switches:\n- switch: s1\n  nodes: n[0-3]  # a comment\nsizes: [4, 8]", "t.yaml")
    {'switches': [{'switch': 's1', 'nodes': 'n[0-3]'}], 'sizes': ['4', '8']}

    Raises
    ------
    InputError : text that is not of this part of YAML; with its line
    """
    reader = _Reader(_lines(text, path), path)
    if not reader.lines:
        raise InputError(f"{path}: is empty")
    value = reader.block(reader.lines[0].indent, 0)
    if reader.place < len(reader.lines):
        raise reader.error("is indented less than the first line, or does not belong there")
    return value


def _lines(text: str, path: str) -> list[Line]:
    lines: list[Line] = []
    rows = text.splitlines()
    place = 0
    while place < len(rows):
        content = _without_comment(rows[place]).rstrip()
        place += 1
        stripped = content.lstrip(" ")
        if not stripped or stripped == "---":
            continue
        if stripped == "...":
            break
        if stripped[0] == "\t":
            raise InputError(f"{path}, line {place}: is indented by a tab; YAML indents by spaces")
        if len(lines) >= MOST_LINES:
            raise InputError(f"{path}, line {place}: more than {MOST_LINES} lines")
        number, indent, below = place, len(content) - len(stripped), ""
        if BLOCK.search(stripped):
            start = place
            while place < len(rows) and (not rows[place].strip() or _indent(rows[place]) > indent):
                place += 1
            below = _joined(rows[start:place], folded=stripped.rstrip("+-")[-1] == ">")
        lines.append(Line(number, indent, stripped, below))
    return lines


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip(" "))


def _joined(rows: list[str], *, folded: bool) -> str:
    """The text of a block scalar, without the empty lines at its end.

    `folded` lines are joined by blanks, whatever their indentation.
    """
    depth = min((_indent(row) for row in rows if row.strip()), default=0)
    return (" " if folded else "\n").join(row[depth:] for row in rows).rstrip()


def _without_comment(line: str) -> str:
    if "#" not in line:
        return line
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (place == 0 or line[place - 1] in " [,:"):
            quote = letter
        elif letter == "#" and (place == 0 or line[place - 1] in " \t"):
            return line[:place]
    return line


class _Reader:
    """Reads the lines of a document one after another."""

    def __init__(self, lines: list[Line], path: str) -> None:
        self.lines, self.path, self.place, self.items = lines, path, 0, 0

    def error(self, reason: str) -> InputError:
        line = self.lines[min(self.place, len(self.lines) - 1)]
        return InputError(f"{self.path}, line {line.number}: {line.text!r:.60} {reason}")

    @property
    def _line(self) -> Line | None:
        return self.lines[self.place] if self.place < len(self.lines) else None

    def block(self, indent: int, depth: int) -> Any:
        """The mapping, list or scalar whose lines have this indentation."""
        if depth > DEEPEST:
            raise self.error(f"is nested more than {DEEPEST} deep")
        line = self.lines[self.place]
        if _is_item(line.text):
            return self._list(indent, depth)
        if KEY.match(line.text):
            return self._mapping(indent, depth)
        self.place += 1
        return self._scalar(line, line.text)

    def _list(self, indent: int, depth: int) -> list[Any]:
        items: list[Any] = []
        while (line := self._line) is not None and line.indent == indent and _is_item(line.text):
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self.place += 1
                below = self._line
                items.append(self.block(below.indent, depth + 1) if below and below.indent > indent else "")
                continue
            inner = Line(line.number, indent + len(line.text) - len(rest), rest, line.below)
            self.lines[self.place] = inner
            items.append(self.block(inner.indent, depth + 1))
        if (line := self._line) is not None and line.indent > indent:
            raise self.error("is indented more than the items of its list")
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        while (line := self._line) is not None and line.indent == indent and not _is_item(line.text):
            match = KEY.match(line.text)
            if not match:
                raise self.error("is not `key: value`")
            key, rest = _unquoted(match[1]), line.text[match.end() :]
            if key in table:
                raise self.error("has a key that is there twice")
            self.place += 1
            table[key] = self._scalar(line, rest) if rest else self._below(indent, depth)
        if (line := self._line) is not None and line.indent > indent:
            raise self.error("is indented more than its neighbours")
        return table

    def _below(self, indent: int, depth: int) -> Any:
        """The value that stands on the lines below its key; a list may have the indentation of the key."""
        line = self._line
        if line is None or line.indent < indent or (line.indent == indent and not _is_item(line.text)):
            return ""
        return self.block(line.indent, depth + 1)

    def _scalar(self, line: Line, text: str) -> Any:
        where = f"{self.path}, line {line.number}: {text!r:.60}"
        if text[0] in "[{":
            flow = _Flow(text, where, self.items)
            value = flow.value()
            self.items = flow.items
            return value
        if BLOCK.match(text):
            return line.below
        if text[0] in "&*!|>%@`":
            raise InputError(f"{where} {REASONS.get(text[0], 'is YAML that is not supported')}")
        if text[0] in "\"'" and (len(text) < 2 or text[-1] != text[0]):
            raise InputError(f"{where} has a quote that does not close")
        return _unquoted(text)


class _Flow:
    """Reads a list or a mapping in flow form, on one line."""

    def __init__(self, text: str, where: str, items: int) -> None:
        self.text, self.where, self.place, self.items = text, where, 0, items

    def value(self) -> Any:
        value = self._collection(0)
        if self.text[self.place :].strip():
            raise self._error()
        return value

    def _error(self) -> InputError:
        return InputError(f"{self.where} is not a list such as [a, b] or a mapping such as {{a: 1}} on one line")

    def _next(self) -> str:
        """The next letter that is no blank."""
        while self.text[self.place : self.place + 1] == " ":
            self.place += 1
        return self.text[self.place : self.place + 1]

    def _collection(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise InputError(f"{self.where} is nested more than {DEEPEST} deep")
        end = "]" if self.text[self.place] == "[" else "}"
        self.place += 1
        items: list[Any] = []
        table: dict[str, Any] = {}
        while (letter := self._next()) != end:
            self.items += 1
            if self.items > MOST_ITEMS:
                raise InputError(f"{self.where} has more than {MOST_ITEMS} items")
            item = self._collection(depth + 1) if letter and letter in "[{" else self._word(":" if end == "}" else "")
            if end == "]":
                items.append(item)
            elif self._next() != ":" or not isinstance(item, str) or item in table:
                raise self._error()
            else:
                self.place += 1
                after = self._next()
                table[item] = self._collection(depth + 1) if after and after in "[{" else self._word("", empty=True)
            if self._next() == ",":
                self.place += 1
            elif self._next() != end:
                raise self._error()
        self.place += 1
        return items if end == "]" else table

    def _word(self, stop: str, *, empty: bool = False) -> str:
        """A scalar up to a comma, the end of the collection, or `stop`; brackets may stand inside: n[0-3], ${a}."""
        start = self.place
        first = self._next()
        if first and first in "\"'":
            end = self.text.find(first, self.place + 1)
            if end < 0:
                raise self._error()
            start, self.place = self.place + 1, end + 1
            return self.text[start:end]
        if first and first in REASONS:
            raise InputError(f"{self.where} {REASONS[first]}")
        open_brackets = 0
        for special in SPECIAL.finditer(self.text, self.place):
            letter, self.place = special[0], special.start()
            if letter in "[{":
                open_brackets += 1
            elif open_brackets == 0 and (letter in ",]}" or (letter == stop and PAIR.match(self.text, self.place))):
                break
            elif letter in "]}":
                open_brackets -= 1
        else:
            self.place = len(self.text)
        word = self.text[start : self.place].strip()
        if (not word and not empty) or (not stop and PAIR.search(word)):
            raise self._error()
        return word


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
        return text[1:-1]
    return text
