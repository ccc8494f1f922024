"""The words that name a multiplication or training steps, as they were typed, and which of them have a say."""

from dataclasses import dataclass

AUTO = "auto"
"""The order of ranks that is chosen for a machine."""
OF_MATMULS = {"matmul": "", "algorithm": "4d", "passes": "forward", "panel": "256", "transposed": "none"}
"""MatmulWords that name a multiplication alone, and their defaults."""


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
    alien = (*OF_MATMULS,) if trains else ("mlp", "gpt", *OF_TRAINING)
    values = {name: getattr(words, name) for name in words.__dataclass_fields__ if name not in alien}
    return {name: ("yes" if value else "") if isinstance(value, bool) else value for name, value in values.items()}
