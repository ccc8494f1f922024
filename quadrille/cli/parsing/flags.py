"""The flags of the commands as typed: one class of texts for each kind of experiment, with the defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quadrille.algorithms.matmuls.matmul import Operand, Product

DEFAULT_COLLECTIVES = "default"
"""The value of --collectives that leaves the choice to the machine; `collective_choices.py` brings NumPy along."""
AUTO = "auto"
"""The value of --order that lets Quadrille choose the order of ranks for a machine."""
OF_MATMULS = ("matmul", "algorithm", "passes", "panel", "transposed")
"""Flags of multiplications only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulFlags:
    """The flags of a multiplication as typed, with the defaults of the command line."""

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
    collectives: str = DEFAULT_COLLECTIVES
    threads: str = ""
    placement: str = "packed"
    shards: str = ""
    jitter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags(MatmulFlags):
    """The flags of training steps as typed, with the defaults of the command line.

    The default dtype is float32. For the prediction of a GPT on a machine with a bfloat16 speed it is bfloat16 (mixed
    precision).
    """

    mlp: str = ""
    gpt: str = ""
    sequence: str = ""
    approximate: bool = False
    batch: str = ""
    scheme: str = "4d"
    sequence_parallel: bool = False
    context_parallel: str = "ring"
    zero: str = "0"
    micro_batch: str = ""
    interleave: str = "1"
    pipeline_schedule: str = "1f1b"
    pipeline_limit: str = ""
    stages: str = ""
    attention: str = "fused"
    recompute: str = "none"
    gradient_bytes: str = "4"
    dropout: str = "0"
    offload: str = ""
    expert_load: str = ""
    sparsity: str = "0"
    prune: str = ""
    sparse_states: bool = False
    products: str = "dtype"
    fp8_param_gather: bool = False
    steps: str = "1"
    learning_rate: str = ""
    clip: str = "0"
    keep_first: str = "0"
    gemm_layouts: str = "written"
    software: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """The flags of the execution of an experiment as typed, with the defaults of the command line.

    Parameters
    ----------
    inputs, outputs : path of the file of each matrix; empty if there is no file
    """

    backend: str = "numpy"
    blas: str = "numpy"
    carrier: str = "auto"
    chunk: str = "auto"
    progress: str = "auto"
    device_memory: str = ""
    seed: str = "0"
    operands: str = "uniform"
    inputs: Mapping["Operand", str] = field(default_factory=dict)
    outputs: Mapping["Product", str] = field(default_factory=dict)
    warmups: str = "1"
    repeats: str = "5"
    verify: bool = False
    verify_method: str = "auto"
    save: str = ""
    load: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFlags:
    """The flags of `quadrille rank` as typed, with the defaults of the command line."""

    gpt: str = ""
    sequence: str = ""
    approximate: bool = False
    batch: str = ""
    gpus: str = ""
    top: str = "8"
    form: str = ""
    order: str = ""
    powers_of_two: bool = False
    min_model_parallel: str = "1"
    overlap: str = ""
    attention: str = "fused"
    recompute: str = ""
    gathered: str = ""
    gradient_bytes: str = "4"
    dropout: str = "0"
    sparsity: str = "0"
    prune: str = ""
    sparse_states: bool = False
    products: str = "dtype"
    fp8_param_gather: bool = False
    offload: str = ""
    expert_load: str = ""
    dtype: str = "bfloat16"
    collectives: str = DEFAULT_COLLECTIVES
    granularity: str = "auto"
    scheme: str = ""
    sequence_parallel: bool = False
    context: str = ""
    context_parallel: str = ""
    pipeline: str = ""
    zero: str = ""
    micro_batch: str = ""
    interleave: str = ""
    pipeline_schedule: str = ""
    pipeline_limit: str = ""
    stages: str = ""
    search: str = ""

    @property
    def of_configurations(self) -> tuple[str, ...]:
        """The flags as typed that ask for more than grids of the 4D algorithm."""
        names = (
            *(
                "search",
                "scheme",
                "sequence_parallel",
                "context",
                "context_parallel",
                "pipeline",
                "zero",
                "micro_batch",
                "interleave",
            ),
            *("pipeline_schedule", "pipeline_limit", "stages"),
        )
        return tuple(name for name in names if getattr(self, name) and not (name == "search" and self.search == "none"))

    @property
    def ranks_schemes(self) -> bool:
        """Whether configurations are ranked by the closed form, and not grids by the communication model of a form."""
        return not self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFlags:
    """The flags of `quadrille collective` as typed; empty if the default depends on other flags."""

    kind: str = ""
    bytes: str = ""
    gpus: str = ""
    group: str = ""
    stride: str = "1"
    concurrent: str = "one"
    collectives: str = DEFAULT_COLLECTIVES
    channels: str = "1"
    shards: str = ""
    dtype: str = ""
    root: str = "0"
    placement: str = "packed"


KINDS = ("matmul", "mlp", "gpt")
DEFAULTS = TrainingFlags()
OF_TRAINING = tuple(
    sorted(set(TrainingFlags.__dataclass_fields__) - set(MatmulFlags.__dataclass_fields__) - set(KINDS))
)
"""Flags of training steps only."""


def relevant_flags(flags: MatmulFlags) -> dict[str, str]:
    """The texts of the flags that matter for the experiment, by name; a switch is `yes` or empty.

    >>> [name for name in relevant_flags(TrainingFlags(mlp="4,4")) if name in ("panel", "batch", "matmul")]
    ['batch']
    """
    trains = bool(getattr(flags, "mlp", "") or getattr(flags, "gpt", ""))
    alien = OF_MATMULS if trains else ("mlp", "gpt", *OF_TRAINING)
    values = {name: getattr(flags, name) for name in flags.__dataclass_fields__ if name not in alien}
    return {name: ("yes" if value else "") if isinstance(value, bool) else value for name, value in values.items()}
