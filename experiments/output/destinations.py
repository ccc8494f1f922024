"""`Destinations`: the files that results of a command are written to; without files, a table goes to stdout."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files

Detail = Literal["verdict", "table", "all"]
"""The extent of a printed record: its total alone (`verdict`), the longest ops too (`table`), or all ops."""


PlotOf = Literal["timeline", "links", "roofline"]
"""Subject of the figure of a prediction."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """The paths of result files; an empty path means no file, and `-` means stdout.

    Parameters
    ----------
    json : the record
    trace : the timeline as a Chrome trace
    timeline : the timeline as a file of Quadrille, for figures
    csv : a table
    plot : a figure, which never goes to stdout
    plot_of : subject of the figure of a prediction
    ranks : ranks that the trace and the timeline show; empty for all, or for one of each class if there are many
    read : files that the command reads, by flag, which results must not overwrite
    detail : extent of the printed record; `verdict` also hides the progress of the work
    temporary : paths of these files that are removed after the command, such as the JSON of which a report is made
    """

    json: str = ""
    trace: str = ""
    timeline: str = ""
    csv: str = ""
    plot: str = ""
    plot_of: PlotOf = "timeline"
    ranks: tuple[int, ...] = ()
    read: Mapping[str, str] = field(default_factory=dict)
    detail: Detail = "table"
    temporary: frozenset[str] = frozenset()

    @property
    def lasting_answers(self) -> list[str]:
        """The paths of the JSON and CSV files that stay after the command.

        >>> destinations = Destinations(json="answer.json", csv="rows.csv", temporary=frozenset({"answer.json"}))
        >>> destinations.lasting_answers
        ['rows.csv']
        """
        paths = (self.json, self.csv)
        return [path for path in paths if path and path != schema_files.STDOUT and path not in self.temporary]

    @property
    def quiet(self) -> bool:
        """Whether no progress is shown."""
        return self.detail == "verdict"

    @property
    def to_stdout(self) -> bool:
        """Whether a result file goes to stdout, where nothing else may be printed then."""
        return schema_files.STDOUT in (self.json, self.trace, self.timeline, self.csv)

    def check(self, others: Mapping[str, str] | None = None) -> None:
        """Checks, before any work, that all files can be written.

        Parameters
        ----------
        others : paths of the other files of the command, by flag or by content

        Raises
        ------
        InputError : a path that cannot be written, or is named twice
        """
        named = ("json", "trace", "timeline", "csv", "plot")
        destinations = {f"--{name}": path for name in named if (path := getattr(self, name))}
        check_paths_differ(destinations, {**(others or {}), **self.read})
        for flag, path in destinations.items():
            try:
                _check_figure(path) if flag == "--plot" else schema_files.check_writable(path)
            except InputError as error:
                raise InputError(f"{flag} {error}") from None


def check_plot_named(asked: str, plot: str) -> None:
    """Checks that a figure that is asked for has a path.

    Parameters
    ----------
    asked : flag or command that asks for a figure
    plot : path of the figure; empty if there is none

    Raises
    ------
    InputError : no path
    """
    if not plot:
        raise InputError(f"{asked}: --plot FILE is needed, which names the figure")


def write_or_show(answer: object, json: str, schema: str, show: Callable[[], None]) -> None:
    """Writes an answer as JSON if there is a path for it, and prints the answer unless the JSON is on stdout.

    Parameters
    ----------
    answer : value that msgspec can encode
    json : path of the JSON file; `-` for stdout, empty for no file
    schema : name and version of the file's schema
    show : function that prints the answer for a person
    """
    if json:
        schema_files.write_json(json, answer, schema)
    if json != schema_files.STDOUT:
        show()


def _check_figure(path: str) -> None:
    from quadrille.experiments.output.pictures import check_figure_path

    check_figure_path(path)


def check_paths_differ(written: Mapping[str, str], others: Mapping[str, str]) -> None:
    """Checks that no written file has the path of another file.

    >>> check_paths_differ({"--save": "host.toml"}, {"--machine": "./host.toml"})
    Traceback (most recent call last):
    quadrille.algorithms.errors.InputError: --save and --machine both name host.toml: give each its own file

    Parameters
    ----------
    written : paths of the files that are written, by flag or by content
    others : paths of the other files of the command, by flag or by content

    Raises
    ------
    InputError : a path that two flags name
    """
    every = {**written, **others}
    for path in written.values():
        flags_of_path = [flag for flag, its_path in every.items() if same_file(its_path, path)]
        if len(flags_of_path) > 1:
            raise InputError(f"{' and '.join(flags_of_path)} both name {path}: give each its own file")


def make_folder(path: str | Path) -> Path:
    """The folder at `path`, created with its parents if it does not exist.

    Raises
    ------
    InputError : a file has this name, or the folder cannot be written
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {path} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"folder {path} cannot be written: it is read-only")
    return folder


def same_file(first: str, second: str) -> bool:
    """Whether two paths lead to the same file, with links followed; `-` (stdout) is the same file as `-`.

    >>> same_file("c.npy", "./c.npy"), same_file("a.npy", "c.npy")
    (True, False)
    """
    return os.path.realpath(first) == os.path.realpath(second)
