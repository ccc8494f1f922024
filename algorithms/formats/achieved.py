"""How near large work comes to the peaks of a device whose own rows were not measured: part of a machine file."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(gt=0)]
Variant = Literal["fused", "unfused"]
"""Whether a layer's functions are carried out in single passes over memory, or step by step."""


class Achieved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What products and passes over memory reach.

    A product is made of tiles; as many as there are multiprocessors are under
    way at once, and a tile costs as much as one whose inner dimension is
    longer by `ramp`.
    """

    product_share: Share
    ramp: Annotated[float, Meta(ge=0)]
    tile_rows: Count
    tile_columns: Count
    multiprocessors: Count
    memory_share: Share
    attention: Variant = "fused"
    pointwise: Variant = "fused"
