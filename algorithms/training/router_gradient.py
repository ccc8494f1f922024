"""Router gradient: the ops from the gradient of the shares to that of the scores, and the auxiliary loss.

The auxiliary loss is that of each sequence, whatever ranks hold its tokens:

    coefficient · mean over sequences of  experts / (k s) · Σ rows of expert · mean share of expert

Where axes cut sequences (context, and x with sequence parallelism), a rank counts the rows of each expert among its
own tokens of every sequence.  All-reduces over these axes give the counts of whole sequences, with which a rank
computes the gradient and the loss of its own tokens.  So the loss is that of one process.

    sequence loads    one row for each sequence, one column for each expert

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.1.2 (the loss of each sequence);
NVIDIA, Megatron Core, megatron.core.transformer.moe.router (sums over tensor and context ranks).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllReduce, Kernel
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.experts import EXPERTS, STAGES, Experts
from quadrille.algorithms.training.layers import AUXILIARY_LOSS, SEQUENCE_LOADS
from quadrille.algorithms.training.scheme import Layout

PART = f"{AUXILIARY_LOSS} of a layer"


@dataclass(frozen=True, slots=True)
class RouterGradient:
    """The gradient of the scores of a layer of experts.

    Parameters
    ----------
    experts : the mixture of experts
    rows : tokens, uncut
    tokens : layout of the tokens that a rank routes
    within : axes longer than 1 that cut sequences
    context : ranks along context
    sequence, batch : tokens of a sequence, and sequences of the whole batch
    scalars : numbers of the op that routes
    """

    experts: Experts
    rows: Part
    tokens: Layout
    within: tuple[Axis, ...]
    context: int
    sequence: int
    batch: int
    scalars: tuple[tuple[str, float], ...]

    @property
    def _sums_loads(self) -> bool:
        """Whether ranks sum the loads of the sequences that they share."""
        return bool(self.experts.balance and self.within)

    def tensors(self) -> tuple[Tensor, ...]:
        """The gradient of the scores, the auxiliary loss of a layer, and the loads of shared sequences."""
        sequences = replace(self.rows, unit=1, axes=self.tokens.rows)
        return (
            self.tokens.tensor("dscores", self.rows, Part(EXPERTS)),
            Tensor(PART, Part(STAGES, ("pipeline",)), Part("one")),
            *((Tensor(SEQUENCE_LOADS, sequences, Part(EXPERTS)),) if self._sums_loads else ()),
        )

    def ops(self) -> Program:
        """The ops that write the gradient of the scores, and add to the auxiliary loss."""
        into, sources = ("dscores", PART), ("scores", "chosen", "dshares")
        balance = ("balance", self.experts.balance / self.batch)
        scalars = (*self.scalars, ("sequence", float(self.sequence)), balance, *self._order)
        gradient = Kernel(name="route gradient", function="route_gradient", into=into, sources=sources, scalars=scalars)
        if self._sums_loads:
            gradient = replace(gradient, function="route_gradient_by_loads", sources=(*sources, SEQUENCE_LOADS))
        add = Kernel(name=f"add {AUXILIARY_LOSS}", function="add_to", updates=(AUXILIARY_LOSS,), sources=(PART,))
        return (*self._loads(), gradient, *((add,) if self.experts.balance else ()))

    @property
    def _order(self) -> tuple[tuple[str, float], ...]:
        """The scalar of a kernel that needs the sequence of each row where ranks along context reorder rows."""
        return (("context", float(self.context)),) if self._sums_loads and self.context > 1 else ()

    def _loads(self) -> Program:
        """The ops that count the rows of each expert in every sequence of which a rank has tokens."""
        if not self._sums_loads:
            return ()
        count = Kernel(
            name="count sequence loads",
            function="sequence_loads",
            into=(SEQUENCE_LOADS,),
            sources=("chosen",),
            scalars=(("sequence", float(self.sequence)), *self._order),
        )
        sums = (
            AllReduce(name=f"sum sequence loads over {axis}", axis=axis, buffer=SEQUENCE_LOADS)
            for axis in reversed(self.within)
        )
        return (count, *sums)
