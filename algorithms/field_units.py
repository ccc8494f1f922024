"""Units of the fields of answers: a field's type declares its unit, and everything that shows the field reads it.

    class Answer(msgspec.Struct):
        seconds: Seconds
        bus_bandwidth: BytesPerSecond | None
        seconds_by_part: dict[str, Seconds]

Names that no type declares, such as the keys of a machine or the columns of a foreign file, have the unit that the name
says (`quadrille.algorithms.units.unit_by_name`).
"""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Unit = Literal["s", "B", "B/s", "FLOP/s", "share", "%", "1"]
"""Units of fields; a share is printed as percent, and 1 is the unit of plain numbers that are no counts."""


def in_unit(unit: Unit) -> Meta:
    """The mark of a field in this unit."""
    return Meta(extra={"unit": unit})


Seconds = Annotated[float, in_unit("s")]
Bytes = Annotated[float, in_unit("B")]
WholeBytes = Annotated[int, in_unit("B")]
BytesPerSecond = Annotated[float, in_unit("B/s")]
FlopsPerSecond = Annotated[float, in_unit("FLOP/s")]
Share = Annotated[float, in_unit("share")]
Percent = Annotated[float, in_unit("%")]
Ratio = Annotated[float, in_unit("1")]


@cache
def units_of(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The declared unit of each key of a struct, and of the structs that it holds, by path.

    >>> Link = msgspec.defstruct("Link", [("busy_s", Seconds), ("alike", int)])
    >>> units_of(msgspec.defstruct("Answer", [("bytes", WholeBytes | None), ("links", list[Link])]))
    {'bytes': 'B', 'links.busy_s': 's'}
    """
    hints = get_type_hints(struct, include_extras=True)
    units: dict[str, str] = {}
    for field in msgspec.structs.fields(struct):
        key, hint = field.encode_name, hints[field.name]
        units.update((key, unit) for unit in declared_units(hint))
        for inner in structs_of(hint):
            units |= {f"{key}.{path}": unit for path, unit in units_of(inner).items()}
    return units


def declared_units(hint: Any) -> Iterator[str]:
    """The units that a type declares, outside the structs that it holds."""
    if get_origin(hint) is Annotated:
        for mark in hint.__metadata__:
            if isinstance(mark, Meta) and mark.extra and "unit" in mark.extra:
                yield mark.extra["unit"]
    for part in get_args(hint):
        yield from declared_units(part)


def structs_of(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a type holds, at any depth."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from structs_of(part)


def unit_of_path(units: dict[str, str], path: str) -> str:
    """The unit of a value of an answer: that of the longest declared beginning of its path; empty if none is declared.

    >>> units = {"seconds_by_part": "s", "links.utilisation": "share"}
    >>> unit_of_path(units, "seconds_by_part.latency"), unit_of_path(units, "links.alike")
    ('s', '')
    """
    while path:
        if path in units:
            return units[path]
        path = path.rpartition(".")[0]
    return ""
