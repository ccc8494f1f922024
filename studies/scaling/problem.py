"""The problem of a scaling study: a matmul, weak or strong scaling, the numbers of GPUs, and the options."""

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
from quadrille.algorithms.units import parse_bytes
from quadrille.experiments.workloads.execution_options import ExecutionOptions

ScalingKind = Literal["weak", "strong"]
EQUAL: Literal["equal"] = "equal"
"""The memory limit at which each algorithm has a grid, and no algorithm may use more than that."""
DEFAULT_GPUS = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_SIZES: dict[ScalingKind, tuple[int, int, int]] = {
    "weak": (8192, 8192, 8192),
    "strong": (32768, 32768, 32768),
}
"""Default m, k and n: of one GPU (weak), or of all GPUs together (strong).

Both fit in the memory of one GPU of every named machine, also with the matrices of training.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingProblem:
    """A matmul to scale, and the numbers of GPUs.

    Parameters
    ----------
    kind : `weak`: m grows with the number of GPUs; `strong`: the matmul stays the same
    matmul : matmul of each GPU (weak) or of all GPUs together (strong)
    gpus : numbers of GPUs, in increasing order
    algorithms : sharded matmul algorithms whose grids are ranked
    order : order of the grid's axes; ranks along the first axis are neighbours
    overlaps : overlaps of communication with computation
    choices : implementation of each collective
    threads : threads of each rank; None: its share of the host's cores
    top : number of grids of each algorithm to simulate, for each number of GPUs
    memory_per_gpu : memory of a rank that all grids may use [B], or `equal`: the least memory at which each algorithm
        has a grid; None: the memory of the device
    """

    kind: ScalingKind
    matmul: Matmul
    gpus: tuple[int, ...] = DEFAULT_GPUS
    algorithms: tuple[Algorithm, ...]
    order: tuple[Axis, ...] = DEFAULT_ORDER
    overlaps: frozenset[OverlapName] = frozenset()
    choices: Choices = field(default_factory=Choices)
    threads: int | None = None
    top: int = 3
    memory_per_gpu: float | Literal["equal"] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScalingKind):
            raise InputError(f"scaling {self.kind!r}: accepted are {', '.join(get_args(ScalingKind))}")
        if not self.gpus or min(self.gpus) < 1 or sorted(set(self.gpus)) != list(self.gpus):
            numbers = ",".join(map(str, self.gpus)) or "none"
            raise InputError(f"gpus {numbers}: accepted are different whole numbers from 1, such as 1,2,4,8")
        if self.top < 1:
            raise InputError(f"top {self.top}: the number of grids to simulate is a whole number from 1")
        for algorithm in self.algorithms:
            algorithm.check_form(self.matmul.transposed)

    @property
    def execution(self) -> ExecutionOptions:
        """The execution options of every run."""
        return ExecutionOptions(overlaps=self.overlaps, choices=self.choices, threads=self.threads)

    def matmul_on(self, gpus: int) -> Matmul:
        """The matmul on a number of GPUs: with weak scaling, m grows in proportion.

        >>> scaling_problem = ScalingProblem(kind="weak", matmul=Matmul(5, 3, 2), algorithms=(find_algorithm("4d"),))
        >>> scaling_problem.matmul_on(7).sizes
        {'m': 35, 'k': 3, 'n': 2}
        """
        m = self.matmul.m * (gpus if self.kind == "weak" else 1)
        return replace(self.matmul, m=m)


def parse_problem(
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
    collectives: str = "default",
    panel: int = DEFAULT_PANEL,
    transposed: str = "none",
    threads: int | None = None,
    memory_per_gpu: float | Literal["equal"] | None = None,
) -> ScalingProblem:
    """The scaling problem of the values of command-line flags.

    Parameters
    ----------
    kind : `weak` or `strong`
    matmul : m, k and n, of each GPU (weak) or of all GPUs together (strong); None: `DEFAULT_SIZES`
    gpus : numbers of GPUs, in increasing order
    algorithm : name of an algorithm, several names with commas between them, or `all`
    passes : `forward` or `training`
    dtype : dtype of the matrices
    top : number of grids of each algorithm to simulate, for each number of GPUs
    order : axes of the grid with commas between them; ranks along the first axis are neighbours
    overlaps : overlaps with commas between them, or `none`
    gathered : whether the backward pass gathers B again, as in `Matmul`
    collectives : implementation of each collective, as in `--collectives`
    panel : width of a panel of SUMMA [columns]
    transposed : operand that is stored transposed, or `none`
    threads : threads of each rank; None: its share of the host's cores
    memory_per_gpu : memory limit of all grids, as in `ScalingProblem`

    Raises
    ------
    InputError : a value that is not accepted
    """
    scaling_kind = cast(ScalingKind, kind)
    m, k, n = matmul or DEFAULT_SIZES.get(scaling_kind, (1, 1, 1))
    return ScalingProblem(
        kind=scaling_kind,
        matmul=Matmul(
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
        memory_per_gpu=memory_per_gpu,
    )


def memory_limit(text: str) -> float | Literal["equal"] | None:
    """The memory limit that `--memory-per-gpu` names: bytes, or `equal`; None for an empty text.

    >>> memory_limit("2GiB"), memory_limit("equal"), memory_limit("")
    (2147483648, 'equal', None)

    Raises
    ------
    InputError : neither a size nor `equal`
    """
    if not text:
        return None
    if text == EQUAL:
        return EQUAL
    try:
        size = parse_bytes(text)
    except InputError as error:
        raise InputError(f"--memory-per-gpu {text!r}: {error}; {EQUAL} is accepted, too") from None
    if size < 1:
        raise InputError(f"--memory-per-gpu {text}: a size above 0 or {EQUAL} is accepted")
    return size


def parse_algorithms(text: str) -> tuple[Algorithm, ...]:
    """The algorithms of a list of names with commas between them, or all algorithms for `all`.

    >>> [algorithm.name for algorithm in parse_algorithms("4d,3d")]
    ['4d', '3d']

    Raises
    ------
    InputError : an unknown or repeated name
    """
    if text == "all":
        return all_algorithms()
    names = [name.strip() for name in text.split(",")]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise InputError(f"algorithm {text!r} repeats {', '.join(sorted(repeated))}: name each once")
    return tuple(find_algorithm(name) for name in names)
