"""The answers that the JSON of an earlier run of the same sweep has; `--resume` does not compute them again.

The JSON names its experiment: the flags of all points, the SHA-256 of each file that points read, and the version of
Quadrille. A file of another experiment or version is refused. The new run may have more values of a key, because each
row names its point.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.input_files import is_file
from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.sweep.sweep_result import NOT_REACHED, SCHEMA, Sweep, SweepAnswer

VERSIONS = ("quadrille", "commit")
"""Versions of provenance that an answer depends on."""


def file_digests(read: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each file that a sweep reads, by its flag; a file that cannot be read has none.

    Parameters
    ----------
    read : paths of the files, by flag
    """
    return {flag: sha256(Path(path).read_bytes()).hexdigest() for flag, path in read.items() if is_file(path)}


def answers_in_file(path: str, sweep: Sweep) -> dict[int, SweepAnswer]:
    """The answers of a file to the points of a sweep, by the index of the point; none if the file does not exist.

    Parameters
    ----------
    path : path of the JSON that an earlier run wrote
    sweep : the sweep that is resumed, with any answers

    Raises
    ------
    InputError : no file that can be read again, or a file of another experiment or version
    """
    if path in ("", schema_files.STDOUT) or schema_files.is_stream(path) or Path(path).suffix != ".json":
        raise InputError("--resume needs --json FILE.json, the file with the answers of the earlier run")
    if not Path(path).exists():
        return {}
    earlier = schema_files.read(path, Sweep, SCHEMA)
    if difference := _difference(earlier, sweep):
        raise InputError(f"--resume: {path} is of another experiment: {difference}; name another file with --json")
    numbers = {_key(row.point): number for number, row in enumerate(sweep.points)}
    answers = {_key(row.point): row.answer for row in earlier.points if row.answer != NOT_REACHED}
    for key in answers:
        if key not in numbers:
            point = ", ".join(f"{name}={value}" for name, value in key)
            raise InputError(f"--resume: {path} has an answer at {point}, which is no point of this sweep")
    return {numbers[key]: answer for key, answer in answers.items()}


def _key(point: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(point.items()))


def _difference(earlier: Sweep, sweep: Sweep) -> str:
    """The first difference between the experiments of two sweeps, in words; empty if there is none."""
    pairs: Sequence[tuple[str, Mapping[str, object], Mapping[str, object]]] = (
        ("version", _own_versions(earlier.provenance), _own_versions(sweep.provenance)),
        ("flag", earlier.flags | {"best-grid": earlier.best_grid}, sweep.flags | {"best-grid": sweep.best_grid}),
        ("SHA-256 of the file of", *_common(earlier.inputs, sweep.inputs)),
        ("varied key", dict.fromkeys(earlier.varied, "varied"), dict.fromkeys(sweep.varied, "varied")),
    )
    for kind, theirs, ours in pairs:
        for name in [*ours, *theirs]:
            if (there := theirs.get(name)) != (here := ours.get(name)):
                return f"{kind} {name} is {_shown(there)} there and {_shown(here)} here"
    return ""


def _common(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Both mappings without the keys that one lacks: a sweep may read further files at further points."""
    names = first.keys() & second.keys()
    return {name: first[name] for name in names}, {name: second[name] for name in names}


def _own_versions(provenance: Provenance | None) -> dict[str, str]:
    names = provenance.versions if provenance else {}
    return {name: names[name] for name in VERSIONS if name in names}


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)
