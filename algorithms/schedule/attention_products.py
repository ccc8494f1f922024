"""The square products of attention: how many, how large, known without running any."""

from dataclasses import dataclass

from quadrille.algorithms.schedule.kernels import ATTENTION_PRODUCTS, Function
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class AttentionProducts:
    """The square products of attention on one rank.

    Parameters
    ----------
    count : sequences times query heads
    sequence, head : rows and columns of queries, keys and values of one
    item_bytes : of an element
    function : whose they are: forward or backward, with the weights kept between them or not
    rotated_bytes : of the queries and keys, where they are turned by their positions first; else 0
    """

    count: int
    sequence: int
    head: int
    item_bytes: int
    function: Function
    rotated_bytes: int = 0

    @property
    def flops(self) -> int:
        """Of the causal half of every product."""
        return self.count * ATTENTION_PRODUCTS[self.function] * self.sequence**2 * self.head

    @property
    def backward(self) -> bool:
        return self.function.endswith("gradient")

    @property
    def kept(self) -> bool:
        """Whether the softmax's weights are kept for the backward pass, which is then never fused."""
        return self.function.startswith("attention_keeping")


def heads_per_group(op: Kernel) -> int:
    """Query heads that share a key and a value in an attention kernel."""
    return int(dict(op.scalars).get("group", 1))


def attention_products(op: Kernel, schedule: Schedule, place: Coordinates) -> AttentionProducts | None:
    """What a kernel has of them; None for one that is not attention."""
    if op.function not in ATTENTION_PRODUCTS:
        return None
    rows, columns = schedule.tensors[op.sources[0]].block(place).rectangle_shape
    numbers = dict(op.scalars)
    sequence, head = int(numbers["sequence"]), int(numbers["head"])
    group = heads_per_group(op)
    groups, item_bytes = columns // ((group + 2) * head), schedule.item_bytes(op.sources[0])
    count = rows // sequence * (groups * group)
    rotated = rows * groups * (group + 1) * head * item_bytes if "rotary_base" in numbers else 0
    return AttentionProducts(count, sequence, head, item_bytes, op.function, rotated)
