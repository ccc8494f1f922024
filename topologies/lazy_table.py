"""`LazyTable`: a mapping from names to values, each imported at its first use."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

Value = TypeVar("Value")


class LazyTable(Mapping[str, Value]):
    """Values by name, in any case; the names are listed at once, each value is loaded at its first use.

    >>> table = LazyTable({"pi": lambda: 3.14})
    >>> "Pi" in table, list(table), table["PI"]
    (True, ['pi'], 3.14)

    Parameters
    ----------
    loaders : function that returns the value of each name, which is in lower case
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Value]]) -> None:
        self._loaders = dict(loaders)
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        key = name.lower()
        if key not in self._values:
            self._values[key] = self._loaders[key]()
        return self._values[key]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._loaders

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


def named_values(modules: Mapping[Callable[[], Iterable[Value]], Iterable[str]]) -> LazyTable[Value]:
    """Values by their `name`.

    Parameters
    ----------
    modules : names of the values that each function imports and returns
    """
    return LazyTable({name: partial(_of_name, load, name) for load, names in modules.items() for name in names})


def _of_name(load: Callable[[], Iterable[Value]], name: str) -> Value:
    return next(value for value in load() if getattr(value, "name", None) == name)
