"""A reader of the part of YAML that topology files are written in.

Mappings and lists in block form, lists in flow form such as `[a, b]`, and quoted or
plain scalars are read; every scalar is a text.  Anchors, aliases, tags, flow mappings
and scalars of several lines are refused, so a small file cannot stand for a large value.
"""

import re
from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.errors import InputError

DEEPEST = 32
MOST_LINES = 1 << 20
KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s\[\]{},#&*!|>'"%@`-][^#:]*?(?::[^\s#][^#:]*?)*|-[^\s#:][^#:]*?)\s*:(?:\s+|$)"""
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line with content: its number in the file, its indentation, and its text without comment."""

    number: int
    indent: int
    text: str


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
    for number, raw in enumerate(text.splitlines(), 1):
        content = _without_comment(raw).rstrip()
        stripped = content.lstrip(" ")
        if not stripped or stripped == "---":
            continue
        if stripped == "...":
            break
        if stripped[0] == "\t":
            raise InputError(f"{path}, line {number}: is indented by a tab; YAML indents by spaces")
        if len(lines) >= MOST_LINES:
            raise InputError(f"{path}, line {number}: more than {MOST_LINES} lines")
        lines.append(Line(number, len(content) - len(stripped), stripped))
    return lines


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
        self.lines, self.path, self.place = lines, path, 0

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
            inner = Line(line.number, indent + len(line.text) - len(rest), rest)
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
        if text.startswith("["):
            return self._flow(line, text)
        if text[0] in "&*!|>{%@`":
            raise InputError(f"{self.path}, line {line.number}: {text!r:.60} is YAML that is not supported")
        if text[0] in "\"'" and (len(text) < 2 or text[-1] != text[0]):
            raise InputError(f"{self.path}, line {line.number}: {text!r:.60} has a quote that does not close")
        return _unquoted(text)

    def _flow(self, line: Line, text: str) -> list[str]:
        if not text.endswith("]") or re.search(r"[{}&*!]", text):
            raise InputError(f"{self.path}, line {line.number}: {text!r:.60} is not a list such as [a, b] on one line")
        words = re.findall(r"""\s*("[^"]*"|'[^']*'|[^,\[\]"']+(?:\[[^\]]*\])?[^,\[\]"']*)\s*(?:,|$)""", text[1:-1])
        left = re.sub(r"""\s*("[^"]*"|'[^']*'|[^,\[\]"']+(?:\[[^\]]*\])?[^,\[\]"']*)\s*(?:,|$)""", "", text[1:-1])
        if left.strip():
            raise InputError(f"{self.path}, line {line.number}: {text!r:.60} is not a list such as [a, b]")
        return [_unquoted(word.strip()) for word in words]


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
        return text[1:-1]
    return text
