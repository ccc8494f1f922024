"""What is computed, as records say it: the sizes of a multiplication, or of training steps of a model."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(gt=0)]


class Matmul(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sizes of C_mn = A_mk @ B_kn; `transposed` is there where A is stored as k x m, or B as n x k."""

    m: Size
    k: Size
    n: Size
    transposed: Literal["a", "b"] | None = None


class Mlp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stack of linear layers: widths of the input and of every layer's output, rows of one batch."""

    widths: tuple[Size, ...]
    rows: Size


class Gpt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A transformer, and the sequences of one batch.

    What follows `batch` is there where it differs from the plain GPT (`training/architecture.py`).
    """

    layers: Size
    hidden: Size
    heads: Size
    sequence: Size
    vocabulary: Size
    batch: Size
    inner: Annotated[int, Meta(ge=0)] = 0
    """Width of the MLP; 0 for four times hidden."""
    key_heads: Count = 0
    """Heads of keys and values; 0 for as many as of queries."""
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    biases: bool = True
    positions: Literal["learned", "rotary", "none"] = "learned"
    rotary_base: Annotated[float, Meta(gt=1)] = 10000.0
    shared_table: bool = True


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was computed: exactly one kind of work is named."""

    matmul: Matmul | None = None
    mlp: Mlp | None = None
    gpt: Gpt | None = None

    def __post_init__(self) -> None:
        if sum(getattr(self, kind) is not None for kind in self.__struct_fields__) != 1:
            raise ValueError(f"a workload names one of {', '.join(self.__struct_fields__)}")
