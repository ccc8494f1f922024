"""What every token passes in a layer of experts: the router's product, and a shared MLP that a gate may weigh.

    scores   = N W + b                    one column for each expert, b if experts have biases
    E       += MLP(N)                     the shared MLP
    E       += MLP(N) · sigmoid(N W)      the gated shared MLP; W has one column

Ranks have the scores and the gate of their own tokens, whether the scheme cuts rows of sequences or not.

Source: Dai et al., "DeepSeekMoE", arXiv 2401.06066 (shared experts); transformers 4.57, Qwen2MoeSparseMoeBlock (gate).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import Kernel, SmallPrecision
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.experts import EXPERTS, Experts
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.scheme import ONE, Layout, Linear, Scheme
from quadrille.algorithms.training.small_numbers import small_linear
from quadrille.algorithms.training.vector_parameters import bias_of

INNER = "shared inner"
GATE = "shared gate"


@dataclass(frozen=True, slots=True)
class EveryToken:
    """The products of every token of a layer of experts.

    Parameters
    ----------
    experts : the mixture of experts
    rows : tokens, uncut
    gathered : whether gathered weights are kept for the backward pass or gathered again
    copies : copies for each layer
    up_columns : columns of the first product for each inner column
    functions : kernels between the two products of the shared MLP, forward and backward
    source : activation that the products read; the gradient of each is `dN2 of …`
    into_gradient : gradient of the output, which is `E`
    products : precision of the products of the shared MLP, if their operands have 8 or 4 bits
    """

    experts: Experts
    rows: Part
    gathered: Gathered
    copies: Copies
    up_columns: int
    functions: tuple[Function, Function]
    source: str
    into_gradient: str
    products: SmallPrecision | None = None

    def router(self, scheme: Scheme) -> Layer:
        """The product of the router, from `dscores` to `dN2 of the router`."""
        return self._narrow("router", Part(EXPERTS), "scores", scheme, biased=self.experts.biases)

    def shared(self, scheme: Scheme) -> tuple[Layer, ...]:
        """The shared MLP, which adds to `E` and `dN2`; none if the experts have none."""
        if not self.experts.shared:
            return ()
        up, down = self._up(scheme), self._down(scheme)
        gate = self._narrow(GATE, ONE, GATE, scheme) if self.experts.shared_gate else Layer((), (), (), ())
        stored = ("shared U", "shared E") if self.experts.shared_gate else ("shared U",)
        activation, gradient = self.functions
        forward = (
            *up.forward,
            Kernel(name=f"shared {activation}", function=activation, into=("shared G",), sources=("shared U",)),
            *down.forward,
            *gate.forward,
            self._add(),
        )
        activation_gradient = Kernel(
            name=f"shared {activation} gradient",
            function=gradient,
            into=("dshared U",),
            sources=("shared U", "dshared G"),
        )
        backward = (
            *self._gate_gradient(),
            *down.backward,
            activation_gradient,
            *up.backward,
            added_gradient("shared"),
            *gate.backward,
            *((added_gradient(GATE),) if self.experts.shared_gate else ()),
        )
        tensors = (*up.tensors, *down.tensors, *gate.tensors, *self._activations(scheme))
        return (
            Layer(
                tuple(self._stored(tensor, stored) for tensor in tensors),
                (*up.parameters, *down.parameters, *gate.parameters),
                forward,
                backward,
            ),
        )

    @property
    def _shared_gradient(self) -> str:
        """Gradient of the output of the shared MLP before the gate."""
        return "dshared E" if self.experts.shared_gate else self.into_gradient

    def _add(self) -> Kernel:
        """The op that adds the output of the shared MLP."""
        if not self.experts.shared_gate:
            return Kernel(name="add shared", function="add_to", updates=("E",), sources=("shared E",))
        return Kernel(name="add gated shared", function="add_gated", updates=("E",), sources=("shared E", GATE))

    def _gate_gradient(self) -> Program:
        if not self.experts.shared_gate:
            return ()
        into, sources = (self._shared_gradient, f"d{GATE}"), ("shared E", GATE, self.into_gradient)
        return (Kernel(name=f"{GATE} gradient", function="add_gated_gradient", into=into, sources=sources),)

    def _activations(self, scheme: Scheme) -> tuple[Tensor, ...]:
        """Activations between the products, and gradients."""
        inner, wide, hidden = Part(INNER), Part(INNER, unit=self.up_columns), Part("hidden")
        stream, layout = scheme.stream, scheme.inner
        of_mlp = (
            layout.tensor("shared G", self.rows, inner, self.copies),
            layout.tensor("dshared G", self.rows, inner),
            layout.tensor("dshared U", self.rows, wide),
            stream.tensor("dN2 of shared", self.rows, hidden),
        )
        if not self.experts.shared_gate:
            return of_mlp
        return (
            *of_mlp,
            stream.tensor("dshared E", self.rows, hidden),
            self._own_tokens(scheme).tensor(f"d{GATE}", self.rows, ONE),
            stream.tensor(f"dN2 of {GATE}", self.rows, hidden),
        )

    def _up(self, scheme: Scheme) -> Layer:
        wide = Part(INNER, unit=self.up_columns)
        names = (self.source, "shared U", "dN2 of shared", "dshared U")
        up = Linear("shared up", self.rows, Part("hidden"), wide, *names, "normal", self.gathered, self.copies)
        return self._dense(up, scheme)

    def _down(self, scheme: Scheme) -> Layer:
        names = ("shared G", "shared E", "dshared G", self._shared_gradient)
        sides = Part(INNER), Part("hidden")
        return self._dense(
            Linear("shared down", self.rows, *sides, *names, "transposed", self.gathered, self.copies), scheme
        )

    def _dense(self, linear: Linear, scheme: Scheme) -> Layer:
        """A product of the shared MLP, of small numbers if the experts have them."""
        linear = replace(linear, biased=False)
        return scheme.linear(linear) if self.products is None else small_linear(linear, scheme, self.products)

    def _narrow(self, name: str, columns: Part, into: str, scheme: Scheme, *, biased: bool = False) -> Layer:
        """A product of few columns whose output each rank has for its own tokens, and the backward pass reads."""
        towards = f"dN2 of {'the router' if name == 'router' else name}"
        linear = Linear(
            name, self.rows, Part("hidden"), columns, self.source, into, towards, f"d{into}", "normal", self.gathered,
            self.copies, biased=False,
        )  # fmt: skip
        product = scheme.latent(linear) if scheme.stream.finer else scheme.linear(linear)
        bias = bias_of(replace(linear, biased=biased), scheme, self._own_tokens(scheme))
        tensors = tuple(self._stored(tensor, (into,)) for tensor in product.tensors)
        return Layer(
            (*tensors, *bias.tensors),
            (*product.parameters, *bias.parameters),
            (*product.forward, *bias.add),
            (*bias.gradient, *product.backward),
        )

    def _own_tokens(self, scheme: Scheme) -> Layout:
        """The layout of the output of a narrow product."""
        return scheme.stream if scheme.stream.finer else scheme.inner

    def _stored(self, tensor: Tensor, names: tuple[str, ...]) -> Tensor:
        """The tensor, with a copy for each layer if the backward pass reads it."""
        return replace(tensor, copies=self.copies) if tensor.name in names else tensor


def added_gradient(name: str) -> Kernel:
    """The op that adds the gradient of the input of one of the products.

    >>> added_gradient("shared").sources
    ('dN2 of shared',)
    """
    sources = (f"dN2 of {'the router' if name == 'router' else name}",)
    return Kernel(name=f"add {name} gradient", function="add_to", updates=("dN2",), sources=sources)
