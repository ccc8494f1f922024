"""The work of the flag `--report`, which any command that writes JSON may have: its answer becomes a report.

The command writes its JSON, and a timeline if it has one, as always; without `--json` or `--timeline` these files are
temporary. The report is then made of them, as `quadrille report` would make it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from quadrille.experiments.report.report import RooflineOfFile

STDOUT = "-"


def run_and_report(
    command: Callable[..., Any],
    report: str,
    arguments: Sequence[Any],
    values: Mapping[str, Any],
    rooflines: "RooflineOfFile" = None,
) -> Any:
    """The status of a command, which is run with these values; then its report is written.

    Parameters
    ----------
    report : path of the report
    arguments, values : positional and named values of the command, among them `json`
    rooflines : function that returns the roofline of a record, by path; None for none
    """
    from quadrille.experiments.report.report import check_report
    from quadrille.runtime.host.world import RANK_VARIABLES

    is_first = all(os.environ.get(name, "0") == "0" for name in RANK_VARIABLES)
    check_report(report, _texts(values), "--report")
    with _answer_files(values) as (files, folder):
        status = command(*arguments, **{**values, **files})
        if is_first:
            _write(report, folder, values, rooflines)
    return status


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """All texts among the values, by name: some are files, which a report must not overwrite."""
    texts = {}
    for name, value in values.items():
        for number, text in enumerate(value if isinstance(value, list | tuple) else [value]):
            if isinstance(text, str) and text:
                texts[f"--{name.replace('_', '-')}" + (f" ({number + 1})" if number else "")] = text
    return texts


@contextmanager
def _answer_files(values: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], str]]:
    """The paths of JSON and timeline that the command is to write, and a folder that has both when it has ended."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="quadrille-report-") as folder:
        usual = {"json": f"{folder}/answer.json", "timeline": f"{folder}/answer.timeline.json"}
        files = {name: values[name] or usual[name] for name in usual if name in values}
        if files["json"] != STDOUT:
            yield files, folder
            return
        copy = _CopiedStream(sys.stdout)
        with redirect_stdout(copy):
            yield files, folder


class _CopiedStream:
    """A stream that passes on what is written, and keeps a copy."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = ""

    def write(self, text: str) -> int:
        """Writes and keeps the text."""
        self.text += text
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _write(report: str, folder: str, values: Mapping[str, Any], rooflines: "RooflineOfFile") -> None:
    """Writes the report of the command's answer."""
    from pathlib import Path
    from shutil import copyfile

    from quadrille.experiments.report.report import parts_of_files, write_report
    from quadrille.runtime.host.console import remark

    answer = str(Path(folder) / "answer.json")
    written = {"answer.json": values["json"], "answer.timeline.json": values.get("timeline", "")}
    for name, path in written.items():
        if path not in ("", STDOUT):
            copyfile(path, Path(folder) / name)
        elif name == "answer.json" and isinstance(sys.stdout, _CopiedStream):
            Path(answer).write_text(sys.stdout.text, encoding="utf-8")
    source = values["json"] if values["json"] not in ("", STDOUT) else "this command's answer"
    write_report(parts_of_files([answer], {answer: source}, rooflines), report)
    remark(f"wrote {report}")
