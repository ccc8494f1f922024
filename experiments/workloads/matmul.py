"""`MatmulExperiment`: a matmul problem, the grid, the algorithm, and the execution options."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Options
from quadrille.algorithms.formats.workload import MatmulSizes, Workload
from quadrille.algorithms.matmuls.catalogue import Algorithm, AlgorithmName, find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Gathered, Matmul, Passes
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.algorithms.tabular import ShortRepr
from quadrille.experiments.workloads.execution_options import ExecutionOptions

if TYPE_CHECKING:
    from quadrille.experiments.workloads.run_options import RunOptions


@dataclass(frozen=True, slots=True, repr=False)
class MatmulExperiment(ShortRepr):
    """A sharded matrix product: what is multiplied, on which grid, by which algorithm, and how it is executed.

    >>> MatmulExperiment(Matmul(13, 7, 5), Grid(z=2, x=3), "summa").schedule().grid.size
    6

    Raises
    ------
    InputError : an algorithm that does not run on the grid, or does not take the operands as they are stored
    """

    problem: Matmul
    grid: Grid = field(default_factory=Grid)
    algorithm: AlgorithmName = "4d"
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)

    def __post_init__(self) -> None:
        self._algorithm.check(self.grid)
        self._algorithm.check_form(self.problem.transposed)

    @property
    def _algorithm(self) -> Algorithm:
        return find_algorithm(self.algorithm)

    @property
    def name(self) -> AlgorithmName:
        """The name of the algorithm, as in records."""
        return self.algorithm

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def passes(self) -> Passes:
        return self.problem.passes

    @property
    def flops(self) -> int:
        """Operations of all products [flop]."""
        return self.problem.flops

    @property
    def workload(self) -> Workload:
        """The sizes, as an entry of a record."""
        return Workload(matmul_sizes(self.problem))

    def options(self, threads: int) -> Options:
        """The options, as an entry of a record."""
        return Options(
            overlap=self.execution.overlap_names,
            gathered=self.gathered,
            collectives=str(self.execution.choices),
            threads=threads,
            panel=self.problem.panel if self._algorithm.paneled else None,
            **self.execution.options,
        )

    @property
    def lower_bound_bytes(self) -> float | None:
        """Lower bound of the bytes that some rank sends; None if operands are replicated, which may need fewer."""
        problem = self.problem
        if problem.training or not self._algorithm.one_copy:
            return None
        from quadrille.algorithms.analysis.communication_lower_bound import lower_bound_words

        words = lower_bound_words(problem.m, problem.k, problem.n, self.grid.size)
        return max(0.0, words) * ITEM_BYTES[problem.dtype]

    @property
    def gathered(self) -> Gathered:
        """Whether gathered blocks are cached; `again` if the algorithm gathers nothing twice."""
        twice = self.problem.training and self._algorithm.gathers_twice
        return self.problem.gathered if twice else "again"

    def on_nodes(self, nodes: Sequence[int]) -> "MatmulExperiment":
        """The experiment with the node of each rank added to hierarchical collectives, which need it."""
        return replace(self, execution=self.execution.on_nodes(self.grid, nodes))

    def schedule(self) -> Schedule:
        """The checked schedule, with its overlaps."""
        return validate(self.execution.applied(matmul_schedule(self.problem, self.algorithm, self.grid)))

    def check_run(self, options: "RunOptions") -> None:
        """Raises InputError for run options that do not fit a matmul.

        A matmul has no checkpoints, its forward pass has no gradients, and no product may overwrite an operand.
        """
        for flag, path in (("--save", options.save), ("--load", options.load)):
            if path:
                raise InputError(f"{flag} {path}: is for --mlp and --gpt; a multiplication has --a to --db")
        options.check_matrices(training=self.problem.training)

    def grids_that_fit(self, ranks: int) -> str:
        """The grids of a number of ranks on which the algorithm runs, as text."""
        from quadrille.experiments.workloads.fitting_grids import grids_that_fit

        return grids_that_fit(self._algorithm, ranks)

    def remarks(self, schedule: Schedule) -> list[str]:
        """Remarks about options without effect.

        Parameters
        ----------
        schedule : schedule of the experiment
        """
        where = f"{self.name}, {self.problem.passes},"
        lines = []
        if self.problem.gathered != self.gathered:
            lines.append(f"--gathered {self.problem.gathered} changes nothing: {where} gathers nothing twice")
        marked = {op.overlap for op in all_ops(schedule) if isinstance(op, Communication)}
        idle = [name for name in self.execution.overlap_names if name not in marked]
        if idle:
            lines.append(f"--overlap {','.join(idle)} changes nothing: {where} has no such communication")
        return lines + self.execution.idle_bands_remark(schedule, f"{where} on {self.grid}")


def matmul_sizes(problem: Matmul) -> MatmulSizes:
    """The sizes of a matmul, as an entry of a record."""
    transposed = None if problem.transposed == "none" else problem.transposed
    return MatmulSizes(problem.m, problem.k, problem.n, transposed)
