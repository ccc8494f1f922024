"""A table whose values are imported when they are first asked for."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

Value = TypeVar("Value")


class LazyTable(Mapping[str, Value]):
    """Values by name; the names are known at once, each value when it is first asked for.

    >>> table = LazyTable({"pi": lambda: 3.14})
    >>> "pi" in table, list(table), table["pi"]
    (True, ['pi'], 3.14)

    Parameters
    ----------
    loaders : gives each value by its name
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Value]]) -> None:
        self._loaders = dict(loaders)
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = self._loaders[name]()
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)
