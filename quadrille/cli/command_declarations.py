"""Declaration of commands: a function with annotated parameters becomes a click command.

A command is a function whose parameters are annotated with `flag`, `switch`, `toggle` or `argument`:

    @app.command()
    def explain(context: click.Context, record: Annotated[str, argument("FILE", "A record.")], json: Json = "") -> None:

The function gets the values as typed. The help text lists the flags of a command in panels.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import click
from click.core import ParameterSource

from quadrille.algorithms.errors import InputError, nearest_hint
from quadrille.algorithms.formats.input_files import is_file, is_folder
from quadrille.cli.help_panels import PANELS, panel_of

if TYPE_CHECKING:
    from quadrille.experiments.predict.roofline import Roofline

HELP_WIDTH = 120
"""The most columns of a help page."""
CONTEXT: Mapping[str, Any] = {"max_content_width": HELP_WIDTH, "help_option_names": ["-h", "--help"]}
Callback = Callable[[click.Context, click.Parameter, Any], Any]
Complete = Callable[[], Sequence[str]]
"""A function that returns the possible values of a flag, for shell completion."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of a command.

    Parameters
    ----------
    names : names of the option, such as `--grid`; `--on/--off` for a toggle
    metavar : placeholder of the value in the help text
    text : help text
    is_switch : whether the option has no value
    complete : function that returns the possible values, for shell completion
    callback : function that is called with the value before other flags are read
    """

    names: tuple[str, ...]
    metavar: str
    text: str
    is_switch: bool = False
    complete: Complete | None = None
    callback: Callback | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument of a command; its parameters are those of `Flag`."""

    metavar: str
    text: str
    complete: Complete | None = None
    callback: Callback | None = None


def flag(
    name: str,
    metavar: str,
    text: str,
    *more_names: str,
    complete: Complete | None = None,
    callback: Callback | None = None,
) -> Flag:
    """An option with a value. The command gets the value as typed, parses it, and reports wrong values."""
    return Flag((name, *more_names), metavar, text, complete=complete, callback=callback)


def switch(name: str, text: str) -> Flag:
    """An option without a value."""
    return Flag((name,), "", text, is_switch=True)


def toggle(name: str, text: str) -> Flag:
    """An option without a value, with an opposite `--no-…`.

    >>> toggle("--simgrid", "Run SimGrid too.").names
    ('--simgrid/--no-simgrid',)
    """
    return Flag((f"{name}/--no-{name.removeprefix('--')}",), "", text, is_switch=True)


def argument(
    metavar: str, text: str, *, complete: Complete | None = None, callback: Callback | None = None
) -> Argument:
    """A positional argument."""
    return Argument(metavar, text, complete, callback)


def with_report(
    command: Callable[..., Any], rooflines: "Callable[[str], Roofline | None] | None" = None
) -> Callable[..., Any]:
    """A command that has the parameter `json`, with the flag `--report`: its answer becomes a report.

    Parameters
    ----------
    rooflines : function that returns the roofline of a record, by path; None for an answer that is about no record
    """

    @wraps(command)
    def reporting(*arguments: Any, report: str = "", **values: Any) -> Any:
        if not report or (values.get("resume") and not values["json"]):
            return command(*arguments, **values)
        from quadrille.cli.report_option import run_and_report

        return run_and_report(command, report, arguments, values, rooflines)

    kind = flag("--report", "FILE.html", "Write a report of the result in one HTML file.")
    parameter = Parameter("report", Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, kind])
    declared = Signature([*signature(command).parameters.values(), parameter])
    reporting.__signature__ = declared  # type: ignore[attr-defined]
    return reporting


def typed(context: click.Context, values: Iterable[str]) -> set[str]:
    """The names of the parameters that were typed on the command line or given in the experiment file."""
    sources = {name: context.get_parameter_source(name) for name in values}
    explicit = {ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP}
    return {name for name, source in sources.items() if source in explicit}


WHOLE_SENTENCE = 1000
"""Length in characters to which click cuts the first sentence of a help text: longer than any sentence."""


class Command(click.Command):
    """A click command whose help text lists its flags in panels."""

    def __init__(self, *arguments: Any, usage: str = "", **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.usage = usage

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The words after the name of the command in its usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return [self.usage, *pieces[1:]] if self.usage else pieces

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the flags by panel."""
        words = [
            (parameter.make_metavar(ctx), getattr(parameter, "text", ""))
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Argument)
        ]
        if words:
            with formatter.section("Arguments"):
                formatter.write_dl(words)
        for title, options in _by_panel(self.get_params(ctx)):
            rows = [row for option in options if (row := option.get_help_record(ctx)) is not None]
            with formatter.section(title):
                formatter.write_dl(rows)


def _by_panel(parameters: Sequence[click.Parameter]) -> Iterator[tuple[str, list[click.Option]]]:
    """The titles of the panels that have options, each with its options, in the order of the panels."""
    options = [parameter for parameter in parameters if isinstance(parameter, click.Option)]
    panels = {parameter.name: panel_of(parameter.name or "") for parameter in options}
    titles = set(panels.values())
    for title in PANELS:
        if title in titles:
            yield (
                "Options" if len(titles) == 1 else title,
                [parameter for parameter in options if panels[parameter.name] == title],
            )


class Text(click.types.StringParamType):
    """The type of values: text as typed, which is not empty where an empty text means that the value is left out.

    An unset variable of a shell, as in `--store "$STORE"`, would drop an output file without a word.
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text of a value.

        Raises
        ------
        InputError : a typed text is empty, and the value is required, a file, or empty by default
        """
        if value != "" or param is None or ctx is None:
            return value
        is_typed = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        placeholder = param.make_metavar(ctx).strip("[]")
        if is_typed and (param.required or param.default == "" or placeholder.startswith("FILE")):
            name = param.opts[0] if isinstance(param, click.Option) else placeholder
            more = "" if param.required else ", or leave it out"
            raise InputError(f"{name} '': a value is empty; give {placeholder}{more}")
        return value


class DescribedArgument(click.Argument):
    """A click argument with a help text, which click's own arguments lack."""

    def __init__(self, *arguments: Any, text: str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.text = text


@dataclass(frozen=True, slots=True)
class CommandModule:
    """The names of the commands that one module declares, and the function that imports the module.

    The module is imported only when one of its commands is called.
    """

    commands: tuple[str, ...]
    load: Callable[[], object]


class Group(click.Group):
    """A click group whose commands are listed in panels, and imported when they are called."""

    def __init__(self, name: str, text: str, **more: Any) -> None:
        super().__init__(name, help=text, context_settings=dict(CONTEXT), no_args_is_help=False, **more)
        self.modules: list[CommandModule] = []
        self.panels: dict[str, tuple[str, ...]] = {}
        self.command_of: Callable[[str], str] | None = None
        """Function that returns the command for a word that names a file instead of a command."""

    def command(  # type: ignore[override]
        self,
        name: str = "",
        *,
        text: str = "",
        usage: str = "",
        context_settings: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that adds a function as a command.

        Parameters
        ----------
        name : name of the command; by default the function's name
        text : help text; by default the function's docstring
        usage : words after the command in its usage line
        context_settings : settings of click's context
        """

        def declared(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add_command(
                Command(
                    name or function.__name__.replace("_", "-"),
                    callback=_callback(function),
                    params=list(_parameters(signature(function))),
                    help=text or function.__doc__,
                    usage=usage,
                    context_settings={**CONTEXT, **(context_settings or {})},
                )
            )
            return function

        return declared

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; the module that declares it is imported first, or all if no module names it."""
        if cmd_name not in self.commands:
            for module in [module for module in self.modules if cmd_name in module.commands] or self.modules:
                module.load()
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands: the commands of the panels in their order, then all others."""
        for module in self.modules:
            module.load()
        listed = [name for names in self.panels.values() for name in names if name in self.commands]
        return listed + [name for name in self.commands if name not in listed]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and return its status; an interruption causes click.Abort, without click's empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            raise click.Abort from interruption

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the words name.

        Raises
        ------
        click.UsageError : no command has that name; the message names similar commands
        """
        word = args[0]
        names_file = is_file(word) or is_folder(word) or (bool(re.search(r"[./]", word)) and not word.startswith("-"))
        if self.command_of is not None and names_file and self.get_command(ctx, word) is None:
            return self.resolve_command(ctx, [self.command_of(word), *args])
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing:
            if word.startswith("-"):
                raise click.NoSuchOption(word, ctx=ctx)
            ctx.fail(f"No such command {word!r}{nearest_hint(word, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by panel, each with the whole first sentence of its help."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            title = next((title for title, listed in self.panels.items() if name in listed), "Commands")
            sentence = self.commands[name].get_short_help_str(limit=WHOLE_SENTENCE)
            rows.setdefault(title, []).append((name.ljust(width), sentence))
        for title, commands in rows.items():
            with formatter.section(title):
                formatter.write_dl(commands)


def _callback(function: Callable[..., Any]) -> Callable[..., Any]:
    """The callback of a click command: it calls the function with the context and lists, if the function takes them."""
    parameters = signature(function).parameters.values()
    takes_context = any(parameter.annotation is click.Context for parameter in parameters)
    lists = {parameter.name for parameter in parameters if get_args(parameter.annotation)[:1] == (list[str],)}

    def call(**values: Any) -> Any:
        values = {name: list(value) if name in lists else value for name, value in values.items()}
        return function(click.get_current_context(), **values) if takes_context else function(**values)

    return call


def _parameters(function_signature: Signature) -> Iterator[click.Parameter]:
    """The parameters that click needs, from the annotated parameters of a function."""
    for parameter in function_signature.parameters.values():
        if parameter.annotation is click.Context:
            continue
        value_type, kind = get_args(parameter.annotation)
        assert isinstance(kind, Flag | Argument), f"{parameter.name} is neither a flag nor an argument"
        if isinstance(kind, Argument):
            yield _click_argument(parameter, value_type, kind)
        else:
            yield _click_option(parameter, value_type, kind)


def _click_argument(parameter: Parameter, value_type: Any, kind: Argument) -> click.Argument:
    required = parameter.default is Parameter.empty
    many = value_type == list[str]
    return DescribedArgument(
        [parameter.name],
        text=kind.text,
        metavar=kind.metavar,
        required=required,
        nargs=-1 if many else 1,
        type=Text(),
        shell_complete=_completion(kind.complete),
        callback=kind.callback,
        is_eager=kind.callback is not None,
        **({} if required or many else {"default": parameter.default}),
    )


def _click_option(parameter: Parameter, value_type: Any, kind: Flag) -> click.Option:
    if parameter.default is Parameter.empty:
        settings: dict[str, Any] = {"help": kind.text, "required": True}
    else:
        shown = bool(parameter.default) and not isinstance(parameter.default, tuple | bool)
        settings = {"help": kind.text, "default": parameter.default, "show_default": shown}
    settings |= {"callback": kind.callback, "is_eager": kind.callback is not None}
    if kind.is_switch:
        settings |= {"is_flag": True, "type": bool}
    else:
        settings |= {"metavar": kind.metavar, "type": Text(), "shell_complete": _completion(kind.complete)}
        if value_type == list[str]:
            settings["multiple"] = True
        elif get_origin(value_type) is tuple:
            settings["nargs"] = len(get_args(value_type))
    return click.Option([*kind.names, parameter.name], **settings)


def _completion(words: Complete | None) -> Any:
    """Click's completion function for the possible values; None if they are unknown."""
    if words is None:
        return None

    return lambda _context, _parameter, incomplete: [word for word in words() if word.startswith(incomplete)]
