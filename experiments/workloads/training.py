"""Training steps as `run` and `simulate` know them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from quadrille.algorithms.analysis.validate import validate
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Options
from quadrille.algorithms.formats.workload import Gpt as GptSizes
from quadrille.algorithms.formats.workload import Mlp as MlpSizes
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.flops import StepFlops, step_flops
from quadrille.algorithms.training.gemm_layouts import tune_layouts
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.mlp import Mlp, mlp_schedule
from quadrille.algorithms.training.models import ModelShape
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.weight_caching import cache_weights
from quadrille.experiments.options.execution_options import Manner
from quadrille.experiments.options.run_options import RunFlags
from quadrille.experiments.workloads.gemm_times import WRITTEN, layouts_known, machine_for_layouts, times_on
from quadrille.experiments.workloads.training_lines import USUAL_OPTIONS

OF_GPTS = ("zero", "micro_batch", "interleave", "recompute", "gradient_bytes")
"""Flags that a problem must have a field for."""
IDLE_ON_SOME_GRIDS = ("zero", "gradient_bytes")
"""Options that change nothing of some schedules."""
GPT_SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary")


def gpt_workload(gpt: Gpt) -> Workload:
    """What a record calls it: sizes, and what differs from the plain GPT."""
    sizes = {name: getattr(gpt, name) for name in (*GPT_SIZES, "batch", "inner")}
    return Workload(gpt=GptSizes(**sizes, **gpt.architecture.options))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TrainingExperiment:
    """Training steps of one model under one scheme, and how they are carried out.

    Parameters
    ----------
    problem : the model, its batch, and what is chosen about the step
    shape : of a GPT, as it was named; None of an MLP
    keep_first : layers of each stage whose gathered weights are kept where others are gathered again
    gemm_layouts : the machine whose rows say in which layout products are issued, or `written`
    manner : overlaps, collectives, threads and places
    """

    problem: Gpt | Mlp
    scheme: Scheme
    sequence_parallel: bool
    grid: Grid
    manner: Manner
    shape: ModelShape | None = None
    keep_first: int = 0
    gemm_layouts: str = WRITTEN

    @property
    def name(self) -> str:
        """What a record calls its algorithm."""
        return self.scheme.name

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def passes(self) -> Literal["training"]:
        return "training"

    @property
    def workload(self) -> Workload:
        match self.problem:
            case Gpt() as gpt:
                return gpt_workload(gpt)
            case Mlp() as mlp:
                return Workload(mlp=MlpSizes(mlp.widths, mlp.rows))

    @property
    def model(self) -> str:
        """What is trained, in words, whatever the batch."""
        match self.problem:
            case Gpt() as gpt:
                sizes = {name: getattr(gpt, name) for name in GPT_SIZES}
                named = sizes | gpt.architecture.options
                return "gpt " + ",".join(f"{name}={value}" for name, value in named.items())
            case Mlp() as mlp:
                return "mlp " + ",".join(map(str, mlp.widths))

    def options(self, threads: int) -> Options:
        """What was chosen, as a record has it."""
        problem = self.problem
        chosen: dict[str, Any] = {name: getattr(problem, name) for name in OF_GPTS if hasattr(problem, name)}
        if self.keep_first:
            chosen["keep_first"] = self.keep_first
        if self.gemm_layouts != WRITTEN:
            chosen["gemm_layouts"] = self.gemm_layouts
        return Options(
            overlap=self.manner.overlap_names,
            gathered=problem.gathered,
            collectives=str(self.manner.choices),
            threads=threads,
            scheme=self.scheme.name,
            sequence_parallel=self.sequence_parallel,
            steps=problem.steps,
            clip=problem.adam.clip,
            **self.manner.options,
            **chosen,
        )

    @property
    def step_flops(self) -> StepFlops:
        """Of the products of one step, over all ranks."""
        match self.problem:
            case Gpt() as gpt:
                return step_flops(gpt.shape, gpt.batch, gpt.recompute)
            case Mlp() as mlp:
                return StepFlops(mlp.flops // mlp.steps, mlp.flops // mlp.steps)

    @property
    def flops(self) -> int:
        """Of the model's products, over all steps."""
        return self.step_flops.model * self.problem.steps

    @property
    def lower_bound_bytes(self) -> None:
        """Bytes that some rank must send: not known of training steps."""
        return None

    def on_nodes(self, nodes: Sequence[int]) -> "TrainingExperiment":
        """The same where hierarchical collectives know the node of each rank."""
        return replace(self, manner=self.manner.on_nodes(self.grid, nodes))

    def unchecked_schedule(self) -> Schedule:
        """The schedule before its overlaps, which may yet be continued from a checkpoint."""
        match self.problem:
            case Gpt() as gpt:
                written = gpt_schedule(gpt, self.grid, self.scheme)
            case Mlp() as mlp:
                written = mlp_schedule(mlp, self.grid, self.scheme)
        kept = cache_weights(written, self.keep_first)
        if self.gemm_layouts == WRITTEN:
            return kept
        machine = machine_for_layouts(self.gemm_layouts, self.grid.size)
        return tune_layouts(kept, times_on(machine, self.dtype, self.grid.size, self.manner.threads))

    def schedule(self) -> Schedule:
        """The checked schedule, with its overlaps."""
        return self.checked(self.unchecked_schedule())

    def checked(self, schedule: Schedule) -> Schedule:
        """A schedule of this experiment, checked, with its overlaps."""
        return validate(self.manner.carried_out(schedule))

    def check_run(self, flags: RunFlags) -> None:
        """Refuse flags that are of multiplications."""
        usual = RunFlags()
        if flags.operands != usual.operands:
            raise InputError(f"--operands {flags.operands}: is for --matmul; a model begins as --seed says")
        if flags.verify_method not in ("auto", "serial"):
            raise InputError(f"--verify-method {flags.verify_method}: training is checked by a serial run: serial")
        for matrix, path in (*flags.inputs.items(), *flags.outputs.items()):
            if path:
                raise InputError(f"--{matrix.lower()} {path}: is for --matmul; a model has --load and --save")

    def fitting(self, ranks: int) -> str:
        """In words, what else could be given on so many ranks."""
        axes = ", ".join(axis for axis in ("pipeline", "data", "z", "y", "x") if _takes(self.scheme, axis))
        return f"a --grid of {ranks} over the axes {axes}"

    def remarks(self) -> list[str]:
        """What to say of a model that schedules carry out otherwise, and of layouts that nobody measured."""
        found = []
        if self.shape is not None and self.shape.differences:
            found.append(f"{self.shape.name} is carried out otherwise: {'; '.join(self.shape.differences)}")
        if self.gemm_layouts != WRITTEN:
            machine = machine_for_layouts(self.gemm_layouts, self.grid.size)
            if layouts_known(machine, self.dtype) < 2:
                words = f"{machine.name} has no measured products in {self.dtype} of several layouts"
                found.append(f"--gemm-layouts {self.gemm_layouts} changes nothing: {words}")
        return found + self._without_effect()

    def _without_effect(self) -> list[str]:
        """What to say of flags that change nothing on this grid."""
        where, schedule = f"{self.name} on {self.grid}", self.unchecked_schedule()
        long = {
            op.overlap
            for op in all_ops(schedule)
            if isinstance(op, Communication) and self.grid.length(op.axis) > 1 and op.overlap
        }
        idle = [name for name in self.manner.overlap_names if name not in long]
        found = [f"--overlap {','.join(idle)} changes nothing: {where} has no such communication"] if idle else []
        found += self.manner.idle_bands(schedule, where)
        if self.keep_first and "oag" not in long:
            found.append(f"--keep-first {self.keep_first} changes nothing: {where} gathers no weights")
        if self.problem.gathered == "keep" and "oag" not in long:
            found.append(f"--gathered keep changes nothing: {where} gathers no weights")
        if self.sequence_parallel and self.grid.x == 1:
            found.append(f"--sequence-parallel changes nothing: {where} has no ranks along x")
        for words, otherwise in self._chosen_otherwise():
            if otherwise.unchecked_schedule() == schedule:
                found.append(f"{words} changes nothing: {where} does the same without")
        return found

    def _chosen_otherwise(self) -> "Iterator[tuple[str, TrainingExperiment]]":
        """What was chosen about the step and may come to nothing, in words, and the same without it."""
        for name in IDLE_ON_SOME_GRIDS:
            usual = USUAL_OPTIONS[name]
            chosen = getattr(self.problem, name, usual)
            if chosen != usual:
                flag = f"--{name.replace('_', '-')} {chosen}"
                yield flag, replace(self, problem=replace(self.problem, **{name: usual}))  # type: ignore[arg-type]


def _takes(scheme: Scheme, axis: str) -> bool:
    """Whether a scheme has an axis."""
    try:
        scheme.check(Grid(**cast(Any, {axis: 2})))
    except InputError as error:
        return "no axis" not in str(error)
    return True
