"""The words of the commands, as they were typed: what is asked, with each default, and which words have a say."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quadrille.algorithms.matmuls.matmul import Operand, Product

AUTO = "auto"
"""The order of ranks that is chosen for a machine."""
OF_MATMULS = ("matmul", "algorithm", "passes", "panel", "transposed")
"""Words that name a multiplication alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulWords:
    """The words that name a multiplication, as they were typed; the defaults are those of the command line."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWords(MatmulWords):
    """The words that name training steps, as they were typed; the defaults are those of the command line.

    Without a dtype it is float32, but for a GPT predicted on a machine that
    gives a speed for bfloat16: there mixed precision is what is trained with.
    """

    mlp: str = ""
    gpt: str = ""
    batch: str = ""
    scheme: str = "4d"
    sequence_parallel: bool = False
    zero: str = "0"
    micro_batch: str = ""
    interleave: str = "1"
    attention: str = "fused"
    recompute: str = "none"
    gradient_bytes: str = "4"
    steps: str = "1"
    learning_rate: str = ""
    clip: str = "0"
    keep_first: str = "0"
    gemm_layouts: str = "written"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """The words that say how an experiment is run, as they were typed; the defaults are those of the command line.

    `inputs` and `outputs` are paths by matrix, empty where there is no file.
    """

    backend: str = "numpy"
    blas: str = "numpy"
    carrier: str = "auto"
    chunk: str = "auto"
    progress: str = "auto"
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
class RankWords:
    """The words as they were typed; the defaults are those of the command line."""

    gpt: str = ""
    batch: str = ""
    gpus: str = ""
    top: str = "8"
    form: str = "exact"
    order: str = ""
    powers_of_two: bool = False
    min_model_parallel: str = "1"
    overlap: str = "none"
    attention: str = "fused"
    recompute: str = "full"
    gathered: str = "again"
    gradient_bytes: str = "4"
    dtype: str = "bfloat16"
    collectives: str = ""
    granularity: str = "auto"
    scheme: str = ""
    sequence_parallel: bool = False
    pipeline: str = ""
    zero: str = ""
    micro_batch: str = ""
    interleave: str = ""

    @property
    def of_schemes(self) -> bool:
        """Whether more is asked about than the grids of the 4D algorithm."""
        return any((self.scheme, self.sequence_parallel, self.pipeline, self.zero, self.micro_batch, self.interleave))

    @property
    def in_full(self) -> "RankWords":
        """The same with what is meant where no collectives are named: NCCL's; ours where ops overlap.

        GPUs of several nodes are used with NCCL, whose rings leave a node by all
        its NICs; beside other ops it can only be bounded, ours are exact.
        """
        usual = "nccl" if self.overlap == "none" else "own"
        return replace(self, collectives=self.collectives or usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWords:
    """What is asked, as it was typed; empty where the default depends on other flags."""

    kind: str = ""
    bytes: str = ""
    gpus: str = ""
    group: str = ""
    stride: str = "1"
    concurrent: str = "one"
    collectives: str = "own"
    channels: str = "1"
    shards: str = ""
    dtype: str = ""
    root: str = "0"
    placement: str = "packed"


KINDS = ("matmul", "mlp", "gpt")
USUAL = TrainingWords()
OF_TRAINING = tuple(
    sorted(set(TrainingWords.__dataclass_fields__) - set(MatmulWords.__dataclass_fields__) - set(KINDS))
)
"""MatmulWords that only training steps have."""


def own_words(words: MatmulWords) -> dict[str, str]:
    """The words that have a say in what is asked for, by name; one that is given or not is `yes` or empty.

    >>> [name for name in own_words(TrainingWords(mlp="4,4")) if name in ("panel", "batch", "matmul")]
    ['batch']
    """
    trains = bool(getattr(words, "mlp", "") or getattr(words, "gpt", ""))
    alien = OF_MATMULS if trains else ("mlp", "gpt", *OF_TRAINING)
    values = {name: getattr(words, name) for name in words.__dataclass_fields__ if name not in alien}
    return {name: ("yes" if value else "") if isinstance(value, bool) else value for name, value in values.items()}
