"""`Settings`: the values of a configuration file by dotted key, from JSON, TOML or YAML.

Lists stay values.  The part of YAML that is read is that of `yaml_subset.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json, parse_toml
from quadrille.algorithms.formats.yaml_subset import parse_yaml

DEEPEST = 16
NOT_FINITE = ("nan", "inf", "infinity")
MOST_KEYS = 20_000
LONGEST_NUMBER = 15
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


def file_with(files: Sequence[Settings], key: str, name: str, program: str) -> Settings:
    """The first of the files of a program that has a key.

    Parameters
    ----------
    name : name of the file in the program, with a key of it, for the message

    Raises
    ------
    InputError : no file has the key
    """
    for file in files:
        if key in file.values:
            return file
    raise InputError(f"{files[0].path}: the file of the {name} is missing: {program} needs both")


def parse_settings(path: str, text: str) -> Settings:
    r"""The settings in the text of a file.

    >>> dict(parse_settings("a.yaml", "model:\n  layers: 2  # few\ntrain: {}\n").values)
    {'model.layers': '2', 'train': None}
    >>> dict(parse_settings("a.json", '{"model": {"layers": 2}}').values)
    {'model.layers': 2}

    Raises
    ------
    InputError : neither JSON, TOML nor a mapping of YAML
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
            content = _typed(parse_yaml(text, path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}, line 1: {text.strip()[:40]!r}: a key with a colon is accepted")
    return Settings(path, _checked(path, dict(_flat(path, content, "", 0))))


def _checked(path: str, values: dict[str, Any]) -> dict[str, Any]:
    if not values:
        raise InputError(f"{path}: has no keys: the configuration of a training job is accepted")
    if len(values) > MOST_KEYS:
        raise InputError(f"{path}: {len(values)} keys: at most {MOST_KEYS} are accepted")
    for key, value in values.items():
        if str(value).lower().lstrip("+-.") in NOT_FINITE:
            raise InputError(f"{path}: {key[:60]} = {str(value)[:40]!r}: a finite number is accepted")
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


def _typed(value: Any) -> Any:
    """A value of YAML with truth values, None, and whole numbers in lists in place of their texts."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [
            int(item) if isinstance(item, str) and re.fullmatch("[0-9]{1,15}", item) else _typed(item) for item in value
        ]
    return WORDS.get(value.lower(), value)
