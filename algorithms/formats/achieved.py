"""How near large work comes to the peaks of a device whose own rows were not measured: part of a machine file."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(gt=0)]
Variant = Literal["fused", "unfused"]
"""Whether a layer's functions are carried out in single passes over memory, or step by step."""


class Achieved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The share of a device's peaks that products and passes over memory reach.

    A product is made of tiles; the device works on as many tiles at once as it has multiprocessors.

    Parameters
    ----------
    product_share : share of the peak that the largest products reach
    ramp : inner dimension that a tile costs beyond its own, in elements
    tile_rows, tile_columns : size of a tile of the result, in elements
    multiprocessors : tiles that are computed at the same time
    memory_share : share of the memory bandwidth that passes over memory reach
    attention : `fused` (scores stay on chip) or `unfused` (scores go through memory)
    pointwise : `fused` or `unfused` biases, moments of norms and column sums
    """

    product_share: Share
    ramp: Annotated[float, Meta(ge=0)]
    tile_rows: Count
    tile_columns: Count
    multiprocessors: Count
    memory_share: Share
    attention: Variant = "fused"
    pointwise: Variant = "fused"
