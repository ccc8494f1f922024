"""From flags to a multiplication experiment: problem, grid, algorithm and execution options."""

from typing import TYPE_CHECKING, cast, get_args

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.matmuls.catalogue import find_algorithm
from quadrille.algorithms.matmuls.matmul import Gathered, Matmul, Passes, Transposed, parse_sizes
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, parse_grid, parse_order
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.short_names import find_dtype
from quadrille.cli.parsing.flags import AUTO, MatmulFlags
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.matmul import MatmulExperiment

if TYPE_CHECKING:
    from quadrille.simulator.ranks.jitter import Jitter


def parse_matmul(flags: MatmulFlags) -> MatmulExperiment:
    """The multiplication that the flags describe, checked as far as possible without ranks or a machine.

    >>> parse_matmul(MatmulFlags(matmul="13,7,5", algorithm="summa", grid="z=2,x=3")).grid.size
    6

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    return MatmulExperiment(
        parse_problem(flags),
        parse_grid(flags.grid, parse_rank_order(flags.order)),
        find_algorithm(flags.algorithm).name,
        parse_execution(flags),
    )


def parse_execution(flags: MatmulFlags) -> ExecutionOptions:
    """The execution options that the flags describe: overlaps, collectives, bands, threads, placement, …"""
    return ExecutionOptions(
        overlaps=parse_overlaps(flags.overlap),
        choices=parse_choices(flags.collectives),
        threads=whole_number(flags.threads, "--threads") if flags.threads else None,
        placement=flags.placement,
        shards=cast(Shards, one_of(flags.shards, "shards", get_args(Shards))) if flags.shards else None,
        bands=whole_number(flags.bands, "--bands"),
        any_order=flags.order == AUTO,
        jitter=_jitter(flags.jitter),
    )


def _jitter(text: str) -> "Jitter | None":
    """The noise in the text, such as `compute=0.1`; None for an empty text."""
    if not text:
        return None
    from quadrille.cli.parsing.jitter import parse_jitter

    return parse_jitter(text)


def parse_overlaps(text: str) -> frozenset[OverlapName]:
    """The overlaps in the text, such as `oar,ors`."""
    if text == "none":
        return frozenset()
    from quadrille.algorithms.passes.overlap import parse_overlap

    return parse_overlap(text)


def parse_rank_order(text: str) -> tuple[Axis, ...]:
    """The axes from the innermost to the outermost; for `auto`, the default order, which is replaced later.

    >>> parse_rank_order("auto") == DEFAULT_ORDER, parse_rank_order("z,x")[:2]
    (True, ('z', 'x'))

    Raises
    ------
    InputError : an axis that is unknown, or named twice
    """
    return DEFAULT_ORDER if text == AUTO else parse_order(text)


def parse_problem(flags: MatmulFlags) -> Matmul:
    """The matrix sizes, dtype and passes that the flags describe."""
    if not flags.matmul:
        raise InputError("matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512")
    m, k, n = parse_sizes(flags.matmul)
    return Matmul(
        m,
        k,
        n,
        find_dtype(flags.dtype),
        cast(Passes, one_of(flags.passes, "passes", get_args(Passes))),
        cast(Gathered, one_of(flags.gathered, "gathered", get_args(Gathered))),
        whole_number(flags.panel, "--panel"),
        cast(Transposed, one_of(flags.transposed, "transposed", get_args(Transposed))),
    )
