"""Schema files: JSON or TOML files with a schema name and version, checked when they are read, written atomically.

A file starts with its schema, `quadrille/NAME/VERSION`.  Checks run in this order, and the first fault is reported: the
file is readable; it is JSON or TOML; it has the expected schema; every number is finite; every field is known, present,
and of the right type and range.

A file is written to a hidden temporary file in the same folder, which then replaces the target, so a reader sees the
old file or the new one.  The name `-` is stdout.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.atomic_files import replace_file, target_of
from quadrille.algorithms.formats.field_errors import field_error_message
from quadrille.algorithms.formats.input_files import parse_json, parse_toml, read_text
from quadrille.algorithms.formats.renamed_keys import Renames

T = TypeVar("T")
STDOUT = "-"
DECEPTIVE = re.compile(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that JSON need not escape and that a terminal obeys."""


def read(
    path: str | Path,
    form: type[T],
    schema: str,
    older: Mapping[str, Renames] | None = None,
    *,
    expand: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> T:
    """Returns the value of type `form` in the file at `path` under `schema`.

    Parameters
    ----------
    path : path of the file
    form : type of its content, a `msgspec.Struct`
    schema : accepted schema, `quadrille/NAME/VERSION`
    older : schemas of older versions that are accepted too, each with its renamed keys
    expand : replaces abbreviations in the content before it is checked

    Raises
    ------
    InputError : a file that is missing, truncated, of another kind, of a newer version, or has a faulty field
    """
    description = f"{schema.split('/')[1]} file {path}"
    raw = _parse(_content(Path(path), description), description, json=Path(path).suffix == ".json")
    file_schema = raw.pop("schema", None)
    if older is not None and isinstance(file_schema, str) and file_schema in older:
        return _convert(expand(older[file_schema].upgraded(raw)), form, description)
    _check_schema(file_schema, schema, description)
    return _convert(expand(raw), form, description)


def write_json(path: str | Path, value: object, schema: str, *, indent: int = 2, mode: int | None = None) -> None:
    """Writes `value` as JSON under `schema`.

    Parameters
    ----------
    path : path of the file; `-` is stdout
    value : content, a `msgspec.Struct`
    schema : schema, `quadrille/NAME/VERSION`
    indent : spaces of a level; a negative number writes one line
    mode : permissions, as in `write_bytes`
    """
    text = msgspec.json.format(msgspec.json.encode(_checked(path, value, schema)), indent=indent)
    write_text(path, DECEPTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.decode()) + "\n", mode)


def write_toml(path: str | Path, value: object, schema: str) -> None:
    """Writes `value` as TOML under `schema`."""
    from quadrille.algorithms.formats.toml_writer import toml_text

    write_text(path, toml_text(_checked(path, value, schema)))


def write_text(path: str | Path, text: str, mode: int | None = None) -> None:
    """Writes `text` to the file atomically; `mode` gives permissions as in `write_bytes`.

    Raises
    ------
    InputError, RunError : a path that cannot be written; a full disk
    """
    if str(path) == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_bytes(path, text.encode("utf-8"), mode)


def write_bytes(path: str | Path, content: bytes, mode: int | None = None) -> None:
    """Writes `content` to the file atomically.

    Parameters
    ----------
    mode : permissions, whatever the umask; by default those of the file that is replaced, or of any new file

    Raises
    ------
    InputError, RunError : a path that cannot be written; a full disk
    """
    check_writable(path)
    try:
        if is_stream(path):
            _write_stream(path, content)
        else:
            replace_file(target_of(path), content, mode)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; what was there is as it was") from error


def check_writable(path: str | Path) -> None:
    """Raises InputError if a file at `path` cannot be written; for use before a long run."""
    if str(path) == STDOUT:
        return
    if is_stream(path):
        return
    target = target_of(path)
    if target.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder; name a file")
    if not target.parent.is_dir():
        raise InputError(f"{path} cannot be written: the folder {target.parent} does not exist")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} cannot be written: it is no regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"{path} cannot be written: the file is read-only")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: the folder {target.parent} is read-only")


def is_stream(path: str | Path) -> bool:
    """Whether the path leads to a pipe or a device of this user or root, such as /dev/null; it is written directly."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return False
    mode = status.st_mode
    kind = stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return kind and status.st_uid in (0, os.geteuid()) and os.access(path, os.W_OK)


def _write_stream(path: str | Path, content: bytes) -> None:
    """Writes to a pipe or a device; a pipe without a reader is an error."""
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _content(path: Path, description: str) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise InputError(f"{description} does not exist") from None
    except OSError as error:
        raise InputError(f"{description} cannot be read: {error.strerror}") from None


def _parse(text: str, description: str, *, json: bool) -> dict[str, Any]:
    """Returns the table in `text`: JSON if the name says so or the text starts with a brace, otherwise TOML."""
    try:
        raw = parse_json(text) if json or text.lstrip().startswith("{") else parse_toml(text)
    except ValueError as error:
        raise InputError(f"{description} {error}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{description} holds {raw!r:.40}: a table with a schema is needed")
    return raw


def _check_schema(file_schema: object, schema: str, description: str) -> None:
    name, _, version = schema.rpartition("/")
    if file_schema == schema:
        return
    if file_schema is None:
        raise InputError(f'{description} names no schema: schema = "{schema}" is needed')
    found_name, _, found_version = str(file_schema).rpartition("/")
    if found_name == name and found_version.isdigit() and int(found_version) > int(version):
        raise InputError(
            f"{description} has the schema {file_schema}, newer than this Quadrille reads: up to {schema} is accepted"
        )
    raise InputError(f"{description} has the schema {file_schema!r:.60}: {schema} is accepted")


def _convert(raw: dict[str, Any], form: type[T], description: str) -> T:
    check_finite(raw, description)
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        raise InputError(f"{description}: {field_error_message(error, raw, form)}") from None


def _checked(path: str | Path, value: object, schema: str) -> dict[str, Any]:
    """Returns `value` as plain tables under its schema, checked to be readable."""
    table = plain_tables(value)
    _convert(table, type(value), f"{schema.split('/')[1]} for {path}")
    return {"schema": schema, **table}


def plain_tables(value: object) -> dict[str, Any]:
    """Returns `value` as tables, lists, strings and numbers."""
    tables: dict[str, Any] = msgspec.to_builtins(value, enc_hook=_plain_number)
    return tables


def _plain_number(value: Any) -> Any:
    """Returns the Python number in a NumPy scalar."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in a file")


def check_finite(value: object, description: str, path: str = "") -> None:
    """Raises InputError if a number in these tables is NaN or infinite."""
    if isinstance(value, float) and not isfinite(value):
        raise InputError(f"{description}: {path} = {value}: a finite number is needed")
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_finite(item, description, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_finite(item, description, f"{path}[{index}]")
