"""Workload of a record: the sizes of a matrix multiplication, or of the training steps of an MLP or a transformer."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(gt=0)]


class MatmulSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The sizes of C_mn = A_mk @ B_kn.

    Parameters
    ----------
    m, k, n : sizes of the product
    transposed : `a` for A stored as k x m, `b` for B stored as n x k
    """

    m: Size
    k: Size
    n: Size
    transposed: Literal["a", "b"] | None = None


class MlpSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stack of linear layers.

    Parameters
    ----------
    widths : width of the input and of each layer's output
    rows : rows of one batch
    """

    widths: tuple[Size, ...]
    rows: Size


class GptSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A transformer and its batch; keys after `batch` appear where they differ from the plain GPT.

    Parameters
    ----------
    layers : transformer layers
    hidden : width of the residual stream
    heads : attention heads
    sequence : tokens of a sequence
    vocabulary : entries of the embedding table
    batch : sequences of one global batch
    inner : width of the MLP; 0 for 4 x hidden
    key_heads : heads of keys and values (grouped-query attention); 0 for as many as query heads
    gated : whether the MLP is gated (SwiGLU)
    norm : LayerNorm or RMSNorm
    biases : whether linear layers have biases
    positions : learned, rotary or no positions
    rotary_base : base of the rotary frequencies
    shared_table : whether input and output share one embedding table
    head_columns : columns of a head; 0 for hidden / heads
    qkv_biases : whether QKV has biases, although other linear layers have none
    qk_norm : RMSNorm of queries and keys: none, of each head, or of a whole row
    window : tokens that a token sees; 0 for all tokens before it
    global_every : period of the layers that see all tokens; 0 if all layers have the window
    local_rotary_base : base of the rotary frequencies in layers with a window; 0 for `rotary_base`
    rotary_share : share of the columns of a head that are rotated
    gate : function of the gate of a gated MLP
    norm_place : norms before attention and the MLP, after them, or both
    score_cap : soft cap of attention scores; 0 for none
    score_columns : columns by whose root scores are divided; 0 for those of a head
    logit_cap : soft cap of logits; 0 for none
    scaled_embedding : whether the embedding is multiplied by √hidden
    key_rank : columns from which keys and values are projected (latent attention); 0 for none
    query_rank : columns from which queries are projected; 0 for none
    rotary_columns : rotated columns of a query head, and of the key that all heads share
    value_columns : columns of a value head
    branches : MLP after attention, or beside it with a norm of its own or with attention's
    sinks : whether each head has a learnt logit in its softmax
    gated_attention : whether a gate multiplies the output of attention
    experts : experts of a layer; 0 for a dense MLP
    top_k : experts that process a token
    expert_ffn : width of an expert
    shared_ffn : width of the MLP that processes every token beside the experts; 0 for none
    shared_gate : whether the sigmoid of a product with one column multiplies the output of that MLP
    dense_layers : layers with a dense MLP instead: how many from the first, or ranges of numbers, as 0-2+5-5
    experts_every : period of the layers with experts
    router : function of the router's scores
    normalised_top_k : whether the shares of a token's experts add up to 1
    routed_scale : factor on the shares
    aux_loss : coefficient of the auxiliary loss; 0 for none
    expert_biases : whether the router and the products of the experts have biases
    capacity : rows that an expert takes from a rank, as a multiple of the mean expert's; absent if none is dropped
    expert_groups : equal groups of experts, of which a token chooses some before its experts
    top_groups : groups that a token chooses its experts from
    """

    layers: Size
    hidden: Size
    heads: Size
    sequence: Size
    vocabulary: Size
    batch: Size
    inner: Annotated[int, Meta(ge=0)] = 0
    key_heads: Count = 0
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    biases: bool = True
    positions: Literal["learned", "rotary", "none"] = "learned"
    rotary_base: Annotated[float, Meta(gt=1)] = 10000.0
    shared_table: bool = True
    head_columns: Count = 0
    qkv_biases: bool = False
    qk_norm: Literal["none", "head", "row"] = "none"
    window: Count = 0
    global_every: Count = 0
    local_rotary_base: Annotated[float, Meta(ge=0)] = 0.0
    rotary_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    gate: Literal["silu", "gelu", "clamped"] = "silu"
    norm_place: Literal["before", "after", "both"] = "before"
    score_cap: Annotated[float, Meta(ge=0)] = 0.0
    score_columns: Annotated[float, Meta(ge=0)] = 0.0
    logit_cap: Annotated[float, Meta(ge=0)] = 0.0
    scaled_embedding: bool = False
    key_rank: Count = 0
    query_rank: Count = 0
    rotary_columns: Count = 0
    value_columns: Count = 0
    branches: Literal["serial", "parallel", "shared"] = "serial"
    sinks: bool = False
    gated_attention: bool = False
    experts: Count = 0
    top_k: Count = 1
    expert_ffn: Count = 1
    shared_ffn: Count = 0
    shared_gate: bool = False
    dense_layers: str = "0"
    experts_every: Size = 1
    router: Literal["softmax", "sigmoid"] = "softmax"
    normalised_top_k: bool = True
    routed_scale: Annotated[float, Meta(gt=0)] = 1.0
    aux_loss: Annotated[float, Meta(ge=0)] = 0.0
    expert_biases: bool = False
    capacity: Annotated[float, Meta(ge=1)] | None = None
    expert_groups: Size = 1
    top_groups: Size = 1


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The computed problem of a record; exactly one of the fields is set.

    Parameters
    ----------
    matmul : one matrix multiplication
    mlp : training steps of a stack of linear layers
    gpt : training steps of a transformer
    """

    matmul: MatmulSizes | None = None
    mlp: MlpSizes | None = None
    gpt: GptSizes | None = None

    def __post_init__(self) -> None:
        if sum(getattr(self, kind) is not None for kind in self.__struct_fields__) != 1:
            raise ValueError(f"a workload names one of {', '.join(self.__struct_fields__)}")
