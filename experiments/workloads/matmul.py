"""Multiplications as `run` and `simulate` know them: the flags that name one, parsed in this one place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

from quadrille.algorithms.analysis import bounds
from quadrille.algorithms.analysis.validate import validate
from quadrille.algorithms.collectives.choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Options, Shards
from quadrille.algorithms.formats.workload import Matmul as MatmulSizes
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.matmuls.catalogue import Algorithm, find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.forms import Transposed
from quadrille.algorithms.matmuls.matmul import Gathered, Matmul, Passes, parse_sizes
from quadrille.algorithms.passes.overlap import parse_overlap
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.experiments.options.execution_options import Manner
from quadrille.experiments.options.rank_orders import AUTO, parse_rank_order
from quadrille.experiments.options.run_options import RunFlags, check_matrices
from quadrille.experiments.options.values import one_of, whole_number
from quadrille.experiments.workloads.fitting_grids import fitting

PANELLED = ("summa", "2.5d")


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
    transposed: str = "none"
    overlap: str = "none"
    bands: str = "1"
    collectives: str = "own"
    threads: str = ""
    placement: str = "packed"
    shards: str = ""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One sharded multiplication: the problem, the algorithm on its grid, and the manner in which it is carried out."""

    problem: Matmul
    algorithm: Algorithm
    grid: Grid
    manner: Manner

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
        return Workload(sizes_of(self.problem))

    def options(self, threads: int) -> Options:
        """What was chosen, as a record has it."""
        return Options(
            overlap=self.manner.overlap_names,
            gathered=self.gathered,
            collectives=str(self.manner.choices),
            threads=threads,
            panel=self.panel,
            **self.manner.options,
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
        return replace(self, manner=self.manner.on_nodes(self.grid, nodes))

    def schedule(self) -> Schedule:
        """The checked schedule, with its overlaps."""
        return validate(self.manner.carried_out(matmul_schedule(self.problem, self.algorithm.name, self.grid)))

    def check_run(self, flags: RunFlags) -> None:
        """Refuse flags of training steps, files of gradients in a forward pass, and a product in an operand's place."""
        for flag, path in (("--save", flags.save), ("--load", flags.load)):
            if path:
                raise InputError(f"{flag} {path}: is for --mlp and --gpt; a multiplication has --a to --db")
        check_matrices(flags, training=self.problem.training)

    def fitting(self, ranks: int) -> str:
        """In words, what else could be given on so many ranks."""
        return fitting(self.algorithm, ranks)

    def remarks(self) -> list[str]:
        """What to say of overlaps and of kept blocks that change nothing, since the schedule has no op of theirs."""
        what = f"{self.algorithm.name}, {self.problem.passes},"
        found = []
        if self.problem.gathered != self.gathered:
            found.append(f"--gathered {self.problem.gathered} changes nothing: {what} gathers nothing twice")
        marked = {op.overlap for op in all_ops(self.schedule()) if isinstance(op, Communication)}
        idle = [name for name in self.manner.overlap_names if name not in marked]
        if idle:
            found.append(f"--overlap {','.join(idle)} changes nothing: {what} has no such communication")
        written = matmul_schedule(self.problem, self.algorithm.name, self.grid)
        return found + self.manner.idle_bands(written, f"{what} on {self.grid}")


def sizes_of(problem: Matmul) -> MatmulSizes:
    """What records say of a multiplication."""
    transposed = None if problem.transposed == "none" else problem.transposed
    return MatmulSizes(problem.m, problem.k, problem.n, transposed)


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
        parse_grid(flags.grid, parse_rank_order(flags.order)),
        parse_manner(flags),
    )
    experiment.algorithm.check(experiment.grid)
    experiment.algorithm.check_form(experiment.problem.transposed)
    return experiment


def parse_manner(flags: Flags) -> Manner:
    """How the flags say that it is carried out."""
    return Manner(
        parse_overlap(flags.overlap),
        parse_choices(flags.collectives),
        whole_number(flags.threads, "--threads") if flags.threads else None,
        flags.placement,
        cast(Shards, one_of(flags.shards, "shards", get_args(Shards))) if flags.shards else None,
        whole_number(flags.bands, "--bands"),
        flags.order == AUTO,
    )


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
        cast(Transposed, one_of(flags.transposed, "transposed", get_args(Transposed))),
    )
