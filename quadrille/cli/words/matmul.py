"""The words that name a multiplication, and the experiment that they come to."""

from dataclasses import dataclass
from typing import cast, get_args

from quadrille.algorithms.collectives.choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.matmuls.catalogue import find_algorithm
from quadrille.algorithms.matmuls.matmul import Gathered, Matmul, Passes, Transposed, parse_sizes
from quadrille.algorithms.passes.overlap import parse_overlap
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, parse_grid, parse_order
from quadrille.algorithms.schedule.tensors import DType
from quadrille.cli.words.numbers import one_of, whole_number
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.matmul import MatmulExperiment

AUTO = "auto"
"""The order of ranks that is chosen for a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulWords:
    """The words that name a multiplication, as they were typed; the defaults are those of the command line."""

    matmul: str = ""
    algorithm: str = "4d"
    grid: str = "x=1"
    order: str = "x,y,z,data"
    dtype: str = "float32"
    passes: str = "forward"
    gathered: str = "again"
    panel: str = "256"
    transposed: str = "none"
    overlap: str = "none"
    bands: str = "1"
    collectives: str = "own"
    threads: str = ""
    placement: str = "packed"
    shards: str = ""


def parse_matmul(words: MatmulWords) -> MatmulExperiment:
    """The multiplication that the words name, checked as far as one can without ranks or a machine.

    >>> parse_matmul(MatmulWords(matmul="13,7,5", algorithm="summa", grid="z=2,x=3")).grid.size
    6

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    return MatmulExperiment(
        parse_problem(words),
        parse_grid(words.grid, parse_rank_order(words.order)),
        find_algorithm(words.algorithm).name,
        parse_execution(words),
    )


def parse_execution(words: MatmulWords) -> ExecutionOptions:
    """The execution options that the words name."""
    return ExecutionOptions(
        overlaps=parse_overlap(words.overlap),
        choices=parse_choices(words.collectives),
        threads=whole_number(words.threads, "--threads") if words.threads else None,
        placement=words.placement,
        shards=cast(Shards, one_of(words.shards, "shards", get_args(Shards))) if words.shards else None,
        bands=whole_number(words.bands, "--bands"),
        any_order=words.order == AUTO,
    )


def parse_rank_order(text: str) -> tuple[Axis, ...]:
    """Axes from the fastest to the slowest; the default order where it is still to be chosen.

    >>> parse_rank_order("auto") == DEFAULT_ORDER, parse_rank_order("z,x")[:2]
    (True, ('z', 'x'))

    Raises
    ------
    InputError : an axis that is unknown, or named twice
    """
    return DEFAULT_ORDER if text == AUTO else parse_order(text)


def parse_problem(words: MatmulWords) -> Matmul:
    """The problem that the words name."""
    if not words.matmul:
        raise InputError("matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512")
    m, k, n = parse_sizes(words.matmul)
    return Matmul(
        m,
        k,
        n,
        cast(DType, one_of(words.dtype, "dtype", get_args(DType))),
        cast(Passes, one_of(words.passes, "passes", get_args(Passes))),
        cast(Gathered, one_of(words.gathered, "gathered", get_args(Gathered))),
        whole_number(words.panel, "--panel"),
        cast(Transposed, one_of(words.transposed, "transposed", get_args(Transposed))),
    )
