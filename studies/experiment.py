"""What `run` and `simulate` have in common: their flags, parsed in this one place, and the experiment they name."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log2, prod
from typing import Literal, Protocol, cast, get_args

from algorithms import bounds, record
from algorithms.catalogue import Algorithm, find_algorithm, matmul_schedule
from algorithms.choices import Choices, parse_choices, placed
from algorithms.errors import InputError
from algorithms.grid import Grid, parse_grid, parse_order
from algorithms.matmul import Gathered, Matmul, Passes, parse_sizes
from algorithms.ops import Communication, OverlapName
from algorithms.overlap import OVERLAPS, overlap, parse_overlap
from algorithms.record import Options, Shards, Workload
from algorithms.schedule import Schedule, all_ops
from algorithms.tensors import ITEM_BYTES, DType
from algorithms.validate import validate
from runtime.arrays import Backend
from runtime.generator import Kind
from runtime.operands import Matrix
from runtime.verify import Product
from studies.grids import grids
from studies.site import CarrierName

GRIDS_SHOWN = 6
PANELLED = ("summa", "2.5d")
Checked = Literal["auto", "serial", "freivalds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The flags that name an experiment, as they were typed; the defaults are those of the command line."""

    matmul: str = ""
    algorithm: str = "4d"
    grid: str = "x=1"
    order: str = "x,y,z,data"
    dtype: str = "float32"
    passes: str = "forward"
    gathered: str = "again"
    panel: str = "256"
    overlap: str = "none"
    collectives: str = "own"
    threads: str = ""
    placement: str = "packed"
    shards: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """The flags that say how it is run, as they were typed; the defaults are those of the command line.

    A prediction takes them too, checks them, and is changed by none.
    `inputs` and `outputs` are paths by matrix, empty where there is no file.
    """

    backend: str = "numpy"
    carrier: str = "auto"
    seed: str = "0"
    operands: str = "uniform"
    inputs: Mapping[Matrix, str] = field(default_factory=dict)
    outputs: Mapping[Product, str] = field(default_factory=dict)
    warmups: str = "1"
    repeats: str = "5"
    verify: bool = False
    verify_method: str = "auto"
    save: str = ""
    load: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How an experiment is run: on what arrays, from and to which files, how often, and whether it is verified."""

    backend: Backend
    carrier: CarrierName
    seed: int
    kind: Kind
    inputs: Mapping[Matrix, str]
    outputs: Mapping[Product, str]
    warmups: int
    repeats: int
    checked: Checked | None
    save: str = ""
    load: str = ""

    @property
    def files(self) -> dict[str, str]:
        """Paths of all matrices, and of what is saved, by the flag that names them."""
        matrices = {f"--{matrix.lower()}": path for matrix, path in (*self.inputs.items(), *self.outputs.items())}
        return matrices | ({"--save": self.save} if self.save else {})


@dataclass(frozen=True, slots=True)
class Experiment:
    """One sharded multiplication: the problem, the algorithm on its grid, and how it is carried out.

    Parameters
    ----------
    overlaps : communication that runs beside the compute lane
    choices : who carries out the collectives
    threads : BLAS threads of each rank; None for its share of the host's cores
    placement : the rule by which a prediction gives ranks their places
    shards : whether a prediction has shards of mean size; None for what suits the number of ranks
    """

    problem: Matmul
    algorithm: Algorithm
    grid: Grid
    overlaps: frozenset[OverlapName]
    choices: Choices
    threads: int | None = None
    placement: str = "packed"
    shards: Shards | None = None

    @property
    def name(self) -> str:
        """What a record calls its algorithm."""
        return self.algorithm.name

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def passes(self) -> Passes:
        return self.problem.passes

    @property
    def flops(self) -> int:
        """Of all products."""
        return self.problem.flops

    @property
    def workload(self) -> Workload:
        return Workload(record.Matmul(self.problem.m, self.problem.k, self.problem.n))

    def options(self, threads: int) -> Options:
        """What was chosen, as a record has it."""
        return Options(
            overlap=tuple(name for name in OVERLAPS if name in self.overlaps),
            gathered=self.gathered,
            collectives=str(self.choices),
            threads=threads,
            panel=self.panel,
        )

    @property
    def lower_bound_bytes(self) -> float | None:
        """Bytes that some rank must send; None where operands are held repeatedly, which may need fewer."""
        problem = self.problem
        if problem.training or not self.algorithm.one_copy:
            return None
        words = bounds.lower_bound_words(problem.m, problem.k, problem.n, self.grid.size)
        return max(0.0, words) * ITEM_BYTES[problem.dtype]

    @property
    def panel(self) -> int | None:
        """Width of the panels, for the algorithms that have them."""
        return self.problem.panel if self.algorithm.name in PANELLED else None

    @property
    def gathered(self) -> Gathered:
        """What becomes of gathered blocks; `again` where keeping them changes nothing, so that both are one problem."""
        either: tuple[Gathered, ...] = get_args(Gathered)
        one, other = (
            matmul_schedule(replace(self.problem, gathered=word), self.algorithm.name, self.grid) for word in either
        )
        return "again" if one == other else self.problem.gathered

    def on_nodes(self, nodes: Sequence[int]) -> "Experiment":
        """The same where hierarchical collectives know the node of each rank."""
        if self.choices.set_name != "hierarchical":
            return self
        return replace(self, choices=placed(self.choices, self.grid, nodes))

    def schedule(self) -> Schedule:
        """The checked schedule, with its overlaps."""
        return validate(overlap(matmul_schedule(self.problem, self.algorithm.name, self.grid), self.overlaps))

    def check_run(self, flags: RunFlags) -> None:
        """Refuse flags of training steps, files of gradients in a forward pass, and a product in an operand's place."""
        for flag, path in (("--save", flags.save), ("--load", flags.load)):
            if path:
                raise InputError(f"{flag} {path}: is for --mlp and --gpt; a multiplication has --a to --db")
        _check_matrices(flags, training=self.problem.training)

    def fitting(self, ranks: int) -> str:
        """In words, what else could be given on so many ranks."""
        return fitting(self.algorithm, ranks)

    def remarks(self) -> list[str]:
        """What to say of overlaps and of kept blocks that change nothing."""
        return remarks(self, self.schedule())


def parse_experiment(flags: Flags) -> Experiment:
    """The experiment that the flags name, checked as far as one can without ranks or a machine.

    >>> parse_experiment(Flags(matmul="13,7,5", algorithm="summa", grid="z=2,x=3")).grid.size
    6

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    experiment = Experiment(
        parse_problem(flags),
        find_algorithm(flags.algorithm),
        parse_grid(flags.grid, parse_order(flags.order)),
        parse_overlap(flags.overlap),
        parse_choices(flags.collectives),
        whole_number(flags.threads, "--threads") if flags.threads else None,
        flags.placement,
        cast(Shards, one_of(flags.shards, "shards", get_args(Shards))) if flags.shards else None,
    )
    experiment.algorithm.check(experiment.grid)
    return experiment


def parse_problem(flags: Flags) -> Matmul:
    """The multiplication that the flags name."""
    if not flags.matmul:
        raise InputError("matmul is missing: --matmul M,K,N is needed, three whole numbers from 1, such as 512,512,512")
    m, k, n = parse_sizes(flags.matmul)
    return Matmul(
        m,
        k,
        n,
        cast(DType, one_of(flags.dtype, "dtype", get_args(DType))),
        cast(Passes, one_of(flags.passes, "passes", get_args(Passes))),
        cast(Gathered, one_of(flags.gathered, "gathered", get_args(Gathered))),
        whole_number(flags.panel, "--panel"),
    )


class Planned(Protocol):
    """What can be run, and says which flags of a run it has no use for."""

    def check_run(self, flags: RunFlags) -> None:
        """Refuse flags of a run that cannot be of this experiment (InputError)."""


def parse_plan(flags: RunFlags, experiment: Planned) -> Plan:
    """The plan that the flags name.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    checked = cast(Checked, one_of(flags.verify_method, "verify-method", get_args(Checked)))
    experiment.check_run(flags)
    plan = Plan(
        cast(Backend, one_of(flags.backend, "backend", get_args(Backend))),
        cast(CarrierName, one_of(flags.carrier, "carrier", get_args(CarrierName))),
        whole_number(flags.seed, "--seed", least=0),
        cast(Kind, one_of(flags.operands, "operands", get_args(Kind))),
        {matrix: path for matrix, path in flags.inputs.items() if path},
        {product: path for product, path in flags.outputs.items() if path},
        whole_number(flags.warmups, "--warmups", least=0),
        whole_number(flags.repeats, "--repeats"),
        checked if flags.verify else None,
        flags.save,
        flags.load,
    )
    if plan.carrier == "nccl" and plan.backend != "cupy":
        raise InputError("carrier 'nccl': it carries arrays of --backend cupy only; accepted is mpi")
    return plan


def _check_matrices(flags: RunFlags, *, training: bool) -> None:
    """Refuse files of gradients in a forward pass, and a product that would take the place of an operand."""
    if not training:
        given = {"dC": flags.inputs.get("dC"), "dA": flags.outputs.get("dA"), "dB": flags.outputs.get("dB")}
        for matrix, path in given.items():
            if path:
                raise InputError(f"--{matrix.lower()} {path}: a forward pass has no {matrix}; give --passes training")
    for product, path in flags.outputs.items():
        for matrix, read in flags.inputs.items():
            if path and read and same_file(path, read):
                flag, other = f"--{matrix.lower()}", f"--{product.lower()}"
                raise InputError(f"{flag} and {other} both name {path}: give each its own file")


def same_file(one: str, other: str) -> bool:
    """Whether two paths lead to one file, links followed; stdout is none.

    >>> same_file("c.npy", "./c.npy"), same_file("a.npy", "c.npy")
    (True, False)
    """
    return os.path.realpath(one) == os.path.realpath(other)


def one_of(word: str, quantity: str, accepted: tuple[str, ...]) -> str:
    """`word`, if it is one of those accepted.

    Raises
    ------
    InputError : another word
    """
    if word not in accepted:
        raise InputError(f"{quantity} {word!r}: accepted are {', '.join(accepted)}")
    return word


MOST_DIGITS = 15


def whole_number(text: str, flag: str, *, least: int = 1, most: int | None = None) -> int:
    """The whole number in `text`.

    >>> whole_number("12", "--repeats")
    12

    Raises
    ------
    InputError : none, one below `least` or above `most`
    """
    if len(text) > MOST_DIGITS:
        raise InputError(f"{flag} {text[:MOST_DIGITS]}… has {len(text)} digits: at most {MOST_DIGITS} are accepted")
    if not (text.isascii() and text.isdigit() and least <= int(text) <= (int(text) if most is None else most)):
        range_words = f"from {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{flag} {text!r}: a whole number {range_words} is accepted")
    return int(text)


class Gridded(Protocol):
    """What runs on a grid of ranks."""

    @property
    def grid(self) -> Grid: ...

    def fitting(self, ranks: int) -> str:
        """In words, what else could be given on so many ranks."""


def check_ranks(experiment: Gridded, ranks: int) -> None:
    """Refuse a number of ranks that is not that of the grid, and say which grids would fit.

    Raises
    ------
    InputError : another number
    """
    if ranks == experiment.grid.size:
        return
    size = experiment.grid.size
    raise InputError(
        f"ranks={ranks}, but the grid {experiment.grid} has {size}: start {size} ranks (quadrille launch -n {size} …) "
        f"or give {experiment.fitting(ranks)}"
    )


def fitting(algorithm: Algorithm, ranks: int) -> str:
    """In words, the grids of so many ranks that an algorithm runs on, the most even ones first.

    >>> fitting(find_algorithm("3d"), 4)
    'a --grid of 4 for 3d: y=2,x=2; z=2,x=2; z=2,y=2; x=4; y=4; z=4'
    >>> fitting(find_algorithm("cannon"), 6)
    'another number of ranks: cannon has no grid of 6, it takes z=q,x=q'
    """
    found = fitting_grids(algorithm, ranks)
    if not found:
        return f"another number of ranks: {algorithm.name} has no grid of {ranks}, it takes z=q,x=q"
    shown = "; ".join(map(str, found[:GRIDS_SHOWN])) + ("; …" if len(found) > GRIDS_SHOWN else "")
    return f"a --grid of {ranks} for {algorithm.name}: {shown}"


def fitting_grids(algorithm: Algorithm, ranks: int) -> list[Grid]:
    """All grids of so many ranks that an algorithm runs on, the most even ones first."""
    return sorted(grids(ranks, algorithm), key=_unevenness)


def _unevenness(grid: Grid) -> tuple[float, str]:
    """Smaller for grids whose longer axes are alike."""
    lengths = [length for length in grid.lengths.values() if length > 1]
    assert prod(lengths) == grid.size
    return sum(log2(length) ** 2 for length in lengths), str(grid)


def remarks(experiment: Experiment, schedule: Schedule) -> list[str]:
    """What to say of overlaps and of kept blocks that change nothing, since the schedule has no op of theirs."""
    what = f"{experiment.algorithm.name}, {experiment.problem.passes},"
    found = []
    if experiment.problem.gathered != experiment.gathered:
        found.append(f"--gathered {experiment.problem.gathered} changes nothing: {what} gathers nothing twice")
    marked = {op.overlap for op in all_ops(schedule) if isinstance(op, Communication)}
    idle = [name for name in OVERLAPS if name in experiment.overlaps and name not in marked]
    if idle:
        found.append(f"--overlap {','.join(idle)} changes nothing: {what} has no such communication")
    return found
