"""A table by name whose values are imported when they are first asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

Value = TypeVar("Value")


class LazyTable(Mapping[str, Value]):
    """Values by name; the names are known at once, each value when it is first asked for.

    >>> table = LazyTable({"pi": lambda: 3.14})
    >>> "pi" in table, list(table), table["pi"]
    (True, ['pi'], 3.14)

    Parameters
    ----------
    loaders : function that returns the value of each name
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


def imported(module: str, attribute: str) -> Callable[[], Any]:
    """A loader that imports a module and returns one of its attributes.

    >>> imported("math", "tau")()
    6.283185307179586
    """
    return partial(_import, module, attribute)


def named_values(package: str, modules: Mapping[str, Iterable[str]]) -> LazyTable[Any]:
    """Values that have a `name`, by that name.

    Parameters
    ----------
    modules : names of the values in each module of the package; the module `sites` lists its values in `SITES`
    """
    return LazyTable(
        {
            name: partial(_of_name, f"{package}.{module}", module.upper(), name)
            for module, names in modules.items()
            for name in names
        }
    )


def _import(module: str, attribute: str) -> Any:
    return resolve_name(f"{module}:{attribute}")


def _of_name(module: str, attribute: str, name: str) -> Any:
    return next(value for value in _import(module, attribute) if value.name == name)
