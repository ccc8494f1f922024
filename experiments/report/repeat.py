"""The section that says how to repeat a record or an answer: command line, experiment file, versions and host."""

import re
import shlex
from collections.abc import Sequence

from quadrille.algorithms.formats.toml_writer import Toml, toml_text
from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.report.elements import Section, sentence

COMMANDS = ("simulate", "run", "rank", "sweep", "schedule")
"""Commands that take an experiment file."""
OUTPUTS = (
    *(
        "json",
        "csv",
        "trace",
        "timeline",
        "ranks",
        "plot",
        "plot-of",
        "figure",
        "save",
        "c",
        "da",
        "db",
        "report",
        "from",
    ),
    *("quiet", "verbose"),
)
"""Flags of the output of one run, which no experiment file keeps."""
SWITCHES = (
    *("approximate", "sequence-parallel", "sparse-states", "fp8-param-gather", "verify", "quiet", "verbose"),
    *("no-fold", "no-fold-time", "no-memory", "no-local", "powers-of-two", "best-grid"),
)
"""Flags without a value: the word after them is not theirs."""
REPEATABLE = ("set", "vary", "fail", "degrade", "slow")
"""Flags that may be given several times."""


def repeat_section(origin: Provenance | None, lacking: Sequence[str] = ()) -> Section:
    """The section of a file with this provenance, or a sentence that the file has none.

    Parameters
    ----------
    lacking : sentences about what the file lacks, each of which may end with a command
    """
    title = "How to repeat it"
    more = [without_command(line) for line in lacking]
    if origin is None:
        return Section(title, ["This file does not say which command wrote it.", *(line for line, _ in more)])
    code = [("Command line", origin.command)] if origin.command else []
    file = experiment_file(origin.command)
    if file is not None:
        command, text = file
        code.append((f"Experiment file, for quadrille {command} FILE.toml", text))
    code += [(reason, command) for reason, command in more if command]
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    lines = [f"Written on {origin.date} by host {origin.host}, with {versions}."]
    return Section(title, [*lines, *(reason for reason, command in more if not command)], code=code)


def experiment_file(command: str) -> tuple[str, str] | None:
    """The command that takes an experiment file, and the file of a command line; None for other commands.

    >>> command, text = experiment_file("quadrille simulate --matmul 64,64,64 --grid z=2 --no-fold --json a.json")
    >>> print(command, text, sep=chr(10), end="")
    simulate
    matmul = "64,64,64"
    grid = "z=2"
    no-fold = true
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    at = next((place for place, word in enumerate(words) if word in COMMANDS), None)
    if at is None or not re.search("quadrille", words[0]):
        return None
    values = _values(words[at + 1 :])
    if values is None:
        return None
    kept = {name: value for name, value in values.items() if name not in OUTPUTS}
    return words[at], toml_text(kept)


def _values(words: Sequence[str]) -> dict[str, Toml] | None:
    """The value of each flag, True for a switch; None if a word is not the value of a flag, such as a file."""
    values: dict[str, Toml] = {}
    place = 0
    while place < len(words):
        if not words[place].startswith("--"):
            return None
        name, has_value, value = words[place].removeprefix("--").partition("=")
        place += 1
        if not has_value and name not in SWITCHES and place < len(words) and not words[place].startswith("--"):
            has_value, value = "=", words[place]
            place += 1
        if name in REPEATABLE:
            before = values.get(name, [])
            values[name] = [*(before if isinstance(before, list) else []), value]
        else:
            values[name] = value if has_value else True
    return values


def without_command(line: str) -> tuple[str, str]:
    """A sentence about what a file lacks, and the command that it ends with; empty if it has none.

    >>> without_command("it counts no links; whole steps do: quadrille simulate --gpt 1b")
    ('It counts no links; whole steps do.', 'quadrille simulate --gpt 1b')
    """
    words, _, command = line.partition(": quadrille ")
    return sentence(words), f"quadrille {command}" if command else ""
