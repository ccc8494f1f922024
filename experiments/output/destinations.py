"""Where results go: files that were asked for, or else a table for a person on stdout."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files

Detail = Literal["verdict", "table", "all"]
"""How much of a record is printed: its verdict, a table of the longest ops too, or all ops."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """The files that results go to, each empty if not asked for; `-` is stdout.

    Parameters
    ----------
    json : the record
    trace : the timeline as a Chrome trace
    timeline : the timeline as a file of Quadrille, for figures
    csv : a table
    plot : a figure, which never goes to stdout
    ranks : ranks that the trace and the timeline show; by default all, or of many ranks those that stand for all
    read : files that the command reads, by flag, which results must not overwrite
    detail : how much is printed; with the verdict alone no progress is shown
    """

    json: str = ""
    trace: str = ""
    timeline: str = ""
    csv: str = ""
    plot: str = ""
    ranks: tuple[int, ...] = ()
    read: Mapping[str, str] = field(default_factory=dict)
    detail: Detail = "table"

    @property
    def quiet(self) -> bool:
        """Whether no progress is shown."""
        return self.detail == "verdict"

    @property
    def to_stdout(self) -> bool:
        """Whether stdout is taken by a file."""
        return schema_files.STDOUT in (self.json, self.trace, self.timeline, self.csv)

    def check(self, others: Mapping[str, str] | None = None) -> None:
        """Refuse, before anything runs, what could not be written.

        Parameters
        ----------
        others : the other files of the command, by flag or by what they are

        Raises
        ------
        InputError : a path that cannot be written, or is named twice
        """
        named = ("json", "trace", "timeline", "csv", "plot")
        destinations = {f"--{name}": path for name in named if (path := getattr(self, name))}
        check_apart(destinations, {**(others or {}), **self.read})
        for flag, path in destinations.items():
            try:
                _check_figure(path) if flag == "--plot" else schema_files.check_writable(path)
            except InputError as error:
                raise InputError(f"{flag} {error}") from None


def write_or_show(answer: object, json: str, schema: str, show: Callable[[], None]) -> None:
    """Writes the answer as JSON under `schema` if there is a path, and shows it unless the JSON is on stdout."""
    if json:
        schema_files.write_json(json, answer, schema)
    if json != schema_files.STDOUT:
        show()


def _check_figure(path: str) -> None:
    from quadrille.experiments.output.pictures import check_figure_path

    check_figure_path(path)


def check_apart(written: Mapping[str, str], others: Mapping[str, str]) -> None:
    """Refuse to write a file that is named twice, by flag or by what it is.

    >>> check_apart({"--save": "host.toml"}, {"--machine": "./host.toml"})
    Traceback (most recent call last):
    quadrille.algorithms.errors.InputError: --save and --machine both name host.toml: give each its own file

    Raises
    ------
    InputError : one path of two files
    """
    every = {**written, **others}
    for path in written.values():
        same = [flag for flag, its_path in every.items() if same_file(its_path, path)]
        if len(same) > 1:
            raise InputError(f"{' and '.join(same)} both name {path}: give each its own file")


def make_folder(path: str | Path) -> Path:
    """The folder at `path`, made with those above it where they are not there.

    Raises
    ------
    InputError : a file has this name; a place that cannot be written
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
    """Whether two paths lead to one file, links followed; stdout is one, too.

    >>> same_file("c.npy", "./c.npy"), same_file("a.npy", "c.npy")
    (True, False)
    """
    return os.path.realpath(first) == os.path.realpath(second)
