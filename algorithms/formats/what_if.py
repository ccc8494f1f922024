"""What-if: a machine with some of its numbers changed, by `path=value` or `path=xFACTOR`.

A path names fields from the outside in, joined by dots.  A path through a list
of rows, or one that ends at a table of numbers, changes every number there.
Types are kept: a whole number stays whole.

Measured rows follow the rate that they refine, as a faster device would keep
its efficiency: `device.peak_flops_per_second` takes the GEMM rows of the dtype
along by the same factor, and `device.memory_bytes_per_second` the memory rows.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from algorithms.errors import InputError
from algorithms.formats import files
from algorithms.formats.field_errors import explain
from algorithms.formats.machine import Faults, Machine

Change = Callable[[Any], Any]


def apply(machine: Machine, settings: Iterable[str]) -> Machine:
    """`machine` after each of the settings, in their order.

    >>> from algorithms.formats.machine import Device
    >>> device = Device(
    ...     peak_flops_per_second={"float64": 8e10}, memory_bytes_per_second=1e10, memory_bytes=8e9, overhead_seconds=0
    ... )
    >>> machine = Machine(name="toy", topology={"family": "star", "hosts": 4}, device=device)
    >>> faster = apply(machine, ["device.peak_flops_per_second=x2", "topology.hosts=8"])
    >>> faster.device.peak_flops_per_second, faster.topology["hosts"]
    ({'float64': 160000000000.0}, 8)

    Raises
    ------
    InputError : no such path (the keys there are listed), a value of the wrong type or out of range
    """
    raw = files.plain(machine)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip() or not text.strip():
            raise InputError(f"--set {setting}: write PATH=VALUE or PATH=xFACTOR, as device.memory_bytes=x2")
        before = files.plain(raw)
        _change(raw, path.strip().split("."), _change_to(text.strip(), setting), setting, [])
        _take_rows_along(before["device"], raw["device"], path.strip())
        _take_network_along(before, raw, path.strip())
        raw = files.plain(_checked(raw, setting))
    return _checked(raw, "")


def with_faults(
    machine: Machine, *, fail: Iterable[str] = (), degrade: Iterable[str] = (), slow: Iterable[str] = ()
) -> Machine:
    """`machine` with more faults: links to fail, `LINK=SHARE` to degrade, `GPU=SHARE` to slow down.

    Whether there are such links and GPUs is seen where the topology is built.

    >>> from algorithms.formats.machine import Device
    >>> device = Device(
    ...     peak_flops_per_second={"float64": 8e10}, memory_bytes_per_second=1e10, memory_bytes=8e9, overhead_seconds=0
    ... )
    >>> machine = Machine(name="toy", topology={"family": "star", "hosts": 4}, device=device)
    >>> with_faults(machine, degrade=["host:1>switch:0=0.5"]).faults.degrade
    {'host:1>switch:0': 0.5}

    Raises
    ------
    InputError : a word without `=`, or a share that is not above 0 and at most 1
    """
    old = machine.faults or Faults()
    faults = Faults(
        fail=(*old.fail, *fail),
        degrade=old.degrade | dict(_share("--degrade", word, "leaf:3>spine:1=0.5") for word in degrade),
        slow=old.slow | dict(_share("--slow", word, "gpu:7=0.8") for word in slow),
    )
    return machine if faults == Faults() else msgspec.structs.replace(machine, faults=faults)


def _share(flag: str, word: str, example: str) -> tuple[str, float]:
    """Name and share of `NAME=SHARE`."""
    name, _, text = word.rpartition("=")
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not name or not 0 < share <= 1:
        raise InputError(f"{flag} {word}: write NAME=SHARE with a share above 0 and at most 1, as {example}")
    return name, share


def _checked(raw: dict[str, Any], setting: str) -> Machine:
    files.check_finite(raw, f"--set {setting}")
    try:
        return msgspec.convert(raw, Machine)
    except msgspec.ValidationError as error:
        raise InputError(f"--set {setting}: {explain(error, raw, Machine)}") from None


def _change_to(text: str, setting: str) -> Change:
    """The change that `text` asks for: a factor after an x, or a new value."""
    if text[0] in "x×*" and text[1:]:
        try:
            factor = float(text[1:])
        except ValueError:
            factor = math.nan
        if factor > 0 and math.isfinite(factor):
            return lambda value: _scaled(value, factor, setting)
        if text[1].isdigit() or text[1] in "+-.":
            raise InputError(f"--set {setting}: the factor {text[1:]} is not a finite number above 0")
    return lambda value: _parsed(value, text, setting)


def _scaled(value: Any, factor: float, setting: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"--set {setting}: {value!r} is not a number and cannot be multiplied; set a value")
    product = value * factor
    if isinstance(value, float):
        return product
    if abs(product - round(product)) > 1e-9 * abs(product):
        raise InputError(f"--set {setting}: {value} times {factor:g} is {product:g}: a whole number is needed")
    return round(product)


def _parsed(value: Any, text: str, setting: str) -> Any:
    """`text` as a value of the type that `value` has."""
    if isinstance(value, str):
        return text
    if isinstance(value, bool):
        if text not in ("true", "false"):
            raise InputError(f"--set {setting}: {text!r} is not true or false")
        return text == "true"
    whole = isinstance(value, int)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (whole and number != int(number)):
        raise InputError(f"--set {setting}: {text!r} is not a {'whole' if whole else 'finite'} number")
    return int(number) if whole else number


def _change(table: Any, steps: list[str], change: Change, setting: str, done: list[str]) -> None:
    """Changes, in place, what `steps` lead to from `table`."""
    if isinstance(table, list | tuple):
        for row in table:
            _change(row, steps, change, setting, done)
        if not table:
            raise InputError(f"--set {setting}: {'.'.join(done)} has no rows in this machine")
        return
    step, rest = steps[0], steps[1:]
    if not isinstance(table, dict) or step not in table:
        accepted = f"accepted: {', '.join(table)}" if isinstance(table, dict) else "nothing lies below it"
        raise InputError(f"--set {setting}: {'.'.join(done) or 'the machine'} has no {step!r}; {accepted}")
    value, done = table[step], [*done, step]
    if rest:
        if value is None:
            raise InputError(f"--set {setting}: this machine has no {'.'.join(done)}")
        _change(value, rest, change, setting, done)
    else:
        table[step] = _changed(value, change, setting, ".".join(done))


def _changed(value: Any, change: Change, setting: str, path: str) -> Any:
    """`value`, or every number of a table or list of numbers, after the change."""
    entries = list(value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        if not entries:
            raise InputError(f"--set {setting}: {path} is empty in this machine")
        if not all(isinstance(entry, int | float) and not isinstance(entry, bool) for entry in entries):
            keys = list(value) if isinstance(value, dict) else list(entries[0]) if isinstance(entries[0], dict) else []
            raise InputError(
                f"--set {setting}: {path} is not a number; name one of {', '.join(map(str, keys))} below it"
            )
        if isinstance(value, dict):
            return {key: change(entry) for key, entry in value.items()}
        return [change(entry) for entry in value]
    return change(value)


def _take_rows_along(before: dict[str, Any], after: dict[str, Any], path: str) -> None:
    """Scales the measured rows by what the rate that they refine was scaled by."""
    if path.startswith("device.peak_flops_per_second"):
        for row in after["gemm"]:
            old, new = (rates["peak_flops_per_second"].get(row["dtype"]) for rates in (before, after))
            if old:
                row["flops_per_second"] *= new / old
    if path == "device.memory_bytes_per_second":
        for row in after["memory"]:
            row["bytes_per_second"] *= after["memory_bytes_per_second"] / before["memory_bytes_per_second"]


def _take_network_along(before: dict[str, Any], after: dict[str, Any], path: str) -> None:
    """Changes the measured steps between hosts as the links' bandwidth or latency was changed."""
    table, _, key = path.partition(".")
    rows = (after.get("network") or {}).get("transfer") or []
    if table != "topology" or not rows or not isinstance(after["topology"].get(key), int | float):
        return
    factor = after["topology"][key] / before["topology"][key] if before["topology"][key] else 1.0
    least: dict[tuple[str, int], float] = {}
    for row in rows:
        kind = row["pattern"], row["ranks"]
        least[kind] = min(row["seconds"], least.get(kind, row["seconds"]))
    for row in rows:
        first = least[row["pattern"], row["ranks"]]
        beyond = row["seconds"] - first
        if key.endswith("bandwidth_bytes_per_second"):
            row["seconds"] = first + beyond / factor
        elif key.endswith("latency_seconds"):
            row["seconds"] = first * factor + beyond
