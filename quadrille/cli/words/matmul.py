"""The words that name a multiplication, and the experiment that they come to."""

from typing import cast, get_args

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.matmuls.catalogue import find_algorithm
from quadrille.algorithms.matmuls.matmul import Gathered, Matmul, Passes, Transposed, parse_sizes
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, parse_grid, parse_order
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.short_names import find_dtype
from quadrille.cli.words.flags import AUTO, MatmulWords
from quadrille.cli.words.numbers import one_of, whole_number
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.matmul import MatmulExperiment


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
        overlaps=_overlaps(words.overlap),
        choices=parse_choices(words.collectives),
        threads=whole_number(words.threads, "--threads") if words.threads else None,
        placement=words.placement,
        shards=cast(Shards, one_of(words.shards, "shards", get_args(Shards))) if words.shards else None,
        bands=whole_number(words.bands, "--bands"),
        any_order=words.order == AUTO,
    )


def _overlaps(text: str) -> frozenset[OverlapName]:
    """The overlaps that are named."""
    if text == "none":
        return frozenset()
    from quadrille.algorithms.passes.overlap import parse_overlap

    return parse_overlap(text)


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
        find_dtype(words.dtype),
        cast(Passes, one_of(words.passes, "passes", get_args(Passes))),
        cast(Gathered, one_of(words.gathered, "gathered", get_args(Gathered))),
        whole_number(words.panel, "--panel"),
        cast(Transposed, one_of(words.transposed, "transposed", get_args(Transposed))),
    )
