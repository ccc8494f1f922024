"""Field errors: one-line messages for a faulty field of a file, with its path, its value and the accepted values.

msgspec reports the fault and its path, but not the value or the accepted keys.  This module looks them up in the data
and in the type of the file.
"""

import re
from typing import Any

import msgspec
from msgspec import inspect

Step = str | int
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN_KEY = "..."


def field_error_message(error: msgspec.ValidationError, raw: object, form: Any) -> str:
    """Returns the message for the error that msgspec raised when it converted `raw` to the type `form`.

    >>> class Device(msgspec.Struct, forbid_unknown_fields=True):
    ...     memory_bytes: float
    >>> try:
    ...     msgspec.convert({"memory": 8e9, "memory_bytes": 1.0}, Device)
    ... except msgspec.ValidationError as error:
    ...     field_error_message(error, {"memory": 8e9, "memory_bytes": 1.0}, Device)
    'memory is unknown; accepted: memory_bytes'
    """
    fault, _, location = str(error).partition(" - at ")
    steps = _name_keys(_steps(location), raw, form, str(error))
    value, info = _value_at(raw, steps), _type_at(inspect.type_info(form), steps)
    path = _text(steps)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", fault, re.DOTALL)
    if unknown:
        return f"{_join(path, unknown[1])} is unknown; accepted: {', '.join(_fields(info))}"
    missing = re.fullmatch(r"Object missing required field `(.*)`", fault)
    if missing:
        return f"{_join(path, missing[1])} is missing; needed: {', '.join(_fields(info, required=True))}"
    if location.startswith("`key`"):
        bad = fault.removeprefix("Invalid enum value ").strip("'\"")
        return f"{_join(path, bad)} is unknown; accepted: {', '.join(_names(info, keys=True))}"
    if fault.startswith("Invalid enum value"):
        return f"{path} = {_short(value)}: one of {', '.join(_names(info))} is needed"
    if not fault.startswith("Expected"):
        return f"{path}: {fault}" if path else fault
    needed = fault.removeprefix("Expected ").partition(", got")[0].replace("`", "")
    return f"{path or 'the file'} = {_short(value)}: {needed} is needed"


def _steps(location: str) -> list[Step]:
    location = location.removeprefix("`key` in ").strip("`").removeprefix("$")
    return [int(index) if index.isdigit() else name or index for name, index in _STEP.findall(location)]


def _name_keys(steps: list[Step], raw: object, form: Any, fault: str) -> list[Step]:
    """Returns `steps` with each `...` replaced by the key whose entry alone gives the same fault."""
    for position, step in enumerate(steps):
        table = _value_at(raw, steps[:position])
        if step != _UNKNOWN_KEY or not isinstance(table, dict):
            continue
        for key in table:
            alone = _with_value(raw, steps[:position], {key: table[key]})
            if fault == _fault(alone, form):
                steps = [*steps[:position], key, *steps[position + 1 :]]
                break
    return steps


def _fault(raw: object, form: Any) -> str:
    try:
        msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _with_value(raw: Any, steps: list[Step], value: object) -> object:
    """Returns a copy of `raw` with `value` at `steps`."""
    if not steps:
        return value
    copy: Any = dict(raw) if isinstance(raw, dict) else list(raw)
    copy[steps[0]] = _with_value(raw[steps[0]], steps[1:], value)
    return copy


def _value_at(raw: Any, steps: list[Step]) -> Any:
    for step in steps:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _type_at(info: inspect.Type | None, steps: list[Step]) -> inspect.Type | None:
    """Type of the value at `steps`; in a union, of the first member that has it."""
    if isinstance(info, inspect.Metadata):
        return _type_at(info.type, steps)
    if isinstance(info, inspect.UnionType):
        members = (_type_at(member, steps) for member in info.types if not isinstance(member, inspect.NoneType))
        return next((member for member in members if member is not None), None)
    if not steps or info is None:
        return info
    step, rest = steps[0], steps[1:]
    if isinstance(info, inspect.StructType):
        return next((_type_at(field.type, rest) for field in info.fields if field.encode_name == step), None)
    if isinstance(info, inspect.DictType):
        return _type_at(info.value_type, rest)
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        return _type_at(info.item_type, rest)
    return None


def _fields(info: inspect.Type | None, *, required: bool = False) -> list[str]:
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    return [field.encode_name for field in fields if field.required or not required]


def _names(info: inspect.Type | None, *, keys: bool = False) -> list[str]:
    """The accepted names of a value, or of the keys of a table."""
    if keys and isinstance(info, inspect.DictType):
        return _names(_type_at(info.key_type, []))
    return [str(value) for value in info.values] if isinstance(info, inspect.LiteralType) else []


def _text(steps: list[Step]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
