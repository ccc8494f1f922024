"""`TrainingExperiment`: training steps of a GPT or MLP on a grid, under a scheme (its layouts and collectives)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Options
from quadrille.algorithms.formats.workload import GptSizes, MlpSizes, Workload
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.training.flops import StepFlops, step_flops
from quadrille.algorithms.training.gemm_layouts import tune_layouts
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.gpt import pipeline_stages as gpt_stages
from quadrille.algorithms.training.microbatches import Microbatches, microbatches
from quadrille.algorithms.training.mlp import Mlp, mlp_schedule
from quadrille.algorithms.training.mlp import pipeline_stages as mlp_stages
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.weight_caching import cache_weights
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.gemm_times import (
    ORIGINAL_LAYOUTS,
    gemm_layouts_machine,
    gemm_times,
    measured_layout_count,
)
from quadrille.experiments.workloads.training_lines import TRAINING_DEFAULTS

if TYPE_CHECKING:
    from quadrille.algorithms.training.megatron_step import MegatronStep
    from quadrille.experiments.workloads.run_options import RunOptions

PIPELINE_FLAGS = ("pipeline_schedule", "pipeline_limit", "stages")
"""Options of the order of passes on a pipeline stage."""
PRUNING_FLAGS = ("sparsity", "prune", "sparse_states")
"""Options of pruned training."""
SMALL_FLAGS = ("products", "fp8_param_gather")
"""Options of products in small numbers."""
PROBLEM_FLAGS = (
    "zero", "micro_batch", "interleave", *PIPELINE_FLAGS, "attention", "recompute", "gradient_bytes", "dropout",
    "offload", "expert_load", *PRUNING_FLAGS, "context_parallel", *SMALL_FLAGS,
)  # fmt: skip
"""Options that only some models have; each is a field of the model and a flag."""
OPTIONS_IDLE_ON_SOME_GRIDS = ("zero", "gradient_bytes")
"""Options that have no effect on some grids."""
GPT_SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary")


def gpt_workload(gpt: Gpt) -> Workload:
    """The sizes of a GPT, and the traits in which it differs from GPT-2, as an entry of a record."""
    sizes = {name: getattr(gpt, name) for name in (*GPT_SIZES, "batch", "inner")}
    experts = gpt.experts.options if gpt.experts else {}
    return Workload(gpt=GptSizes(**sizes, **gpt.architecture.options, **experts))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, repr=False)
class TrainingExperiment(ShortRepr):
    """Training steps of one model under one scheme.

    >>> TrainingExperiment(Mlp((7, 11, 5), 6), Grid(z=2, x=3)).schedule().grid.size
    6

    Parameters
    ----------
    problem : model, its batch, and the options of the step
    grid : process grid
    scheme : layouts and collectives of the step
    execution : overlaps, collectives, threads and rank placement
    shape : named shape of a GPT; None for an MLP
    keep_first : number of layers of each stage that keep their gathered weights for the backward pass
    gemm_layouts : machine whose measurements choose the layout of each product, or `written` for no choice
    software : software whose memory is counted, such as `megatron:loss=te`; empty for the buffers of the schedule

    Raises
    ------
    InputError : a scheme that does not run on the grid
    """

    problem: Gpt | Mlp
    grid: Grid = field(default_factory=Grid)
    scheme: Scheme = field(default_factory=lambda: find_scheme("4d"))
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    shape: ModelShape | None = None
    keep_first: int = 0
    gemm_layouts: str = ORIGINAL_LAYOUTS
    software: str = ""

    def __post_init__(self) -> None:
        self.scheme.check(self.grid)
        if self.grid.context > 1 and self.execution.bands > 1:
            raise InputError(
                f"--bands {self.execution.bands} on grid context={self.grid.context}: a band has whole sequences, "
                "and context cuts them: 1 is accepted"
            )
        if self.software:
            self.megatron_step()

    def megatron_step(self) -> "MegatronStep":
        """The step under Megatron-LM.

        Raises
        ------
        InputError : an MLP, or a step that Megatron-LM has not
        """
        from quadrille.algorithms.training.megatron_software import parse_software

        software = parse_software(self.software)
        if software is None or not isinstance(self.problem, Gpt):
            raise InputError(f"--software {self.software}: is for --gpt; a stack of linear layers has no such software")
        return software.step(self.problem, self.grid, sequence_parallel=self.sequence_parallel)

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations between products are scattered over x (Megatron's sequence parallelism)."""
        return bool(self.scheme.stream.finer)

    @property
    def name(self) -> str:
        """The name of the scheme, as in records."""
        return self.scheme.name

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def passes(self) -> Literal["training"]:
        return "training"

    @property
    def stages(self) -> Stages:
        """The pipeline stages, and the order of their passes over the microbatches."""
        match self.problem:
            case Gpt() as gpt:
                return gpt_stages(gpt, self.grid)
            case Mlp() as mlp:
                return mlp_stages(mlp, self.grid)

    @property
    def microbatches(self) -> Microbatches:
        """The division of the batch."""
        batch = self.problem.batch if isinstance(self.problem, Gpt) else self.problem.rows
        return microbatches(batch, self.problem.micro_batch, self.grid)

    @property
    def workload(self) -> Workload:
        match self.problem:
            case Gpt() as gpt:
                return gpt_workload(gpt)
            case Mlp() as mlp:
                return Workload(mlp=MlpSizes(mlp.widths, mlp.rows))

    @property
    def model(self) -> str:
        """Name of the model, without the batch."""
        match self.problem:
            case Gpt() as gpt:
                sizes = {name: getattr(gpt, name) for name in GPT_SIZES}
                named = sizes | gpt.architecture.options | (gpt.experts.options if gpt.experts else {})
                return "gpt " + ",".join(f"{name}={value}" for name, value in named.items())
            case Mlp() as mlp:
                return "mlp " + ",".join(map(str, mlp.widths))

    def options(self, threads: int) -> Options:
        """The options, as an entry of a record."""
        problem = self.problem
        chosen: dict[str, Any] = {name: getattr(problem, name) for name in PROBLEM_FLAGS if hasattr(problem, name)}
        for name in (
            *PIPELINE_FLAGS,
            "dropout",
            "offload",
            "expert_load",
            *PRUNING_FLAGS,
            "context_parallel",
            *SMALL_FLAGS,
        ):  # newer than the others, so a record holds no default of them
            if name in chosen and chosen[name] == TRAINING_DEFAULTS[name]:
                del chosen[name]
        if problem.offload is not None:
            chosen["offload"] = str(problem.offload)
        if "expert_load" in chosen:
            chosen["expert_load"] = str(chosen["expert_load"])
        if self.keep_first:
            chosen["keep_first"] = self.keep_first
        if self.gemm_layouts != ORIGINAL_LAYOUTS:
            chosen["gemm_layouts"] = self.gemm_layouts
        if self.software:
            chosen["software"] = self.software
        if self.shape is not None and self.shape.approximations:
            chosen["approximate"] = self.shape.approximations
        return Options(
            overlap=self.execution.overlap_names,
            gathered=problem.gathered,
            collectives=str(self.execution.choices),
            threads=threads,
            scheme=self.scheme.name,
            sequence_parallel=self.sequence_parallel,
            steps=problem.steps,
            clip=problem.adam.clip,
            **self.execution.options,
            **chosen,
        )

    @property
    def step_flops(self) -> StepFlops:
        """Operations of the matrix products of one step, over all ranks [flop]."""
        match self.problem:
            case Gpt() as gpt:
                return step_flops(gpt.shape, gpt.batch, gpt.attention, gpt.recompute)
            case Mlp() as mlp:
                return StepFlops(mlp.flops // mlp.steps, mlp.flops // mlp.steps)

    @property
    def flops(self) -> int:
        """Operations of the matrix products of all steps, over all ranks [flop]."""
        return self.step_flops.model * self.problem.steps

    @property
    def lower_bound_bytes(self) -> None:
        """None: no lower bound of the sent bytes is known for training steps."""
        return None

    def on_nodes(self, nodes: Sequence[int]) -> "TrainingExperiment":
        """The experiment with the node of each rank added to hierarchical collectives, which need it."""
        return replace(self, execution=self.execution.on_nodes(self.grid, nodes))

    def unchecked_schedule(self) -> Schedule:
        """The schedule without overlaps and before its check; a checkpoint may still change it."""
        match self.problem:
            case Gpt() as gpt:
                schedule = gpt_schedule(gpt, self.grid, self.scheme)
            case Mlp() as mlp:
                schedule = mlp_schedule(mlp, self.grid, self.scheme)
        schedule = cache_weights(schedule, self.keep_first)
        if self.gemm_layouts == ORIGINAL_LAYOUTS:
            return schedule
        machine = gemm_layouts_machine(self.gemm_layouts, self.grid.size)
        return tune_layouts(schedule, gemm_times(machine, self.dtype, self.grid.size, self.execution.threads))

    def applied_schedule(self) -> Schedule:
        """The schedule with its overlaps, unchecked."""
        return self.execution.applied(self.unchecked_schedule())

    def schedule(self) -> Schedule:
        """The checked schedule, with its overlaps."""
        return self.checked(self.unchecked_schedule())

    def checked(self, schedule: Schedule) -> Schedule:
        """The checked form of a schedule of this experiment, with its overlaps.

        Parameters
        ----------
        schedule : schedule from `unchecked_schedule`, perhaps changed for a checkpoint
        """
        return validate(self.execution.applied(schedule))

    def check_run(self, options: "RunOptions") -> None:
        """Raises InputError for options that only matmuls have."""
        if options.operands != "uniform":
            raise InputError(f"--operands {options.operands}: is for --matmul; a model begins as --seed says")
        if options.verify_method not in ("auto", "serial"):
            raise InputError(f"--verify-method {options.verify_method}: training is checked by a serial run: serial")
        for matrix, path in (*options.inputs.items(), *options.outputs.items()):
            if path:
                raise InputError(f"--{matrix.lower()} {path}: is for --matmul; a model has --load and --save")

    def grids_that_fit(self, ranks: int) -> str:
        """The grids and options that fit a number of ranks, as text."""
        axes = ", ".join(axis for axis in AXES if _has_axis(self.scheme, axis))
        return f"a --grid of {ranks} over the axes {axes}"

    def remarks(self, schedule: Schedule) -> list[str]:
        """Remarks about simplified traits of the model, and about options without effect.

        Parameters
        ----------
        schedule : schedule of the experiment
        """
        lines = []
        if self.shape is not None and self.shape.differences:
            lines.append(f"{self.shape.name} differs from the published model: {'; '.join(self.shape.differences)}")
        if self.gemm_layouts != ORIGINAL_LAYOUTS:
            machine = gemm_layouts_machine(self.gemm_layouts, self.grid.size)
            if measured_layout_count(machine, self.dtype) < 2:
                words = f"{machine.name} has no measured products in {self.dtype} of several layouts"
                lines.append(f"--gemm-layouts {self.gemm_layouts} changes nothing: {words}")
        return lines + self._without_effect(schedule)

    def _without_effect(self, schedule: Schedule) -> list[str]:
        """A line for each option that changes nothing on this grid."""
        where = f"{self.name} on {self.grid}"
        marked = {
            op.overlap
            for op in all_ops(schedule)
            if isinstance(op, Communication) and self.grid.length(op.axis) > 1 and op.overlap
        }
        idle = [name for name in self.execution.overlap_names if name not in marked]
        lines = [f"--overlap {','.join(idle)} changes nothing: {where} has no such communication"] if idle else []
        lines += self.execution.idle_bands_remark(schedule, where)
        if self.keep_first and "oag" not in marked:
            lines.append(f"--keep-first {self.keep_first} changes nothing: {where} gathers no weights")
        if self.problem.gathered == "keep" and "oag" not in marked:
            lines.append(f"--gathered keep changes nothing: {where} gathers no weights")
        form = getattr(self.problem, "context_parallel", TRAINING_DEFAULTS["context_parallel"])
        if form != TRAINING_DEFAULTS["context_parallel"] and self.grid.context == 1:
            lines.append(f"--context-parallel {form} changes nothing: {where} has no ranks along context")
        if self.sequence_parallel and self.grid.x == 1:
            lines.append(f"--sequence-parallel changes nothing: {where} has no ranks along x")
        problem = self.problem
        if isinstance(problem, Gpt) and problem.attention != "unfused" and problem.recompute == "selective":
            lines.append("--recompute selective changes nothing: fused attention stores no attention weights")
        return lines + [f"{words} changes nothing: {where} does the same without" for words in self._idle_options()]

    def _idle_options(self) -> Iterator[str]:
        """The flags of options without which the schedule of the step is the same."""
        for name in OPTIONS_IDLE_ON_SOME_GRIDS:
            default = TRAINING_DEFAULTS[name]
            chosen = getattr(self.problem, name, default)
            if chosen != default:
                otherwise = replace(self, problem=replace(self.problem, **{name: default}))  # type: ignore[arg-type]
                if otherwise.unchecked_schedule() == self.unchecked_schedule():
                    yield f"--{name.replace('_', '-')} {chosen}"
        if self.grid.pipeline == 1:
            chosen_order = {name: getattr(self.problem, name) for name in PIPELINE_FLAGS[:2]}
            for name, value in chosen_order.items():
                if value != TRAINING_DEFAULTS[name]:
                    yield f"--{name.replace('_', '-')} {value}"


def _has_axis(scheme: Scheme, axis: str) -> bool:
    """Whether a scheme has an axis."""
    try:
        scheme.check(Grid(**cast(Any, {axis: 2})))
    except InputError as error:
        return "no axis" not in str(error)
    return True
