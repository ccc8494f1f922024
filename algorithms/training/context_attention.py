"""Attention under context parallelism: the ops between QKV and its output, for the three forms (`context.py`).

    ring         (A, l) of the own block ‖ K V pass on;  then c - 1 times: A, l merged with the block at hand
    all-gather   K V gathered; (A, l) of the own queries and all keys
    ulysses      QKV all-to-all; attention of a share of the heads; A all-to-all back

l are the logarithms of the row sums of the softmax.  Two parts A1, l1 and A2, l2 of the same rows merge to

    l = log(exp l1 + exp l2)        A = exp(l1 - l) A1 + exp(l2 - l) A2

In the backward pass, K and V travel again (or are gathered again).  Gradients of K and V travel with them around the
ring and end where they belong, or are reduce-scattered.

Source: see `context.py`; Dao et al., "FlashAttention", 2022 (merging of blocks by their logarithms).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.ops import AllGather, AllToAll, Kernel, ReduceScatter, Shift
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.context import CONTEXT, ContextForm
from quadrille.algorithms.training.scheme import Layout

RING = "ring step"
LOGARITHMS = "logarithms"


@dataclass(frozen=True, slots=True)
class ContextAttention:
    """What attention under context parallelism needs to know of the layer.

    Parameters
    ----------
    form : form of context parallelism
    members : ranks along context
    layout : layout of QKV, in which context alone cuts sequences (other finer axes are 1 long)
    rows : rows of activations, uncut
    scored : tensor that holds queries, keys and values
    group, head : query heads that share a key and a value, and columns of a head
    scalars : parameters of the attention kernels
    counter : loop that attention counts, if elements are dropped
    copies : copies of what the backward pass reads
    """

    form: ContextForm
    members: int
    layout: Layout
    rows: Part
    scored: str
    group: int
    head: int
    scalars: tuple[tuple[str, float], ...]
    counter: str | None
    copies: Copies

    def ops(self) -> tuple[tuple[Tensor, ...], Program, Program]:
        """Tensors beside A, dA, the scored tensor and its gradient; the ops of the forward and of the backward pass."""
        match self.form:
            case "ring":
                return self._ring()
            case "all-gather":
                return self._all_gather()
            case "ulysses":
                return self._ulysses()

    # Tensors

    @property
    def _of_all_members(self) -> Layout:
        """The layout of what all members along context hold together."""
        return replace(self.layout, finer=())

    @property
    def _keys_values(self) -> Part:
        return Part("heads", unit=2 * self.head)

    def _of_queries(self, each: int) -> Part:
        return Part("heads", unit=self.group * each)

    @property
    def _logarithms(self) -> Tensor:
        return self.layout.tensor(LOGARITHMS, self.rows, self._of_queries(1), self.copies)

    # Kernels

    def _kernel(self, name: str, function: str, **operands: tuple[str, ...]) -> Kernel:
        return Kernel(
            name=name,
            function=function,  # type: ignore[arg-type]
            scalars=(*self.scalars, ("context", float(self.members))),
            counter=self.counter,
            **operands,  # type: ignore[arg-type]
        )

    def _take(self, into: str, suffix: str = "") -> Kernel:
        sizes = (("head", float(self.head)), ("group", float(self.group)))
        return Kernel(
            name=f"take KV{suffix}", function="take_keys_values", into=(into,), sources=(self.scored,), scalars=sizes
        )

    def _put(self, source: str) -> Kernel:
        sizes = (("head", float(self.head)), ("group", float(self.group)))
        gradient = f"d{self.scored}"
        return Kernel(name="put dKV", function="put_keys_values", updates=(gradient,), sources=(source,), scalars=sizes)

    def _attend(self, keys_values: str) -> Kernel:
        """Attention of the own queries to a block of keys and values."""
        return self._kernel("attention", "attention_apart", into=("A", LOGARITHMS), sources=(self.scored, keys_values))

    def _attend_gradient(self, keys_values: str, gradient: str) -> Kernel:
        return self._kernel(
            "attention gradient",
            "attention_apart_gradient",
            into=(f"d{self.scored}", gradient),
            sources=(self.scored, keys_values, "A", LOGARITHMS, "dA"),
        )

    # Forms

    def _all_gather(self) -> tuple[tuple[Tensor, ...], Program, Program]:
        own = self.layout.tensor("KV", self.rows, self._keys_values)
        whole = self._of_all_members.tensor("KV whole", self.rows, self._keys_values)
        tensors = (self._logarithms, own, whole, *(replace(tensor, name=f"d{tensor.name}") for tensor in (own, whole)))

        def gather(suffix: str = "") -> Program:
            name = f"gather KV{suffix}"
            return self._take("KV", suffix), AllGather(name=name, axis=CONTEXT, source="KV", into=whole.name)

        forward = (*gather(), self._attend(whole.name))
        backward = (
            *gather(" again"),
            self._attend_gradient(whole.name, f"d{whole.name}"),
            ReduceScatter(name="scatter dKV", axis=CONTEXT, source=f"d{whole.name}", into="dKV"),
            self._put("dKV"),
        )
        return tensors, forward, backward

    def _ulysses(self) -> tuple[tuple[Tensor, ...], Program, Program]:
        scored, exchanged = self.scored, f"{self.scored} by heads"
        layout = self._of_all_members
        rows = layout.cut_rows(self.rows)

        def by_heads(name: str, columns: Part, copies: Copies) -> Tensor:
            return Tensor(name, rows, replace(columns, axes=(layout.columns, CONTEXT)), copies=copies)

        of_scored, of_output = Part("heads", unit=(self.group + 2) * self.head), self._of_queries(self.head)
        tensors = (
            by_heads(exchanged, of_scored, self.copies),
            by_heads("A by heads", of_output, self.copies),
            by_heads(LOGARITHMS, self._of_queries(1), self.copies),
            by_heads("dA by heads", of_output, ()),
            by_heads(f"d{exchanged}", of_scored, ()),
        )
        written = ("A by heads", LOGARITHMS)

        def exchange(name: str, source: str, into: str) -> AllToAll:
            return AllToAll(name=f"exchange {name}", axis=CONTEXT, source=source, into=into)

        forward: Program = (
            exchange(scored, scored, exchanged),
            self._kernel("attention", "attention", into=written, sources=(exchanged,)),
            exchange("A", "A by heads", "A"),
        )
        backward: Program = (
            exchange("dA", "dA", "dA by heads"),
            self._kernel(
                "attention gradient",
                "attention_gradient",
                into=(f"d{exchanged}",),
                sources=(exchanged, *written, "dA by heads"),
            ),
            exchange(f"d{scored}", f"d{exchanged}", f"d{scored}"),
        )
        return tensors, forward, backward

    def _ring(self) -> tuple[tuple[Tensor, ...], Program, Program]:
        turning, last = ((RING, 2),), self.members - 1
        rows = replace(self.layout.cut_rows(self.rows), finer=(CONTEXT,), rotated_by=(RING,))
        columns = self.layout.cut_columns(self._keys_values)
        passed = Tensor("KV", rows, columns, copies=turning)
        own = self.layout.tensor("dKV", self.rows, self._keys_values)
        tensors = (
            self._logarithms,
            passed,
            replace(passed, name="dKV passed"),
            replace(passed, name="dKV of the step", copies=()),
            own,
        )
        pass_on = self._pass_on("KV", "KV")
        merge = self._kernel(
            "attention to others", "attention_merge", updates=("A", LOGARITHMS), sources=(self.scored, "KV")
        )
        forward: Program = (
            self._take("KV"),
            Repeat(RING, 1, (pass_on, self._attend("KV"))),
            *self._between((pass_on, merge)),
            Repeat(RING, 1, (merge,), first=last),
        )
        pass_again, pass_gradient = replace(pass_on, name="pass KV again"), self._pass_on("dKV passed", "dKV passed")
        add = (
            self._kernel(
                "attention to others gradient",
                "attention_merge_gradient",
                into=("dKV of the step",),
                updates=(f"d{self.scored}",),
                sources=(self.scored, "KV", "A", LOGARITHMS, "dA"),
            ),
            Kernel(name="add dKV", function="add_to", updates=("dKV passed",), sources=("dKV of the step",)),
        )
        home = replace(self._pass_on("dKV passed", "dKV"), name="return dKV", iteration_offset=0, concurrent=False)
        backward: Program = (
            self._take("KV", " again"),
            Repeat(RING, 1, (pass_again, self._attend_gradient("KV", "dKV passed"), pass_gradient)),
            *self._between((pass_again, *add, pass_gradient)),
            Repeat(RING, 1, (*add, home), first=last),
            self._put("dKV"),
        )
        return tensors, forward, backward

    def _between(self, body: Program) -> Program:
        """The steps of the ring between the first and the last."""
        return (Repeat(RING, self.members - 2, body, first=1),) if self.members > 2 else ()

    def _pass_on(self, source: str, into: str) -> Shift:
        """The message from each member to the one before it, while attention to the block at hand is computed."""
        return Shift(
            name=f"pass {source}",
            axis=CONTEXT,
            distance=-1,
            source=source,
            into=into,
            iteration_offset=1,
            concurrent=True,
        )
