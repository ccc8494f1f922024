"""The command-line flags that reproduce an experiment and its run options; records and jobs of a batch list them."""

from collections.abc import Iterator
from dataclasses import fields

from quadrille.algorithms.schedule.grid import DEFAULT_ORDER
from quadrille.algorithms.schedule.short_names import flag_word
from quadrille.algorithms.training.adam import default_rate
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_lines import TRAINING_DEFAULTS, sized_flag

RUN_DEFAULTS = RunOptions()
EXECUTION_DEFAULTS = ExecutionOptions()
UNCHANGED_OPTIONS = (
    "backend",
    "blas",
    "carrier",
    "progress",
    "seed",
    "operands",
    "warmups",
    "repeats",
    "verify_method",
)
"""Run options whose flags have the option's value unchanged."""


def experiment_flags(experiment: Experiment) -> list[str]:
    """The flags of an experiment whose values are not the defaults, with their values.

    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> experiment_flags(MatmulExperiment(Matmul(4, 4, 4), Grid(z=2), "3d"))
    ['--matmul', '4,4,4', '--algorithm', '3d', '--grid', 'z=2']
    """
    own = _matmul_flags(experiment) if isinstance(experiment, MatmulExperiment) else _training_flags(experiment)
    return [*own, *_grid_flags(experiment), *_execution_flags(experiment.execution)]


def run_flags(options: RunOptions) -> list[str]:
    """The flags of run options whose values are not the defaults, with their values.

    >>> run_flags(RunOptions(repeats=7, chunk_bytes=0, inputs={"A": "a.npy"}, verify=True))
    ['--repeats', '7', '--chunk', 'none', '--verify', '--a', 'a.npy']
    """
    flags = [
        word
        for option in fields(RunOptions)
        if option.name in UNCHANGED_OPTIONS
        and (value := getattr(options, option.name)) != getattr(RUN_DEFAULTS, option.name)
        for word in (flag_word(option.name), str(value))
    ]
    if options.chunk_bytes is not None:
        flags += ["--chunk", f"{options.chunk_bytes}B" if options.chunk_bytes else "none"]
    flags += ["--verify"] if options.verify else []
    paths = [*options.inputs.items(), *options.outputs.items(), ("save", options.save), ("load", options.load)]
    return flags + [word for name, path in paths if path for word in (f"--{name.lower()}", path)]


def _matmul_flags(experiment: MatmulExperiment) -> Iterator[str]:
    problem = experiment.problem
    yield from ("--matmul", f"{problem.m},{problem.k},{problem.n}")
    if experiment.algorithm != "4d":
        yield from ("--algorithm", experiment.algorithm)
    usual = {"dtype": "float32", "passes": "forward", "gathered": "again", "panel": 256, "transposed": "none"}
    for name, default in usual.items():
        if (value := getattr(problem, name)) != default:
            yield from (flag_word(name), str(value))


def _training_flags(experiment: TrainingExperiment) -> Iterator[str]:
    problem = experiment.problem
    if isinstance(problem, Gpt):
        named = experiment.shape is not None and SHAPES.get(experiment.shape.name) == experiment.shape
        sizes = experiment.workload.gpt
        assert sizes is not None
        yield from ("--gpt", experiment.shape.name if named and experiment.shape else sized_flag(sizes))
        yield from ("--batch", str(problem.batch), "--dtype", problem.dtype)
        width = problem.hidden
    else:
        yield from ("--mlp", ",".join(map(str, problem.widths)), "--batch", str(problem.rows))
        if problem.dtype != "float32":
            yield from ("--dtype", problem.dtype)
        width = max(problem.widths)
    if experiment.scheme.name != "4d":
        yield from ("--scheme", experiment.scheme.name)
    if experiment.sequence_parallel:
        yield "--sequence-parallel"
    if problem.gathered != "again":
        yield from ("--gathered", problem.gathered)
    chosen = {
        "clip": problem.adam.clip,
        "keep_first": experiment.keep_first,
        "gemm_layouts": experiment.gemm_layouts,
        "software": experiment.software,
    }
    for name, default in TRAINING_DEFAULTS.items():
        if (value := chosen.get(name, getattr(problem, name, default))) != default:
            yield from (flag_word(name),) if value is True else (flag_word(name), _text(value))
    if problem.adam.rate != default_rate(width):
        yield from ("--learning-rate", repr(problem.adam.rate))


def _text(value: object) -> str:
    """The value of a flag as text; layers of stages as a list.

    >>> _text((3, 2)), _text(0.1)
    ('3,2', '0.1')
    """
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _grid_flags(experiment: Experiment) -> Iterator[str]:
    grid = experiment.grid
    if grid.size > 1:
        yield from ("--grid", str(grid))
    if experiment.execution.any_order:
        yield from ("--order", "auto")
    elif grid.order != DEFAULT_ORDER:
        yield from ("--order", ",".join(grid.order))


def _execution_flags(execution: ExecutionOptions) -> Iterator[str]:
    if execution.overlaps:
        yield from ("--overlap", ",".join(execution.overlap_names))
    if execution.choices != EXECUTION_DEFAULTS.choices:
        yield from ("--collectives", str(execution.choices))
    for name in ("bands", "threads", "placement", "shards", "jitter"):
        if (value := getattr(execution, name)) != getattr(EXECUTION_DEFAULTS, name):
            yield from (flag_word(name), str(value))
