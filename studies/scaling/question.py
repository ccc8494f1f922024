"""What a scaling study asks: which matmul, how it grows, on which numbers of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast, get_args

from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import Algorithm, find_algorithm
from quadrille.algorithms.matmuls.catalogue import algorithms as all_algorithms
from quadrille.algorithms.matmuls.matmul import DEFAULT_PANEL, Gathered, Matmul, Passes, Transposed
from quadrille.algorithms.passes.overlap import parse_overlap
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, parse_order
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.tensors import DType

ScalingKind = Literal["weak", "strong"]
DEFAULT_GPUS = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_SIZES: dict[ScalingKind, tuple[int, int, int]] = {
    "weak": (8192, 8192, 8192),
    "strong": (32768, 32768, 32768),
}
"""Of one GPU (weak), of all together (strong); both fit on one GPU of the named machines, training included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A matmul to scale, and the numbers of GPUs.

    Parameters
    ----------
    problem : problem of each GPU (weak) or of all GPUs together (strong)
    gpus : numbers of GPUs, in increasing order
    top : grids simulated for each number of GPUs
    """

    kind: ScalingKind
    problem: Matmul
    gpus: tuple[int, ...] = DEFAULT_GPUS
    algorithms: tuple[Algorithm, ...]
    order: tuple[Axis, ...] = DEFAULT_ORDER
    overlaps: frozenset[OverlapName] = frozenset()
    choices: Choices = field(default_factory=Choices)
    threads: int | None = None
    top: int = 3

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScalingKind):
            raise InputError(f"scaling {self.kind!r}: accepted are {', '.join(get_args(ScalingKind))}")
        if not self.gpus or min(self.gpus) < 1 or sorted(set(self.gpus)) != list(self.gpus):
            numbers = ",".join(map(str, self.gpus)) or "none"
            raise InputError(f"gpus {numbers}: accepted are different whole numbers from 1, such as 1,2,4,8")
        if self.top < 1:
            raise InputError(f"top {self.top}: the number of grids to simulate is a whole number from 1")
        for algorithm in self.algorithms:
            algorithm.check_form(self.problem.transposed)

    def problem_on(self, gpus: int) -> Matmul:
        """The problem on a number of GPUs: with weak scaling, m grows in proportion.

        >>> question = Question(kind="weak", problem=Matmul(5, 3, 2), algorithms=(find_algorithm("4d"),))
        >>> question.problem_on(7).sizes
        {'m': 35, 'k': 3, 'n': 2}
        """
        grown = self.problem.m * (gpus if self.kind == "weak" else 1)
        return replace(self.problem, m=grown)


def asked(
    kind: str,
    *,
    matmul: tuple[int, int, int] | None = None,
    gpus: Sequence[int] = DEFAULT_GPUS,
    algorithm: str = "4d",
    passes: str = "training",
    dtype: str = "bfloat16",
    top: int = 3,
    order: str = "x,y,z,data",
    overlaps: str = "none",
    gathered: str = "again",
    collectives: str = "own",
    panel: int = DEFAULT_PANEL,
    transposed: str = "none",
    threads: int | None = None,
) -> Question:
    """The question in the words of the command line.

    Parameters
    ----------
    kind : `weak` or `strong`
    matmul : m, k, n, of each GPU (weak: m grows with the GPUs) or of all together (strong)
    algorithm : one name, several with commas between, or `all`
    top : grids simulated for each number of GPUs

    Raises
    ------
    InputError : a question that cannot be
    """
    chosen = cast(ScalingKind, kind)
    m, k, n = matmul or DEFAULT_SIZES.get(chosen, (1, 1, 1))
    return Question(
        kind=chosen,
        problem=Matmul(
            m,
            k,
            n,
            cast(DType, dtype),
            cast(Passes, passes),
            cast(Gathered, gathered),
            panel,
            cast(Transposed, transposed),
        ),
        gpus=tuple(gpus),
        algorithms=parse_algorithms(algorithm),
        order=parse_order(order),
        overlaps=parse_overlap(overlaps),
        choices=parse_choices(collectives),
        threads=threads,
        top=top,
    )


def parse_algorithms(text: str) -> tuple[Algorithm, ...]:
    """The algorithms named in a list; `all` are all.

    >>> [one.name for one in parse_algorithms("4d,3d")]
    ['4d', '3d']

    Raises
    ------
    InputError : an unknown or repeated name
    """
    if text == "all":
        return all_algorithms()
    names = [word.strip() for word in text.split(",")]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise InputError(f"algorithm {text!r} repeats {', '.join(sorted(repeated))}: name each once")
    return tuple(find_algorithm(name) for name in names)
