"""Published steps of Megatron Bridge: rows of its performance tables, each with the experiment that it describes.

A row prints model, GPUs, precision, batch, grid and tokens per second.  What it does not print is that of the benchmark
recipes: 16-bit gradients, a sharded optimizer, weights in 8 bits alone, no dropout, nothing recomputed, sequence
parallelism beside tensor parallelism, sums of tensor parallelism beside products.  Columns of `FSDP` shard weights.
Layers that chunks do not divide are dealt as Megatron's `account_for_embedding_in_pipeline_split` and
`account_for_loss_in_pipeline_split` do: the first and the last chunk have one layer less.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b, docs/performance-summary.md and -archive.md,
src/megatron/bridge/perf_recipes (the columns `recipe*` of a row, where one fits).
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName, Products
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.workloads.command_flags import experiment_flags
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment

LONGEST_FIELD = 2**20
NEEDED = (
    *("model", "variant", "release", "task", "gpu_kind", "num_gpus", "precision", "global_batch", "micro_batch"),
    *("seq_length", "fsdp", "tp", "pp", "cp", "vpp", "ep", "iteration_time_s", "recipe_recompute", "source"),
)
"""Columns that a file must have."""
MODELS = {
    "LLAMA3_8B": "llama3-8b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3.1_405B": "llama3-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "GPT_OSS_20B": "gpt-oss-20b",
    "GPT_OSS_120B": "gpt-oss-120b",
    "DeepSeekV3": "deepseek-v3",
    "Kimi_K2": "kimi-k2",
}
OTHER_MODELS = {
    "Nemotron_3": "layers of Mamba beside attention",
    "DeepSeekV4": "sparse attention that an index chooses",
}
"""Reason why a model is not predicted, by the beginning of its name."""
PRECISIONS: dict[str, Products] = {
    "BF16": "dtype",
    "FP8": "fp8",
    "FP8-CS": "fp8",
    "FP8 (granularity not stated)": "fp8",
    "FP8-MX": "mxfp8",
    "MXFP8": "mxfp8",
    "FP8 32x32 blocks": "mxfp8",
    "NVFP4": "nvfp4",
}
"""Products by the precision of a row.  Unstated granularities are one scale for a tensor, as in the recipes of FP8;
blocks of 32 are MXFP8."""
MACHINES = {"H100": "h100", "B200": "b200", "B300": "b300", "GB200": "gb200", "GB300": "gb300"}
NODE_GPUS = 8
RACK_GPUS = 64
RACK_PLACEMENT = f"packed:{RACK_GPUS}"
"""Of 72 GPUs of a rack 64 are used, 16 trays of four: all groups of these runs are powers of two.  Assumption."""
SCATTERED: frozenset[OverlapName] = frozenset({"oar", "oag"})
SHARDED: frozenset[OverlapName] = frozenset({"oag", "ors"})


@dataclass(frozen=True, slots=True)
class BridgeStep:
    """A published step, as `quadrille simulate` takes it.

    Parameters
    ----------
    experiment : model, batch, grid and options
    machine : name of the machine
    """

    experiment: TrainingExperiment
    machine: str

    @property
    def is_pipelined(self) -> bool:
        """Whether the step is predicted pass by pass."""
        return self.experiment.grid.pipeline > 1

    @property
    def command(self) -> list[str]:
        """The command line that predicts the same time."""
        passes = ["--granularity", "passes"] if self.is_pipelined else []
        return ["quadrille", "simulate", *experiment_flags(self.experiment), "--machine", self.machine, *passes]


@dataclass(frozen=True, slots=True)
class BridgeRow:
    """A row of the tables, with its step or the reason why there is none.

    Parameters
    ----------
    id : release, and line of the page
    columns : text of each column
    seconds : published time of a step [s]
    step : the step; None if there is none
    refused : reason why there is no step; empty if there is one
    """

    id: str
    columns: Mapping[str, str]
    seconds: float
    step: BridgeStep | None = None
    refused: str = ""

    @property
    def kind(self) -> str:
        """Kind of the model: dense or experts."""
        return "experts" if self.whole("ep") > 1 or "_a" in self.columns["model"] else "dense"

    @property
    def layout(self) -> str:
        """GPUs and groups of the row."""
        groups = " ".join(f"{name}{self.columns[name]}" for name in ("tp", "pp", "cp", "vpp", "ep") if self.whole(name))
        return f"{groups} fsdp{self.columns['fsdp']}" if self.whole("fsdp") else groups

    def whole(self, column: str) -> int:
        """The whole number in a column; 0 if it is empty."""
        return int(self.columns[column] or 0)


def read_bridge(path: Path) -> list[BridgeRow]:
    """The rows of a file, each with its step or its refusal.

    Raises
    ------
    InputError : a file that is missing or lacks a column, or a number that cannot be read
    """
    csv.field_size_limit(LONGEST_FIELD)
    if not path.is_file():
        raise InputError(f"file {path}: is missing; megatron_bridge_performance.csv is accepted")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in NEEDED if name not in (reader.fieldnames or ())]:
            raise InputError(f"file {path}: the column {missing[0]} is missing")
        return [_row(columns, f"{path}: line {reader.line_num}") for columns in reader]


def _row(columns: Mapping[str, str], where: str) -> BridgeRow:
    line = columns["source"].rpartition(":")[2]
    page = "archive" if "archive" in columns["source"] else "page"
    try:
        row = BridgeRow(f"{columns['release']} {page} {line}", columns, float(columns["iteration_time_s"]))
        reason = next(_reasons(row), "")
        return replace(row, refused=reason) if reason else _with_step(row)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _with_step(row: BridgeRow) -> BridgeRow:
    """The row with its step, or with the reason why no schedule has it."""
    try:
        return replace(row, step=_step(row))
    except InputError as error:
        return replace(row, refused=str(error))


def _reasons(row: BridgeRow) -> Iterator[str]:
    """Reasons why a row is not predicted, of which the first is named."""
    columns = row.columns
    model, precision = columns["model"], columns["precision"]
    for beginning, reason in OTHER_MODELS.items():
        if model.startswith(beginning):
            yield f"model {model}: {reason}"
    if model not in MODELS:
        yield f"model {model}: is none of ours"
    if columns["task"] == "LoRA":
        yield "task LoRA: gradients of adapters alone"
    elif columns["task"] != "Pre-Training":
        yield f"task {columns['task']}: packed sequences, whose lengths are not printed"
    if columns["variant"]:
        yield f"variant {columns['variant']}: dropped tokens"
    if precision not in PRECISIONS:
        yield f"precision {precision}: is none of ours"
    if columns["gpu_kind"] not in MACHINES:
        yield f"GPU {columns['gpu_kind']}: no machine has it"
    if (recomputed := _recomputed_layers(columns)) is not None:
        yield f"recomputation of {recomputed} layers: all or none are accepted"


def _recomputed_layers(columns: Mapping[str, str]) -> int | None:
    """Number of layers that the recipe recomputes; None if there is none."""
    recipe = json.loads(columns["recipe_recompute"] or "{}")
    layers = recipe.get("recompute_num_layers")
    return None if layers is None else int(layers)


def _step(row: BridgeRow) -> BridgeStep:
    shape = SHAPES[MODELS[row.columns["model"]]]
    sharded = row.whole("fsdp") > 1
    tensor, pipeline, context = (row.whole(name) or 1 for name in ("tp", "pp", "cp"))
    if shape.experts and tensor * context > 1:  # the auxiliary loss, a few passes over scores, needs whole sequences
        shape = replace(shape, experts=replace(shape.experts, balance=0.0))
    data, rest = divmod(row.whole("num_gpus"), tensor * pipeline * context)
    if rest:
        raise InputError(f"GPUs {row.whole('num_gpus')}: no multiple of {tensor} x {pipeline} x {context}")
    grid = Grid(pipeline=pipeline, data=data, x=tensor, context=context, expert=row.whole("ep") or 1)
    chunks = row.whole("vpp") or 1
    products, gpu = PRECISIONS[row.columns["precision"]], row.columns["gpu_kind"]
    problem = gpt_from_shape(
        replace(shape, sequence=row.whole("seq_length")),
        row.whole("global_batch"),
        dtype="bfloat16",
        micro_batch=row.whole("micro_batch"),
        interleave=chunks,
        pipeline_schedule="interleaved" if chunks > 1 else "1f1b",
        stages=chunk_layers(shape.layers, pipeline * chunks),
        zero=3 if sharded else 1,
        gradient_bytes=2,
        products=products,
        fp8_param_gather=products != "dtype",
    )
    overlaps = (SHARDED if sharded else frozenset()) | (SCATTERED if tensor > 1 else frozenset())
    experiment = TrainingExperiment(
        problem,
        grid,
        find_scheme("megatron", sequence_parallel=tensor > 1),
        ExecutionOptions(
            overlaps=overlaps, placement=RACK_PLACEMENT if gpu.startswith("GB") and grid.size > RACK_GPUS else "packed"
        ),
        shape=shape,
    )
    return BridgeStep(experiment, machine_name(gpu, grid.size))


def machine_name(gpu: str, gpus: int) -> str:
    """The named machine with a number of GPUs of a kind.

    >>> machine_name("B200", 8), machine_name("B200", 64), machine_name("GB300", 8)
    ('b200-node', 'b200-superpod', 'gb300-nvl72')
    """
    if gpu.startswith("GB"):
        return f"{MACHINES[gpu]}-nvl72"
    return f"{MACHINES[gpu]}-{'node' if gpus <= NODE_GPUS else 'superpod'}"


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, if they are uneven; empty if they are even, or if a chunk would have none.

    >>> chunk_layers(80, 8), chunk_layers(14, 4), chunk_layers(13, 4)
    ((), (3, 4, 4, 3), ())
    """
    if layers % chunks == 0 or (layers + 2) % chunks or chunks < 2 or layers < chunks:
        return ()
    inner = (layers + 2) // chunks
    return (inner - 1, *(inner,) * (chunks - 2), inner - 1)
