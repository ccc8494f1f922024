"""Experiment files: a TOML file whose keys are names of flags, or a record whose command is repeated.

A file of another program's job stands for the experiment that `quadrille import job` makes of it.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

import click

from quadrille.algorithms.errors import InputError, nearest_hint
from quadrille.algorithms.formats.input_files import parse_toml, read_text
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.cli.command_declarations import typed

SCHEMA = "quadrille/experiment/1"
ACCEPTED = "an experiment file (TOML with the key matmul, mlp or gpt) or the configuration of a job is accepted"
REWORDED = ("attention", "recompute")
"""Parameters whose words had another meaning in older records; their values come from the record's options."""
DESTINATIONS = (
    "json",
    "csv",
    "trace",
    "timeline",
    "ranks",
    "plot",
    "plot_of",
    "figure",
    "report",
    "save",
    "c",
    "da",
    "db",
    "from_record",
)
"""Parameters that name output files; they are not taken from a record's command."""
REPEATED = ("simulate", "run", "schedule")
"""Commands that a record can repeat."""


def take_file(context: click.Context, _parameter: click.Parameter, path: str) -> str:
    """Make the values of an experiment file the command's defaults; typed flags override them; returns the path."""
    if path and not context.resilient_parsing:
        context.default_map = {**(context.default_map or {}), **values_of_file(path, options_of(context.command))}
    return path


def take_record(context: click.Context, _parameter: click.Parameter, path: str) -> str:
    """Make the values of a record's command the defaults of this command; returns the path.

    The command that new records name has these values as flags instead of `--from`, so that it needs no file.
    """
    if path and not context.resilient_parsing:
        values = values_of_record(path, context)
        context.default_map = {**values, **(context.default_map or {})}
        context.obj = _without_record(context, values)
    return path


def _without_record(context: click.Context, values: Mapping[str, Any]) -> list[str]:
    """The words of the command line with a record's values in the place of `--from`; typed flags win."""
    words: list[str] = list(context.obj or [])
    at = next((place for place, word in enumerate(words) if word.split("=")[0] == "--from"), None)
    if at is None:
        return words
    before, after = words[:at], words[at + (1 if "=" in words[at] else 2) :]
    start = before.index(context.info_name or "") + 1
    inner = context.command.make_context(context.info_name or "", [*before[start:], *after], resilient_parsing=True)
    untyped = {name: value for name, value in values.items() if name not in typed(inner, inner.params)}
    return [*before, *_words_of_values(untyped, context.command), *after]


def _words_of_values(values: Mapping[str, Any], command: click.Command) -> list[str]:
    """The words of a command line that give these values to parameters of the command."""
    words: list[str] = []
    for parameter in command.params:
        if parameter.name not in values:
            continue
        value, flag = values[parameter.name], parameter.opts[0]
        if isinstance(parameter, click.Argument):
            words.append(value)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words += [flag] if value else parameter.secondary_opts[:1]
        elif parameter.multiple:
            words += [word for item in value for word in (flag, item)]
        else:
            words += [flag, value]
    return words


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by their names without leading dashes.

    >>> from quadrille.cli.app import app
    >>> import quadrille.cli.experiment_commands
    >>> command = app.commands["simulate"]
    >>> options_of(command)["set"].name, options_of(command)["micro-batch"].name
    ('settings', 'micro_batch')
    """
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {name.lstrip("-"): option for option in options for name in option.opts}


def values_of_file(path: str, options: Mapping[str, click.Option]) -> dict[str, Any]:
    """The values of an experiment file, by parameter.

    Keys are the names of flags; `_` may stand for `-`. A list stands for values with commas, and a table for
    `key=value,…`.

    Raises
    ------
    InputError : no such file, no TOML, a key that is no flag, or a value of a wrong type
    """
    values = {}
    for key, value in _table(path, options).items():
        name = hyphenated(key)
        if name not in options:
            hint = nearest_hint(name, options, 1)
            raise InputError(f"{path}: {key} is no flag of this command{hint}: keys are the names of flags")
        values[str(options[name].name)] = _value(path, key, value, options[name])
    return values


def _table(path: str, options: Mapping[str, click.Option]) -> dict[str, Any]:
    """The content of a TOML file without its schema key; that of the experiment for the job of another program."""
    try:
        text = read_text(path)
    except OSError as fault:
        raise _other_file(path) or InputError(f"{path}: cannot be read: {fault.strerror}") from None
    try:
        table = parse_toml(text)
    except ValueError as fault:
        if (job := _job_table(path, text)) is None:
            raise _other_file(path) or InputError(f"{path} {fault}: {ACCEPTED}") from None
        table = job
    if not table and (error := _other_file(path)):
        raise error
    if not any(hyphenated(key) in options for key in table):
        table = _job_table(path, text) or table
    if (schema := table.pop("schema", SCHEMA)) != SCHEMA:
        raise InputError(f"{path}: schema {schema!r:.60}: an experiment file has schema {SCHEMA!r}")
    return table


def _other_file(path: str) -> InputError | None:
    """The error about a record, or about a file of another command; None for a file of no known kind."""
    from quadrille.experiments.import_.file_kinds import is_record, other_kind

    if is_record(path):
        return InputError(f"{path}: is a record: --from {path} repeats its experiment")
    reason = other_kind("simulate", path)
    return InputError(f"{path}: {reason}: {ACCEPTED}") if reason else None


def _job_table(path: str, text: str) -> dict[str, Any] | None:
    """The experiment of a job of another program, as `import job` makes it; None for another file.

    Raises
    ------
    InputError : a job that needs more than the file, or of which an experiment cannot express something
    """
    from quadrille.experiments.import_.imported_job import Asked
    from quadrille.experiments.import_.job_formats import is_job, read_job
    from quadrille.runtime.host.console import remark_all

    if SCHEMA in text or not is_job(text):
        return None
    try:
        job = read_job([path], Asked())
    except InputError as error:
        raise InputError(f"{error} (see quadrille import job --help)") from None
    if job.differences:
        raise InputError(
            f"{path}: {'; '.join(job.differences)}: quadrille import job --approximate goes on all the same"
        )
    remark_all(f"{path}: {words}" for words in job.remarks)
    return parse_toml(job.text)


def _value(path: str, key: str, value: object, option: click.Option) -> Any:
    """A value of the file as the command line would give it to the command."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{path}: {key} = {value!r:.60}: true or false is accepted")
        return value
    if option.multiple:
        return [_word(path, key, item) for item in value] if isinstance(value, list) else _pairs(path, key, value)
    return _word(path, key, value)


def _pairs(path: str, key: str, value: object) -> list[str]:
    """The values of a flag that may be given several times."""
    if isinstance(value, dict):
        return [f"{name}={_word(path, key, item)}" for name, item in value.items()]
    return [_word(path, key, value)]


def _word(path: str, key: str, value: object) -> str:
    """One value of the file as the text that a user would type.

    >>> _word("job.toml", "grid", {"z": 2, "x": 2}), _word("job.toml", "matmul", [4, 5, 6])
    ('z=2,x=2', '4,5,6')
    """
    if isinstance(value, bool) or value is None:
        raise InputError(f"{path}: {key} = {str(value).lower()}: a number, a word, a list or a table is accepted")
    if isinstance(value, dict):
        return ",".join(f"{name}={_word(path, key, item)}" for name, item in value.items())
    if isinstance(value, list):
        return ",".join(_word(path, key, item) for item in value)
    return str(value)


def values_of_record(path: str, context: click.Context) -> dict[str, Any]:
    """The flag values of a record's experiment, by parameter, without output files.

    Raises
    ------
    InputError : a file that is no record, or a record that was not made on the command line
    """
    from quadrille.algorithms.formats.record import load_record

    record = load_record(path)
    made_by = record.provenance.command if record.provenance is not None else ""
    words = _words_of_experiment(made_by)
    if words is None:
        origin = f"is of the command {made_by!r:.80}" if made_by else "names no command line"
        raise InputError(f"--from {path}: its record {origin}: a record of simulate or run is accepted")
    inner = context.command.make_context(context.info_name or "", list(words), resilient_parsing=True)
    names = {parameter.name for parameter in context.command.params}
    values = {name: inner.params[name] for name in typed(inner, inner.params) & names - {*DESTINATIONS}}
    options = {name: getattr(record.options, name) for name in REWORDED}
    return values | {name: word for name, word in options.items() if word and name in names}


def _words_of_experiment(command: str) -> list[str] | None:
    """The words after `simulate`, `run` or `schedule` in a command line; None if it has no such command.

    >>> _words_of_experiment("quadrille launch -n 2 run --matmul 4,4,4 --grid z=2")
    ['--matmul', '4,4,4', '--grid', 'z=2']
    >>> _words_of_experiment("python mine.py") is None
    True
    """
    words = shlex.split(command) if command else []
    if not words or not re.search(r"quadrille", words[0]):
        return None
    return next((words[at + 1 :] for at, word in enumerate(words) if word in REPEATED), None)
