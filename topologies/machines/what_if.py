"""What-if changes of a machine: settings `path=value` or `path=xFACTOR` (`--set`), faults and chunk sizes.

A path is a list of keys joined by dots.  A path through a list of rows, or a path
that ends at a table of numbers, changes every number there.  Values keep their type:
a whole number stays whole.

Measured rows of a machine change with the rate that they refine, because a faster
device keeps its efficiency:

    setting                          rows that change
    device.peak_flops_per_second     GEMMs of the dtype
    device.memory_bytes_per_second   memory and kernels
    topology: a latency              transfers and library collectives between hosts: least seconds of each kind
    topology: a bandwidth            transfers and library collectives between hosts: seconds beyond the least

A setting of what products achieve, such as device.achieved.product_share, also sets device.kernel_table to none,
because products from a table of measured kernels do not depend on it.

Transfers and collectives within one host cross no link, and may use other memory
than the device's; their rows change only by paths of their own.  A setting is an
error if it is unknown whether rows depend on it: attention depends on products or on
memory, and transfers between hosts on any of several bandwidths or latencies, unless
consecutive settings change all of these by one factor.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from quadrille.algorithms.errors import InputError, nearest_hint
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.field_errors import field_error_message
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS
from quadrille.algorithms.schedule.short_names import full_dtype
from quadrille.algorithms.units import LEAST_RATE, parse_measure
from quadrille.topologies.machines.machine import NO_TABLE, Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.quantity import name_with_unit

Change = Callable[[Any], Any]
BETWEEN_HOSTS = {"transfer": ("pattern", "ranks"), "library": ("kind", "ranks", "stride", "world_size", "calls")}
"""Keys that rows of network measurements have in common if they differ in size only, by the name of the table."""
OF_LINKS = ("bandwidth", "latency")
"""Quantities of a topology's links with which rows of network measurements change."""
OTHER_LATENCIES = ("back_to_back_latency_seconds", "sender_ack_delay_seconds")
"""Latencies of an emulated network that change with the topology's latencies."""
OF_PRODUCTS = frozenset(
    f"device.achieved.{name}" for name in ("product_share", "ramp", "tile_rows", "tile_columns", "multiprocessors")
)
"""Settings that only products without a table of measured kernels depend on."""
SAME_FACTOR = 1e-9
"""Relative difference up to which two factors are equal."""


def apply_settings(machine: Machine, settings: Iterable[str]) -> Machine:
    """The machine after these settings, applied in order.

    >>> from quadrille.topologies.machines.machine import Device
    >>> device = Device(
    ...     peak_flops_per_second={"float64": 8e10}, memory_bytes_per_second=1e10, memory_bytes=8e9, overhead_seconds=0
    ... )
    >>> machine = Machine(name="toy", topology={"family": "star", "hosts": 4}, device=device)
    >>> faster = apply_settings(machine, ["device.peak_flops_per_second=x2", "topology.hosts=8"])
    >>> faster.device.peak_flops_per_second, faster.topology["hosts"]
    ({'float64': 160000000000.0}, 8)

    Raises
    ------
    InputError : an unknown path (the message lists the keys), a value of the wrong type or out of range, or measured
        rows for which it is unknown whether they change
    """
    settings = tuple(settings)
    raw = _with_defaults(schema_files.plain_tables(machine), settings)
    for of_links, neighbours in groupby(settings, lambda setting: _path(setting).startswith("topology.")):
        before, together = raw, tuple(neighbours)
        for setting in together:
            raw = _apply_setting(raw, setting)
        if of_links:
            _scale_network_rows(before, raw, together)
            raw = schema_files.plain_tables(_checked_machine(raw, together[-1]))
    return _checked_machine(raw, "")


def _path(setting: str) -> str:
    """The path of a setting, with short names of dtypes replaced by full names.

    >>> _path("device.peak_flops_per_second.bf16=x2")
    'device.peak_flops_per_second.bfloat16'
    """
    path = setting.partition("=")[0].strip()
    table, _, key = path.rpartition(".")
    return f"{table}.{full_dtype(key)}" if table == "device.peak_flops_per_second" else path


def _keys_of_path(path: str, raw: dict[str, Any]) -> list[str]:
    """The keys of a path; an argument of the topology may be named with or without its unit."""
    table, _, key = path.rpartition(".")
    if table == "topology" and key not in raw["topology"] and name_with_unit(key) in raw["topology"]:
        return [table, name_with_unit(key)]
    return path.split(".")


def _with_defaults(raw: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The machine, with the default of each argument of a named machine's network that a setting changes."""
    family = raw["topology"].get("family")
    if family not in MACHINES:
        return raw
    defaults = MACHINES[family].optional_arguments()
    paths = [name_with_unit(_path(setting).removeprefix("topology.")) for setting in settings]
    missing = {key: defaults[key] for key in paths if key in defaults and key not in raw["topology"]}
    return {**raw, "topology": {**raw["topology"], **missing}}


def _apply_setting(before: dict[str, Any], setting: str) -> dict[str, Any]:
    """The machine after one setting, and after the change of the device's rows that follows from it."""
    path, text = _path(setting), setting.partition("=")[2].strip()
    if not path or not text:
        raise InputError(f"--set {setting}: write PATH=VALUE or PATH=xFACTOR, as device.memory_bytes=x2")
    after = schema_files.plain_tables(before)
    _change_in_place(after, _keys_of_path(path, after), _change_to(text, setting), setting, [])
    after = schema_files.plain_tables(_checked_machine(after, setting))
    _scale_device_rows(before["device"], after["device"], path, setting)
    if path in OF_PRODUCTS and after["device"]["kernel_table"]:
        after["device"]["kernel_table"] = NO_TABLE
    return schema_files.plain_tables(_checked_machine(after, setting))


def with_faults(
    machine: Machine, *, fail: Iterable[str] = (), degrade: Iterable[str] = (), slow: Iterable[str] = ()
) -> Machine:
    """The machine with additional faults: failed links, degraded links (`LINK=SHARE`) and slow GPUs (`GPU=SHARE`).

    The names of links and GPUs are checked when the topology is built.

    >>> from quadrille.topologies.machines.machine import Device
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


def in_chunks(machine: Machine, chunk_bytes: int | None) -> Machine:
    """The machine with another chunk size of messages, if it emulates an eager protocol; measured rows stay the same.

    Parameters
    ----------
    chunk_bytes : size of a chunk [B]; 0 for undivided messages; None keeps the machine's chunk size
    """
    emulation = machine.emulation
    if emulation is None or not emulation.eager or chunk_bytes is None:
        return machine
    return msgspec.structs.replace(machine, emulation=msgspec.structs.replace(emulation, chunk_bytes=chunk_bytes))


def _share(flag: str, word: str, example: str) -> tuple[str, float]:
    """Name and share of the word `NAME=SHARE` of a flag."""
    name, _, text = word.rpartition("=")
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not name or not 0 < share <= 1:
        raise InputError(f"{flag} {word}: write NAME=SHARE with a share above 0 and at most 1, as {example}")
    if share < LEAST_RATE:
        raise InputError(f"{flag} {word}: a share of {LEAST_RATE:g} and more is accepted, as in a machine file")
    return name, share


def _checked_machine(raw: dict[str, Any], setting: str) -> Machine:
    schema_files.check_finite(raw, f"--set {setting}")
    try:
        return msgspec.convert(raw, Machine)
    except msgspec.ValidationError as error:
        raise InputError(f"--set {setting}: {field_error_message(error, raw, Machine)}") from None


def _change_to(text: str, setting: str) -> Change:
    """The function that changes a value as `text` says: multiplication after an x, else replacement."""
    if text[0] in "x×*" and text[1:]:
        try:
            factor = float(text[1:])
        except ValueError:
            factor = math.nan
        if factor > 0 and math.isfinite(factor):
            return lambda value: _scaled_number(value, factor, setting)
        if text[1].isdigit() or text[1] in "+-.":
            raise InputError(f"--set {setting}: the factor {text[1:]} is not a finite number above 0")
    return lambda value: _parsed_value(value, text, setting)


def _number(text: str, setting: str) -> float:
    """The number in `text`, which may have a unit; NaN if it is not a number."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return -parse_measure(text[1:], _path(setting)) if text[:1] == "-" else parse_measure(text, _path(setting))
    except InputError as error:
        if text.removeprefix("-")[:1].isdigit():
            raise InputError(f"--set {setting}: {error}") from None
    return math.nan


def _scaled_number(value: Any, factor: float, setting: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"--set {setting}: {value!r} is not a number and cannot be multiplied; set a value")
    product = value * factor
    if isinstance(value, float):
        return product
    if abs(product - round(product)) > 1e-9 * abs(product):
        raise InputError(f"--set {setting}: {value} times {factor:g} is {product:g}: a whole number is needed")
    return round(product)


def _parsed_value(value: Any, text: str, setting: str) -> Any:
    """The text as a value of the type of `value`."""
    if isinstance(value, str):
        return text
    if isinstance(value, bool):
        if text not in ("true", "false"):
            raise InputError(f"--set {setting}: {text!r} is not true or false")
        return text == "true"
    whole = isinstance(value, int)
    number = _number(text, setting)
    if not math.isfinite(number) or (whole and number != int(number)):
        raise InputError(f"--set {setting}: {text!r} is not a {'whole' if whole else 'finite'} number")
    return int(number) if whole else number


def _change_in_place(table: Any, steps: list[str], change: Change, setting: str, done: list[str]) -> None:
    """Changes, in place, the values at path `steps` of `table`; `done` are the keys that lead to `table`."""
    if isinstance(table, list | tuple):
        for row in table:
            _change_in_place(row, steps, change, setting, done)
        if not table:
            raise InputError(f"--set {setting}: {'.'.join(done)} has no rows in this machine")
        return
    step, rest = steps[0], steps[1:]
    if not isinstance(table, dict) or step not in table:
        accepted = f"accepted: {', '.join(table)}" if isinstance(table, dict) else "nothing lies below it"
        accepted += nearest_hint(step, table if isinstance(table, dict) else ()) if done else _lower_hint(step, table)
        raise InputError(f"--set {setting}: {'.'.join(done) or 'the machine'} has no {step!r}; {accepted}")
    value, done = table[step], [*done, step]
    if rest:
        if value is None:
            raise InputError(f"--set {setting}: this machine has no {'.'.join(done)}")
        _change_in_place(value, rest, change, setting, done)
    else:
        table[step] = _changed_value(value, change, setting, ".".join(done))


def _lower_hint(step: str, machine: dict[str, Any]) -> str:
    """The end of a message that suggests quantities of a machine's tables whose names begin alike."""
    tables = {name: table for name, table in machine.items() if isinstance(table, dict)}
    alike = [f"{name}.{key}" for name, table in tables.items() for key in table if key.startswith(step)]
    return f"; did you mean {' or '.join(alike)}?" if alike else nearest_hint(step, machine)


def _changed_value(value: Any, change: Change, setting: str, path: str) -> Any:
    """The value after the change; of a table or list, every number after the change."""
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


def _scale_device_rows(before: dict[str, Any], after: dict[str, Any], path: str, setting: str) -> None:
    """Scales the measured rows of a device by the factor of the peak rate that a setting changed."""
    if path.startswith("device.peak_flops_per_second"):
        old, new = before["peak_flops_per_second"], after["peak_flops_per_second"]
        faster = {dtype: new[dtype] / old[dtype] for dtype in old}
        for row in after["gemm"]:
            row["flops_per_second"] *= faster.get(row["dtype"], 1.0)
        for row in after["passes"]:
            if row["operation"].startswith("product"):
                row["seconds"] /= faster.get(row["dtype"], 1.0)
        _check_no_attention((row for row in after["kernel"] if faster.get(row["dtype"], 1.0) != 1.0), setting)
    if path == "device.memory_bytes_per_second":
        factor = after["memory_bytes_per_second"] / before["memory_bytes_per_second"]
        for row in after["memory"]:
            row["bytes_per_second"] *= factor
        for row in (*after["kernel"], *after["passes"]):
            if not row.get("operation", "").startswith("product"):
                row["seconds"] /= factor
        _check_no_attention(after["kernel"] if factor != 1.0 else (), setting)


def _check_no_attention(rows: Iterable[dict[str, Any]], setting: str) -> None:
    """Raises InputError for rows of attention kernels, whose time may depend on products or on memory."""
    for row in rows:
        if row["function"] in ATTENTION_PRODUCTS:
            raise InputError(
                f"--set {setting}: device.kernel has rows of {row['function']}, which do not say whether products or "
                "memory held it up: take them out of the machine file"
            )


def _scale_network_rows(before: dict[str, Any], after: dict[str, Any], settings: Sequence[str]) -> None:
    """Changes the rows measured between hosts by the factors of the links' bandwidths and latencies."""
    measured = {name: rows for name in BETWEEN_HOSTS if (rows := (after.get("network") or {}).get(name))}
    names = "rows of " + " and ".join(f"network.{name}" for name in measured)
    for quantity in OF_LINKS:
        changing = [setting for setting in settings if _quantity(_path(setting)) == quantity]
        if not (measured and changing):
            continue
        factor = _common_factor(before["topology"], after["topology"], quantity, f"--set {changing[-1]}: {names}")
        for name, rows in measured.items():
            _scale_rows(rows, BETWEEN_HOSTS[name], quantity, factor)
        if quantity == "latency":
            for name in OTHER_LATENCIES:
                if (emulation := after.get("emulation")) and emulation.get(name):
                    emulation[name] *= factor


def _common_factor(old: dict[str, Any], new: dict[str, Any], quantity: str, rows: str) -> float:
    """The factor by which all bandwidths, or latencies, of a topology were multiplied.

    Parameters
    ----------
    old, new : arguments of the topology before and after the settings
    quantity : "bandwidth" or "latency"
    rows : begin of error messages, which names the setting and the rows

    Raises
    ------
    InputError : several factors, or a change that is not a factor
    """
    factors = {key: _factor(old[key], new[key]) for key in new if _quantity(key) == quantity}
    if unknown := [key for key, factor in factors.items() if factor is None]:
        raise InputError(
            f"{rows} were measured at {old[unknown[0]]}, and do not say what they take otherwise: change their "
            "seconds, or take them out of the machine file"
        )
    numbers = [factor for factor in factors.values() if factor is not None]
    if not _are_equal(numbers):
        raise InputError(
            f"{rows} do not say which of {', '.join(factors)} held them up: change all by one factor in --sets next "
            "to each other, or take them out of the machine file"
        )
    return numbers[0]


def _are_equal(factors: Sequence[float]) -> bool:
    return max(factors) <= min(factors) * (1 + SAME_FACTOR)


def _quantity(key: str) -> str | None:
    """The quantity of a link ("bandwidth", "latency") that an argument of a topology, or a path to it, is; else None.

    >>> _quantity("uplink_bandwidth"), _quantity("topology.latency_seconds"), _quantity("hosts")
    ('bandwidth', 'latency', None)
    """
    argument = key.removeprefix("topology.")
    word = argument.removesuffix("_bytes_per_second").removesuffix("_seconds").rpartition("_")[2]
    return word if word in OF_LINKS else None


def _factor(old: Any, new: Any) -> float | None:
    """The factor by which a number, or every number of a list, was multiplied; None if there is no single factor.

    >>> _factor(2, 3), _factor([2.0, 4.0], [1.0, 2.0]), _factor([2.0, 4.0], [2.0, 2.0]), _factor("25e9x1e9", "1e9x1e9")
    (1.5, 0.5, None, None)
    """
    if old == new:
        return 1.0
    pairs = list(zip(old, new, strict=True)) if isinstance(old, list | tuple) else [(old, new)]
    if not all(isinstance(number, int | float) and number for pair in pairs for number in pair):
        return None
    factors: list[float] = [now / was for was, now in pairs]
    return factors[0] if _are_equal(factors) else None


def _scale_rows(rows: Sequence[dict[str, Any]], keys: tuple[str, ...], quantity: str, factor: float) -> None:
    """Scales the least seconds of each kind of row with the latency, and the seconds beyond with the bandwidth.

    Parameters
    ----------
    rows : measured rows, changed in place
    keys : keys whose values make the kind of a row
    """
    for name in ("seconds", "back_to_back_seconds"):
        timed, least = [row for row in rows if name in row], dict[tuple[Any, ...], float]()
        for row in timed:
            kind = tuple(row.get(key) for key in keys)
            least[kind] = min(row[name], least.get(kind, row[name]))
        for row in timed:
            first = least[tuple(row.get(key) for key in keys)]
            beyond = row[name] - first
            row[name] = first * factor + beyond if quantity == "latency" else first + beyond / factor
