"""`MegatronStep`: a training step as Megatron-LM's arguments describe it, with the choices that decide its memory.

Sizes are those of a rank's share where a method says so.  The vocabulary is the padded one, as Megatron-LM allocates
it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError

MegatronPrecision = Literal["bfloat16", "float16", "float32"]
AttentionKernel = Literal["auto", "flash", "cudnn", "unfused"]
LossKernel = Literal["unfused", "native", "te"]
MegatronRecompute = Literal["none", "selective", "full"]
Implementation = Literal["transformer_engine", "local"]
LARGEST = 10**9
"""The largest accepted size; a product of several still fits a float exactly enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronStep:
    """A training step of a dense transformer under Megatron-LM.

    Parameters
    ----------
    gpus : number of GPUs
    layers, hidden, heads, sequence, vocabulary : sizes of the model; the vocabulary is padded
    inner : width of the MLP
    head_columns : columns of a head
    key_heads : heads of keys and values
    micro_batch, global_batch : sequences
    tensor, pipeline, context : lengths of the parallel groups
    virtual : layer chunks of a pipeline stage
    group : microbatches that pass a chunk before the next chunk; 0 for `pipeline`
    stage_layers : layers of each pipeline stage, or of each chunk in the order of the layers; empty for the same number
        on each
    gated : whether the MLP is gated
    rms_norm : RMSNorm instead of LayerNorm
    biases, qkv_biases : whether all linear layers, or QKV alone, have biases
    head_norm : whether queries and keys of each head are normalised
    positions : entries of a learned table of positions; 0 for none
    untied : whether the output layer has a table of its own
    precision : element type of weights and activations
    gradient_bytes : bytes of an element of the gradient buffer
    distributed_optimizer : whether the optimizer state is sharded over data (ZeRO 1)
    optimizer_instances : copies of the sharded optimizer state
    sharded_weights : whether weights and gradients are sharded over data, too (Megatron-FSDP, ZeRO 3)
    sequence_parallel : whether activations between products are scattered over the tensor group
    attention : kernel of attention; `auto` for the one that TransformerEngine chooses
    deterministic : whether results are the same in every run
    recompute : what the backward pass recomputes
    recompute_layers : layers of a recomputed unit (`uniform`), or recomputed layers of a stage (`block`)
    recompute_block : whether the method is `block`
    hidden_dropout, attention_dropout : shares of dropped elements
    implementation : modules of a layer
    loss : kernel of the cross entropy
    fused_gradients : whether weight gradients are accumulated by the product itself
    mask_from_loader : whether each batch carries its attention mask

    Raises
    ------
    InputError : a size that is no whole number from 1, or one that does not divide another
    """

    gpus: int
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    inner: int
    head_columns: int
    key_heads: int
    micro_batch: int
    global_batch: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    virtual: int = 1
    group: int = 0
    stage_layers: tuple[int, ...] = ()
    gated: bool = False
    rms_norm: bool = False
    biases: bool = True
    qkv_biases: bool = False
    head_norm: bool = False
    positions: int = 0
    untied: bool = False
    precision: MegatronPrecision = "bfloat16"
    gradient_bytes: int = 4
    distributed_optimizer: bool = False
    optimizer_instances: int = 1
    sharded_weights: bool = False
    sequence_parallel: bool = False
    attention: AttentionKernel = "auto"
    deterministic: bool = False
    recompute: MegatronRecompute = "none"
    recompute_layers: int = 1
    recompute_block: bool = False
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    implementation: Implementation = "transformer_engine"
    loss: LossKernel = "unfused"
    fused_gradients: bool = True
    mask_from_loader: bool = True

    def __post_init__(self) -> None:
        for name in SIZES:
            if not 1 <= getattr(self, name) <= LARGEST:
                raise InputError(f"{name} {getattr(self, name)}: a whole number from 1 to {LARGEST} is accepted")
        for name, accepted in WORDS.items():
            if getattr(self, name) not in accepted:
                raise InputError(f"{name} {getattr(self, name)!r:.40}: accepted are {', '.join(accepted)}")
        self._divides("heads", self.heads, "tensor", self.tensor)
        self._divides("vocabulary", self.vocabulary, "tensor", self.tensor)
        self._divides("heads", self.heads, "key heads", self.key_heads)
        self._divides("gpus", self.gpus, "tensor x pipeline x context", self.model_ranks)
        self._divides("global batch", self.global_batch, "micro batch x data", self.micro_batch * self.data)
        numbers = self.pipeline * self.virtual
        counts = (self.pipeline, numbers)
        if self.stage_layers and (len(self.stage_layers) not in counts or sum(self.stage_layers) != self.layers):
            raise InputError(
                f"stages {','.join(map(str, self.stage_layers)):.60}: {numbers} numbers whose sum is {self.layers} "
                "layers are accepted"
            )
        if not self.stage_layers:
            self._divides("layers", self.layers, "stages x chunks", self.pipeline * self.virtual)

    def _divides(self, whole: str, size: int, part: str, divisor: int) -> None:
        if size % divisor:
            raise InputError(f"{whole} {size}: a multiple of {part} = {divisor} is accepted")

    @property
    def model_ranks(self) -> int:
        """Ranks that share one copy of the model and its sequences."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Ranks of a group along data, without context."""
        return self.gpus // self.model_ranks

    @property
    def microbatches(self) -> int:
        """Microbatches of a step on each rank."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def item_bytes(self) -> int:
        """Bytes of a weight and of an activation."""
        return 4 if self.precision == "float32" else 2

    def layers_of(self, stage: int) -> int:
        """Layers of a pipeline stage."""
        return sum(self.stage_layers[stage :: self.pipeline]) if self.stage_layers else self.layers // self.pipeline

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on one rank, after the cut over context."""
        return self.micro_batch * self.sequence // self.context


SIZES = (
    "gpus", "layers", "hidden", "heads", "sequence", "vocabulary", "inner", "head_columns", "key_heads", "micro_batch",
    "global_batch", "tensor", "pipeline", "context", "virtual", "optimizer_instances", "recompute_layers",
)  # fmt: skip
"""Fields that are whole numbers from 1."""
WORDS: dict[str, tuple[str, ...]] = {
    "precision": get_args(MegatronPrecision),
    "attention": get_args(AttentionKernel),
    "loss": get_args(LossKernel),
    "recompute": get_args(MegatronRecompute),
    "implementation": get_args(Implementation),
}
"""Accepted words of the fields that are words."""
