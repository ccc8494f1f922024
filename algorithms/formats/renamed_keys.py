"""Keys of files that older schema versions name differently: one table for each schema.

A path is dotted; `[]` stands for every entry of a list.  A key may move to another table.  A key without a new path is
dropped.  A word that changed its meaning becomes other keys and values of the same table.

    Renames({"host.threads_default": None, "network.late_seconds": "emulation.wakeup_delay_seconds"})
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Renames:
    """Old path -> new path of every key that changed its name or its table; None if the key was dropped.

    >>> renames = Renames({"host.old": "emulation.new", "rows[].of": "rows[].world_size", "host.unused": None})
    >>> renames.upgraded({"host": {"old": 1, "unused": 2, "cores": 4}, "rows": [{"of": 3}]})
    {'host': {'cores': 4}, 'rows': [{'world_size': 3}], 'emulation': {'new': 1}}
    >>> renames.downgraded({"host": {"cores": 4}, "rows": [{"world_size": 3}], "emulation": {"new": 1}})
    {'host': {'cores': 4, 'old': 1}, 'rows': [{'of': 3}]}
    >>> Renames({}, {"how.fast": {"very": {"speed": "high", "risk": "high"}}}).upgraded({"how": {"fast": "very"}})
    {'how': {'speed': 'high', 'risk': 'high'}}

    Parameters
    ----------
    words : path of a key -> old word -> keys and values that replace the key; other values stay
    """

    paths: Mapping[str, str | None]
    words: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)

    def upgraded(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The content of an older file under today's keys; a value of the wrong type stays as it is."""
        content: dict[str, Any] = _copy(raw)
        for old, new in self.paths.items():
            _move(content, old, new)
        for path, meanings in self.words.items():
            _reword(content, path, meanings)
        return content

    def downgraded(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The content under the older keys, without the dropped ones; tables that become empty are removed."""
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
    """Moves the value at one path to another; both have the same lists."""
    before, key = _split(old)
    after, name = _split(new) if new is not None else (before, None)
    if before == after:
        for table in _tables(content, before):
            if key in table:
                value = table.pop(key)
                if name is not None:
                    table[name] = value
        return
    for table in _tables(content, before):
        if key in table and name is not None:
            value = table.pop(key)
            target = content.setdefault(after, {})
            if isinstance(target, dict):
                target[name] = value


def _reword(content: dict[str, Any], path: str, meanings: Mapping[str, Mapping[str, str]]) -> None:
    before, key = _split(path)
    for table in _tables(content, before):
        word = table.get(key)
        if isinstance(word, str) and word in meanings:
            del table[key]
            table.update(meanings[word])


def _split(path: str) -> tuple[str, str]:
    table, _, key = path.rpartition(".")
    return table, key


def _tables(content: Any, path: str) -> list[dict[str, Any]]:
    """The tables at a path, which names lists by `[]`."""
    values = [content]
    for word in path.split(".") if path else []:
        values = [
            value[word.removesuffix("[]")]
            for value in values
            if isinstance(value, dict) and word.removesuffix("[]") in value
        ]
        if word.endswith("[]"):
            values = [entry for value in values if isinstance(value, list | tuple) for entry in value]
    return [table for table in values if isinstance(table, dict)]
