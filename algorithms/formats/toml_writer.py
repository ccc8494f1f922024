"""TOML writer: nested tables as TOML text, which the standard library reads but does not write.

Layout, as a person would write it: plain values of a table first, small
tables of plain values inline, then `[section]` and `[[row]]` blocks.  A key
whose value is None is left out, since TOML has no null.

Source: TOML v1.0.0, toml.io, sections "Keys", "String", "Table" and "Array of Tables".
"""

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite

Toml = str | int | float | bool | None | Sequence["Toml"] | Mapping[str, "Toml"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Toml]) -> str:
    """The TOML document of `table`.

    >>> print(toml_text({"name": "host", "device": {"peak": {"float64": 8e10}, "gemm": [{"m": 2}, {"m": 3}]}}), end="")
    name = "host"
    <BLANKLINE>
    [device]
    peak = { float64 = 80000000000.0 }
    <BLANKLINE>
    [[device.gemm]]
    m = 2
    <BLANKLINE>
    [[device.gemm]]
    m = 3

    Raises
    ------
    ValueError : a number that is not finite, a None inside a list, a value that TOML lacks
    """
    return "\n".join(_block("", table, depth=0)).lstrip("\n") + "\n"


def _block(path: str, table: Mapping[str, Toml], depth: int) -> list[str]:
    """Lines of one table, those below it included, without its own header."""
    lines: list[str] = []
    below: list[str] = []
    for key, value in table.items():
        inner = f"{path}.{_key(key)}" if path else _key(key)
        if value is None:
            continue
        rows = _rows(value)
        if isinstance(value, Mapping) and (depth == 0 or not _is_plain(value)):
            below += ["", f"[{inner}]", *_block(inner, value, depth + 1)]
        elif rows:
            for row in rows:
                below += ["", f"[[{inner}]]", *_block(inner, row, depth + 1)]
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    return lines + below


def _rows(value: Toml) -> list[Mapping[str, Toml]]:
    """The tables of a list of tables, written as [[rows]]; empty for any other value."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        return []
    rows = [item for item in value if isinstance(item, Mapping)]
    return rows if len(rows) == len(value) else []


def _is_plain(table: Mapping[str, Toml]) -> bool:
    """Whether no value of `table` is itself a table or a list of them."""
    return not any(isinstance(value, Mapping) or _rows(value) for value in table.values())


def _value(value: Toml) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case float() if not isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        case int():
            return repr(int(value))
        case float():
            return repr(float(value))
        case Mapping():
            inside = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
            return f"{{ {inside} }}" if inside else "{}"
        case Sequence():
            return f"[{', '.join(_value(item) for item in value)}]"
        case _:
            raise ValueError(f"{value!r} has no form in TOML")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    """A basic string: JSON's escapes, and DEL, which TOML escapes too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
