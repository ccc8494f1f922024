"""Renamed keys of file schemas: reads a file of an older schema version under the keys of the present version.

Every schema has a table from old key path to new key path.  A path is dotted; `[]` stands for every entry of a list.  A
key may move to another table of the file.  A key whose new path is None was dropped:

    Renames({"host.threads_default": None, "network.late_seconds": "emulation.wakeup_delay_seconds"})

A value may also have changed its meaning.  Then the key and its value are replaced by other keys and values of the same
table: `recompute = "none"` of schema 1 becomes two keys of schema 2.

    Renames({}, {"options.recompute": {"none": {"attention": "unfused", "recompute": "none"}}})
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Renames:
    """The renamed, moved and dropped keys between an older schema version and the present version.

    >>> renames = Renames({"host.old": "emulation.new", "rows[].of": "rows[].world_size", "host.unused": None})
    >>> renames.upgraded({"host": {"old": 1, "unused": 2, "cores": 4}, "rows": [{"of": 3}]})
    {'host': {'cores': 4}, 'rows': [{'world_size': 3}], 'emulation': {'new': 1}}
    >>> renames.downgraded({"host": {"cores": 4}, "rows": [{"world_size": 3}], "emulation": {"new": 1}})
    {'host': {'cores': 4, 'old': 1}, 'rows': [{'of': 3}]}
    >>> Renames({}, {"how.fast": {"very": {"speed": "high", "risk": "high"}}}).upgraded({"how": {"fast": "very"}})
    {'how': {'speed': 'high', 'risk': 'high'}}

    Parameters
    ----------
    paths : new path by old path; None for a key that was dropped
    replaced_values : path of a key -> old value -> keys and values that replace the key; other values stay
    """

    paths: Mapping[str, str | None]
    replaced_values: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)

    def upgraded(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The content of an older file under the present keys; a value of the wrong type stays as it is."""
        content: dict[str, Any] = _copy(raw)
        for old, new in self.paths.items():
            _move(content, old, new)
        for path, replacements in self.replaced_values.items():
            _replace_value(content, path, replacements)
        return content

    def downgraded(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The content under the older keys, without dropped keys; tables that become empty are removed."""
        content = _copy(raw)
        for old, new in self.paths.items():
            if new is not None:
                _move(content, new, old)
        moved_to = {new.partition(".")[0] for new in self.paths.values() if new is not None and "[]" not in new}
        return {key: value for key, value in content.items() if not (key in moved_to and value == {})}


def _copy(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        return {key: _copy(value) for key, value in raw.items()}
    if isinstance(raw, tuple):
        return tuple(_copy(value) for value in raw)
    return [_copy(value) for value in raw] if isinstance(raw, list) else raw


def _move(content: dict[str, Any], old: str, new: str | None) -> None:
    """Moves the value at the path `old` to the path `new`, or drops it; both paths have the same lists."""
    old_table, old_key = _split(old)
    new_table, new_key = _split(new) if new is not None else (old_table, None)
    if old_table == new_table:
        for table in _tables(content, old_table):
            if old_key in table:
                value = table.pop(old_key)
                if new_key is not None:
                    table[new_key] = value
        return
    for table in _tables(content, old_table):
        if old_key in table and new_key is not None:
            value = table.pop(old_key)
            target = content.setdefault(new_table, {})
            if isinstance(target, dict):
                target[new_key] = value


def _replace_value(content: dict[str, Any], path: str, replacements: Mapping[str, Mapping[str, str]]) -> None:
    """Replaces the key at a path by other keys and values of its table, if its value changed its meaning."""
    table_path, key = _split(path)
    for table in _tables(content, table_path):
        value = table.get(key)
        if isinstance(value, str) and value in replacements:
            del table[key]
            table.update(replacements[value])


def _split(path: str) -> tuple[str, str]:
    """The path of the table, and the key in it."""
    table, _, key = path.rpartition(".")
    return table, key


def _tables(content: Any, path: str) -> list[dict[str, Any]]:
    """The tables at a path, one for each entry of its lists (`[]`)."""
    values = [content]
    for step in path.split(".") if path else []:
        key = step.removesuffix("[]")
        values = [value[key] for value in values if isinstance(value, dict) and key in value]
        if step.endswith("[]"):
            values = [entry for value in values if isinstance(value, list | tuple) for entry in value]
    return [table for table in values if isinstance(table, dict)]
