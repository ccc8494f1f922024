"""`Problem`: the workload, grid and options of a record, which two records must share to be compared."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Options, Record
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.schedule.grid import AXES, lengths_text

DEFAULT_OPTIONS = {
    "bands": 1,
    "gathered": "again",
    "threads": 1,
    "sequence_parallel": False,
    "zero": 0,
    "interleave": 1,
    "pipeline_schedule": "1f1b",
    "pipeline_limit": 0,
    "stages": (),
    "attention": "fused",
    "recompute": "none",
    "steps": 1,
    "clip": 0.0,
    "gradient_bytes": 4,
    "dropout": 0.0,
    "sparsity": 0.0,
    "prune": "magnitude",
    "sparse_states": False,
    "context_parallel": "ring",
    "products": "dtype",
    "fp8_param_gather": False,
}
"""Default values of options, which labels omit."""


FLAGS = ("algorithm", "dtype", "passes", "grid", "order", "overlap", "collectives", "gathered", "threads", "zero")
"""Fields of a problem that a flag of the same name sets, so that a prediction of what was measured is easy to make."""
MOST_DIFFERENCES = 3
"""Number of differences between problems that are named."""


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The problem of a record: workload, algorithm, grid, options and backend."""

    workload: Workload
    dtype: str
    passes: str
    algorithm: str
    grid: dict[str, int]
    order: tuple[str, ...]
    ranks: int
    options: Options
    backend: str


def problem_of(record: Record) -> Problem:
    """The problem of a record in normal form: all axes of the grid, the full name of `own` collectives, no jitter.

    The list of approximations is left out, since the workload says what is computed.
    """
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
        options=msgspec.structs.replace(
            options,
            overlap=tuple(sorted(options.overlap)),
            collectives=collectives,
            jitter=msgspec.UNSET,
            approximate=msgspec.UNSET,
        ),
        backend=record.backend,
    )


def same_problem_key(record: Record) -> bytes:
    """A key of a record that is equal for records of the same problem only."""
    return msgspec.json.encode(problem_of(record), order="sorted")


def problem_label(problem: Problem) -> str:
    """The problem as a line of text.

    >>> from quadrille.algorithms.formats.workload import MatmulSizes
    >>> sizes = Workload(MatmulSizes(2, 3, 5))
    >>> problem_label(Problem(workload=sizes, dtype="float64", passes="forward", algorithm="4d",
    ...     grid={"data": 1, "z": 2, "y": 1, "x": 1}, order=("x", "y", "z", "data"), ranks=2, options=Options(),
    ...     backend="numpy"))
    '4d, matmul m=2 k=3 n=5, float64 forward, grid z=2 (2 ranks), own:ring'
    """
    sizes = _text(msgspec.to_builtins(problem.workload))
    grid = _text({axis: length for axis, length in problem.grid.items() if length > 1})
    ranks = f"grid {grid} ({problem.ranks} ranks)" if grid else "1 rank"
    overlap = [f"overlap {','.join(problem.options.overlap)}"] if problem.options.overlap else []
    options_text = [problem.options.collectives, *overlap, *_option_texts(problem.options)]
    return ", ".join([problem.algorithm, sizes, f"{problem.dtype} {problem.passes}", ranks, *options_text])


def _option_texts(options: Options) -> Iterator[str]:
    """The other options in words, without usual values.

    >>> list(_option_texts(Options(bands=4, sequence_parallel=True, zero=1, threads=1, steps=1)))
    ['bands 4', 'sequence parallel', 'zero 1']
    """
    for name, value in msgspec.structs.asdict(options).items():
        words = name.replace("_", " ")
        if value is True:
            yield words
        elif name not in ("overlap", "collectives") and value not in (msgspec.UNSET, None, DEFAULT_OPTIONS.get(name)):
            yield f"{words} {value}"


def check_same_problem(predicted: Record, measured: Record) -> None:
    """Checks that two records have the same problem.

    Raises
    ------
    InputError : the problems differ; the message has the first differences, and flags that remove them
    """
    predicted_fields, measured_fields = _fields(predicted), _fields(measured)
    names = [
        name
        for name in {**predicted_fields, **measured_fields}
        if predicted_fields.get(name) != measured_fields.get(name)
    ]
    different = [
        f"{name} {predicted_fields.get(name, 'none')} predicted, {measured_fields.get(name, 'none')} measured"
        for name in names
    ]
    if "collectives" not in names:  # the algorithms of ops follow from it
        different += _different_algorithms(predicted, measured)
    if not different:
        return
    raise InputError(f"records of different problems: {first_differences(different)}; {_remedy(names, measured)}")


def first_differences(differences: Sequence[str]) -> str:
    """The first differences, and the number of those that are left out, as text.

    >>> first_differences(["m 1 and 2", "k 3 and 4", "n 5 and 6", "dtype float32 and float64"])
    'm 1 and 2; k 3 and 4; n 5 and 6; and 1 more, which --json of both commands has'
    """
    more = len(differences) - MOST_DIFFERENCES
    rest = [f"and {more} more, which --json of both commands has"] if more > 0 else []
    return "; ".join([*differences[:MOST_DIFFERENCES], *rest])


def _remedy(names: Sequence[str], measured: Record) -> str:
    """What makes a prediction of the measured problem, if flags do; `names` are the fields that differ."""
    if "grid" in names:
        names = [name for name in names if name != "ranks"]
    if not names or any(name not in FLAGS for name in names):
        return "the same are needed on both sides"
    fields = _fields(measured)
    flags = " ".join(f"--{name.replace('_', '-')} {fields.get(name, 'none')}" for name in names)
    return f"predict what was measured: quadrille simulate … {flags}"


def _fields(record: Record) -> dict[str, str]:
    """The fields of a problem and of its options by name, as text."""
    fields = msgspec.to_builtins(problem_of(record))
    fields["grid"] = lengths_text(fields["grid"])
    return {name: _text(value) for name, value in {**fields, **fields.pop("options")}.items() if name != "options"}


def _different_algorithms(predicted: Record, measured: Record) -> list[str]:
    measured_ops = {op.name: op.algorithm for op in measured.ops}
    names = ((op.name, op.algorithm, measured_ops.get(op.name)) for op in predicted.ops)
    return [
        f"algorithm of {name!r} {predicted_name} predicted, {measured_name} measured"
        for name, predicted_name, measured_name in names
        if predicted_name and measured_name and _algorithm_name(predicted_name) != _algorithm_name(measured_name)
    ]


def _algorithm_name(algorithm: str) -> str:
    """The name of an algorithm without the note in brackets on its prediction, which measured records lack.

    >>> [_algorithm_name(label) for label in ("library (measured)", "ring", "library:vector (as ring)")]
    ['library', 'ring', 'library:vector']
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
