"""The problem of a record, and whether two records have the same problem."""

from collections.abc import Iterator, Mapping

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Options, Record
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.schedule.grid import AXES

USUAL = {
    "bands": 1,
    "gathered": "again",
    "threads": 1,
    "sequence_parallel": False,
    "zero": 0,
    "interleave": 1,
    "attention": "fused",
    "recompute": "none",
    "steps": 1,
    "clip": 0.0,
    "gradient_bytes": 4,
}
"""Usual values of options, which labels omit."""


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The problem of both records."""

    workload: Workload
    dtype: str
    passes: str
    algorithm: str
    grid: dict[str, int]
    order: tuple[str, ...]
    ranks: int
    options: Options
    backend: str


def problem(record: Record) -> Problem:
    """The problem of the record in a normal form: all axes of the grid, and the full name of `own`."""
    options = record.options
    collectives = "own:ring" if options.collectives == "own" else options.collectives
    return Problem(
        workload=record.workload,
        dtype=record.dtype,
        passes=record.passes,
        algorithm=record.algorithm,
        grid={axis: record.grid.get(axis, 1) for axis in AXES},
        order=record.order,
        ranks=record.ranks,
        options=msgspec.structs.replace(options, overlap=tuple(sorted(options.overlap)), collectives=collectives),
        backend=record.backend,
    )


def same_problem_key(record: Record) -> bytes:
    """A key that is equal for records of the same problem only."""
    return msgspec.json.encode(problem(record), order="sorted")


def label(problem: Problem) -> str:
    """The problem in one line.

    >>> from quadrille.algorithms.formats.workload import MatmulSizes
    >>> label(Problem(workload=Workload(MatmulSizes(2, 3, 5)), dtype="float64", passes="forward", algorithm="4d",
    ...     grid={"data": 1, "z": 2, "y": 1, "x": 1}, order=("x", "y", "z", "data"), ranks=2, options=Options(),
    ...     backend="numpy"))
    '4d, matmul m=2 k=3 n=5, float64 forward, grid z=2 (2 ranks), own:ring'
    """
    sizes = _text(msgspec.to_builtins(problem.workload))
    grid = _text({axis: length for axis, length in problem.grid.items() if length > 1})
    ranks = f"grid {grid} ({problem.ranks} ranks)" if grid else "1 rank"
    overlap = [f"overlap {','.join(problem.options.overlap)}"] if problem.options.overlap else []
    own = [problem.options.collectives, *overlap, *_more(problem.options)]
    return ", ".join([problem.algorithm, sizes, f"{problem.dtype} {problem.passes}", ranks, *own])


def _more(options: Options) -> Iterator[str]:
    """The other options in words, without usual values.

    >>> list(_more(Options(bands=4, sequence_parallel=True, zero=1, threads=1, steps=1)))
    ['bands 4', 'sequence parallel', 'zero 1']
    """
    for name, value in msgspec.structs.asdict(options).items():
        words = name.replace("_", " ")
        if value is True:
            yield words
        elif name not in ("overlap", "collectives") and value not in (msgspec.UNSET, None, USUAL.get(name)):
            yield f"{words} {value}"


def check_same_problem(predicted: Record, measured: Record) -> None:
    """Refuse two records of different problems.

    Raises
    ------
    InputError : the problems differ; the message lists all differences
    """
    predicted_fields, measured_fields = _fields(predicted), _fields(measured)
    different = [
        f"{name} {predicted_fields.get(name, 'none')} predicted, {measured_fields.get(name, 'none')} measured"
        for name in {**predicted_fields, **measured_fields}
        if predicted_fields.get(name) != measured_fields.get(name)
    ]
    different += _different_algorithms(predicted, measured)
    if different:
        raise InputError(f"records of different problems: {'; '.join(different)}; the same are needed on both sides")


def _fields(record: Record) -> dict[str, str]:
    """The problem as names and text, its options and sizes under their own names."""
    fields = msgspec.to_builtins(problem(record))
    return {name: _text(value) for name, value in {**fields, **fields.pop("options")}.items() if name != "options"}


def _different_algorithms(predicted: Record, measured: Record) -> list[str]:
    measured_ops = {op.name: op.algorithm for op in measured.ops}
    names = ((op.name, op.algorithm, measured_ops.get(op.name)) for op in predicted.ops)
    return [
        f"algorithm of {name!r} {predicted_name} predicted, {measured_name} measured"
        for name, predicted_name, measured_name in names
        if predicted_name and measured_name and _known(predicted_name) != _known(measured_name)
    ]


def _known(algorithm: str) -> str:
    """The algorithm's name without the way its prediction was made, which a measurement lacks.

    >>> _known("library (measured)") == _known("library (as ring)"), _known("ring"), _known("library:vector (as ring)")
    (True, 'ring', 'library:vector')
    """
    return algorithm.partition(" (")[0] if algorithm.startswith("library") else algorithm


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        inner = [
            f"{key} {_text(item)}" if isinstance(item, Mapping) else f"{key}={item}" for key, item in value.items()
        ]
        return " ".join(inner)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
