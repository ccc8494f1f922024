"""`Settings`: the values of a configuration file by dotted key, from JSON, TOML, or the block mappings of YAML.

Lists stay values; items of YAML's block lists and its scalars of several lines are left out.  Anchors, aliases and tags
of YAML are refused, so a small file cannot stand for a large value.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json, parse_toml

DEEPEST = 16
MOST_KEYS = 20_000
LONGEST_NUMBER = 15
KEY = re.compile(r"""( *)(?:"([^"\n]{1,200})"|'([^'\n]{1,200})'|([\w$][\w.$/ -]{0,199}?)) *:(?: +(.*)|)$""")
WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of a file.

    Parameters
    ----------
    path : name of the file, for messages
    values : values by dotted key: texts, numbers, truth values, lists, or None
    """

    path: str
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether a value is there that is not null."""
        return self.values.get(key) is not None

    def error(self, key: str, accepted: str) -> InputError:
        """The error about the value of a key."""
        return InputError(f"{self.path}: {key} = {str(self.values.get(key))[:40]!r}: {accepted}")

    def whole(self, key: str, default: int | None = None, least: int = 0) -> int:
        """A whole number.

        Raises
        ------
        InputError : the number is missing, or is none
        """
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise InputError(f"{self.path}: {key} is missing: a whole number from {least} is needed")
        text = str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
        if not text.isascii() or not text.isdigit() or len(text) > LONGEST_NUMBER or int(text) < least:
            raise self.error(key, f"a whole number from {least} is accepted")
        return int(text)

    def number(self, key: str, default: float) -> float:
        """A number from 0.

        Raises
        ------
        InputError : no number
        """
        value = self.values.get(key)
        try:
            number = default if value is None else float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 <= number < 1e30:
            raise self.error(key, "a number from 0 is accepted")
        return number

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value.

        Raises
        ------
        InputError : another value
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false is accepted")
        return value

    def word(self, key: str, default: str = "") -> str:
        """A word in lower case.

        Raises
        ------
        InputError : a list or a number
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "a word is accepted")
        return value.lower()

    def unread(self, *read: str) -> tuple[str, ...]:
        """The keys with a value that are neither read nor below a read key."""
        return tuple(
            key
            for key, value in self.values.items()
            if value is not None and not any(key == name or key.startswith(f"{name}.") for name in read)
        )


def parse_settings(path: str, text: str) -> Settings:
    r"""The settings in the text of a file.

    >>> dict(parse_settings("a.yaml", "model:\n  layers: 2  # few\ntrain: {}\n").values)
    {'model.layers': '2', 'train': '{}'}
    >>> dict(parse_settings("a.json", '{"model": {"layers": 2}}').values)
    {'model.layers': 2}

    Raises
    ------
    InputError : neither JSON, TOML nor a block mapping of YAML
    """
    if "\0" in text:
        raise InputError(f"{path}: a zero byte: a text is accepted")
    start = text.lstrip()
    try:
        if start.startswith("{"):
            content = parse_json(text)
        elif path.endswith(".toml") or re.match(r"(?:#.*\s+)*\[[\w.-]+\]\s*$", start, re.MULTILINE):
            content = parse_toml(text)
        else:
            return Settings(path, _checked(path, dict(_yaml_keys(path, text))))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return Settings(path, _checked(path, dict(_flat(path, content, "", 0))))


def _checked(path: str, values: dict[str, Any]) -> dict[str, Any]:
    if not values:
        raise InputError(f"{path}: has no keys: the configuration of a training job is accepted")
    if len(values) > MOST_KEYS:
        raise InputError(f"{path}: {len(values)} keys: at most {MOST_KEYS} are accepted")
    return values


def _flat(path: str, content: Any, before: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The values of nested objects by dotted key."""
    if depth > DEEPEST:
        raise InputError(f"{path}: {before[:60]}: nested more than {DEEPEST} deep")
    if not isinstance(content, dict):
        yield before, content
        return
    if not content and before:
        yield before, None
    for name, value in content.items():
        yield from _flat(path, value, f"{before}.{name}" if before else str(name), depth + 1)


def _yaml_keys(path: str, text: str) -> Iterator[tuple[str, Any]]:
    """The values of the block mappings of a YAML text by dotted key."""
    parents: list[tuple[int, str]] = []
    skipped_below = -1
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if not stripped or stripped[0] in "#%" or stripped in ("---", "..."):
            continue
        if skipped_below >= 0 and indent > skipped_below:
            continue
        skipped_below = -1
        if stripped[0] == "-":
            skipped_below = indent
            continue
        match = KEY.match(line)
        if match is None:
            raise InputError(f"{path}: line {number}: {stripped[:40]!r}: a key with a colon is accepted")
        while parents and parents[-1][0] >= indent:
            parents.pop()
        if len(parents) >= DEEPEST:
            raise InputError(f"{path}: line {number}: nested more than {DEEPEST} deep")
        parents.append((indent, match[2] or match[3] or match[4]))
        value = _scalar(f"{path}: line {number}", match[5] or "")
        if value in ("|", ">", "|-", ">-"):
            skipped_below, value = indent, None
        if value is not None:
            yield ".".join(name for _, name in parents), value


def _scalar(where: str, text: str) -> Any:
    """The value of a YAML scalar: a text, a truth value or None; a flow list of words as their texts."""
    if text[:1] in "\"'" and text[:1]:
        return text[1 : text.find(text[0], 1)] if text.find(text[0], 1) > 0 else text
    text = re.sub(r"(?:^|\s)#.*", "", text).strip()
    if text[:1] in ("&", "*", "!"):
        raise InputError(f"{where}: {text[:40]!r}: anchors, aliases and tags are not accepted")
    return WORDS.get(text.lower(), text)
