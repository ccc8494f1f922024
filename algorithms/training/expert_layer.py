"""Expert layer: the ops of a layer that sends each token to a few of many MLPs, forward and backward.

    scores   = N W                        one column for each expert
    chosen   = the k largest shares       shares: softmax or sigmoid of the scores, divided by their sum if normalised
    E        = Σ share · MLP of expert(N) + shared MLP(N), which sigmoid(N W) may multiply, W with one column

Each token has a row for each chosen expert.  A rank sorts its rows by expert, sends them to the ranks of their experts
(all-to-all), multiplies the rows of each of its experts, and sends them back.  Only a run tells how many rows an expert
has.  Ranks of one group along `expert` share out the experts; ranks along `replica` hold the same ones (`grid.py`).
Other axes that cut tokens (z, context, and x with sequence parallelism) cut them here, too: each rank routes its own
tokens, and the ranks of a stage share out the experts, whichever axes they differ along.

The auxiliary loss keeps loads even.  It is that of each sequence (`router_gradient.py`), so it is the same on every
grid and in microbatches.

Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", ICLR 2017;
Fedus, Zoph, Shazeer, "Switch Transformers", JMLR 23, 2022, section 2.2 (auxiliary loss); Jiang et al., "Mixtral of
Experts", arXiv 2401.04088 (normalised shares); DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section
2.1.2 (sigmoid, shared experts, the loss of each sequence, choice among groups); NVIDIA, Megatron Core,
megatron.core.transformer.moe.moe_utils (a group's score is the sum of its ⌊k / groups⌋ largest).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import EXPERT, EXPERT_TENSOR, Axis, Grid
from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import Gemm, GemmLayout, Kernel, SmallPrecision
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.every_token import EveryToken, added_gradient
from quadrille.algorithms.training.expert_exchange import BETWEEN, INTEGERS, ExpertExchange
from quadrille.algorithms.training.expert_grid import token_axes
from quadrille.algorithms.training.experts import EXPERTS, Experts
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.router_gradient import RouterGradient
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.small_experts import small_experts

TRANSPOSED = " transposed"
"""End of the name of the second matrices of experts where ranks cut these: a rank has columns of the transposed."""


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """The MLP of experts of a layer, before its ops are written.

    Parameters
    ----------
    experts : the mixture of experts
    grid : grid of ranks
    rows : tokens, uncut
    hidden : hidden size
    sequence, batch : tokens of a sequence, and sequences of the whole batch
    gathered : whether gathered weights are kept for the backward pass or gathered again
    copies : copies for each layer
    up_columns : columns of the first product for each inner column
    functions : kernels between the two products, forward and backward
    source : activation that the router and the experts read
    into_gradient : gradient of the output, which is `E`
    loads : expected rows of each expert, in any unit; empty for even loads
    products : precision of the products of experts, if their operands have 8 or 4 bits
    """

    experts: Experts
    grid: Grid
    rows: Part
    hidden: int
    sequence: int
    batch: int
    gathered: Gathered
    copies: Copies
    up_columns: int
    functions: tuple[Function, Function]
    source: str
    into_gradient: str
    loads: tuple[int, ...] = ()
    products: SmallPrecision | None = None

    @property
    def is_spread(self) -> bool:
        """Whether several ranks share out the experts, or cut them."""
        return self.grid.folds

    @property
    def exchange(self) -> ExpertExchange:
        """The exchange of rows among these ranks."""
        return ExpertExchange(self.experts, self.grid, self.copies)

    @property
    def _inner_cuts(self) -> tuple[Axis, ...]:
        """Axes that cut the inner columns of each expert."""
        return (EXPERT_TENSOR,) if self.grid.expert_tensor > 1 else ()

    def cuts(self, scheme: Scheme) -> tuple[Axis, ...]:
        """Axes beside data that cut the tokens."""
        return token_axes(scheme, self.grid)

    @property
    def counts(self) -> str:
        """The tensor of the rows of each expert, from all ranks that send to a rank."""
        return self.exchange.counts

    def layers(self, scheme: Scheme) -> tuple[Layer, ...]:
        """The layers of the MLP whose output is `E`, with the gradient `dN2` of its input."""
        experts = self._routed(scheme)
        every_token = EveryToken(
            self.experts,
            self.rows,
            self.gathered,
            self.copies,
            self.up_columns,
            self.functions,
            self.source,
            self.into_gradient,
            self.products,
        )
        router = every_token.router(scheme)
        tensors = (scheme.stream.tensor("dN2 of the router", self.rows, Part("hidden")),)
        return (
            Layer(router.tensors, router.parameters, router.forward, ()),
            experts,
            Layer(tensors, (), (), (*router.backward, added_gradient("router"))),
            *every_token.shared(scheme),
        )

    def _routed(self, scheme: Scheme) -> Layer:
        """Routing, the products of the experts, and the gradients of both."""
        layer = Layer(
            (*self._routing_tensors(scheme), *self._row_tensors(scheme)),
            self._parameters(scheme),
            self._forward(),
            self._backward(self._router_gradient(scheme).ops()),
        )
        return layer if self.products is None else small_experts(layer, self.products, self.copies)

    def _routing_tensors(self, scheme: Scheme) -> tuple[Tensor, ...]:
        """The choices of the router, and the gradients of its scores."""
        stream, chosen = scheme.stream, Part("chosen")
        return (
            *(
                replace(stream.tensor(name, self.rows, chosen, self.copies), dtype=INTEGERS, columns=chosen)
                for name in ("chosen", "places")
            ),
            *(replace(stream.tensor("shares", self.rows, chosen, self.copies), columns=chosen),),
            *self.exchange.count_tensors((*self.cuts(scheme), "data")),
            replace(stream.tensor("dshares", self.rows, chosen), columns=chosen),
            *self._router_gradient(scheme).tensors(),
        )

    def _row_tensors(self, scheme: Scheme) -> tuple[Tensor, ...]:
        """Rows of tokens for each chosen expert: at the rank of the token, and at the rank of the expert."""
        hidden, inner = Part("hidden"), Part("expert inner", self._inner_cuts)
        up = replace(inner, unit=self.up_columns)
        of_tokens = scheme.stream.cut_rows(replace(self.rows, unit=self.rows.unit * self.experts.chosen))
        of_experts = self._of_experts(of_tokens) if self.is_spread else of_tokens
        stays: tuple[tuple[str, Part, Copies], ...] = (
            (("sent rows", hidden, ()), ("dsent rows", hidden, ())) if self.is_spread else ()
        )
        home = (*stays, ("returned rows", hidden, self.copies), ("dreturned rows", hidden, ()))
        away = (
            ("expert I", hidden, self.copies),
            ("expert U", up, self.copies),
            ("expert G", inner, self.copies),
            ("dexpert G", inner, ()),
            ("dexpert U", up, ()),
            ("dexpert I", hidden, ()),
            *((("expert O", hidden, ()), ("dexpert O", hidden, ())) if self.is_spread else ()),
        )
        of_group = replace(of_experts, gathered=self.grid.expert_tensor)
        between = [name for rows in BETWEEN for name in self.exchange.between(rows)]
        return (
            *(Tensor(name, of_tokens, columns, copies=copies) for name, columns, copies in home),
            *(Tensor(name, of_experts, hidden, routed=True) for name in between),
            *(Tensor(name, of_group, columns, copies=copies, routed=self.is_spread) for name, columns, copies in away),
        )

    def _of_experts(self, of_tokens: Part) -> Part:
        """Rows at the ranks of their experts, of which each takes no more than its capacity."""
        taken = self.experts.taken(self.loads)
        return replace(of_tokens, loads=taken, dropped=sum(self.loads) - sum(taken))

    def _parameters(self, scheme: Scheme) -> tuple[Parameter, ...]:
        """The weights of all experts of a rank, one below the other."""
        axes: tuple[Axis, ...] = (EXPERT,) if self.grid.expert > 1 else ()
        replicas, cut = self.grid.replicas, bool(self._inner_cuts)
        inner = Part("expert inner", self._inner_cuts)
        heights = self.hidden, self.hidden if cut else self.experts.inner
        columns = replace(inner, unit=self.up_columns), inner if cut else Part("hidden")
        tensors = (
            Tensor(name, Part(EXPERTS, axes, unit=height), width, copies=self.copies)
            for name, height, width in zip(("experts up W", self._down), heights, columns, strict=True)
        )
        summed_over = (replicas,) if self.is_spread else (*self.cuts(scheme), replicas)
        weights = tuple(Parameter(tensor, summed_over, replicas=replicas) for tensor in tensors)
        if not self.experts.biases:
            return weights
        of_rank = Part(EXPERTS, axes)
        biases = (
            Tensor(f"experts {name} b", of_rank, width, copies=self.copies)
            for name, width in zip(("up", "down"), columns, strict=True)
        )
        return (*weights, *(Parameter(tensor, summed_over, "zeros", replicas=replicas) for tensor in biases))

    @property
    def _scalars(self) -> tuple[tuple[str, float], ...]:
        return (("top_k", float(self.experts.chosen)),)

    @property
    def _routing_scalars(self) -> tuple[tuple[str, float], ...]:
        experts = self.experts
        return (
            *self._scalars,
            ("sigmoid", float(experts.router == "sigmoid")),
            ("normalised", float(experts.normalised)),
            ("scale", experts.scale),
            ("capacity", experts.capacity),
            ("groups", float(experts.groups)),
            ("chosen_groups", float(experts.chosen_groups)),
        )

    def _kernel(self, name: str, function: Function, into: tuple[str, ...], sources: tuple[str, ...]) -> Kernel:
        return Kernel(name=name, function=function, into=into, sources=sources, scalars=self._scalars)

    def _product(self, name: str, a: str, b: str, c: str, layout: GemmLayout) -> Gemm:
        return Gemm(name=f"experts {name}", a=a, b=b, c=c, layout=layout, counts=self.counts)

    @property
    def _down(self) -> str:
        """The second matrices of experts, or the transposed ones."""
        return f"experts down W{TRANSPOSED if self._inner_cuts else ''}"

    def _down_product(self, into: str) -> Gemm:
        return self._product("down multiply", "expert G", self._down, into, "NT" if self._inner_cuts else "NN")

    def _down_gradients(self, gradient: str) -> Program:
        """The products for the gradients of the rows and of the second matrices."""
        first, second = (gradient, "expert G") if self._inner_cuts else ("expert G", gradient)
        layout: GemmLayout = "NN" if self._inner_cuts else "NT"
        return (
            self._product("down multiply dI", gradient, self._down, "dexpert G", layout),
            self._product("down multiply dW", first, second, f"d{self._down}", "TN"),
        )

    def _bias(self, name: str, into: str) -> Program:
        """The op that adds the bias of its expert to each row, if experts have biases."""
        sources = f"experts {name} b", self.counts
        add = Kernel(name=f"experts {name} add b", function="add_expert_bias", updates=(into,), sources=sources)
        return (add,) if self.experts.biases else ()

    def _bias_gradient(self, name: str, gradient: str) -> Program:
        """The op that sums the gradients of the rows of each expert."""
        into, sources = (f"dexperts {name} b",), (gradient, self.counts)
        sums = Kernel(name=f"experts {name} sum db", function="expert_column_sums", into=into, sources=sources)
        return (sums,) if self.experts.biases else ()

    def _forward(self) -> Program:
        routing = ("chosen", "shares", "places", "counts")
        sent, multiplied = ("sent rows", "expert O") if self.is_spread else ("expert I", "returned rows")
        return (
            Kernel(name="route", function="route", into=routing, sources=("scores",), scalars=self._routing_scalars),
            *self.exchange.gather_counts(),
            self._kernel("permute", "permute", (sent,), (self.source, "places")),
            *self.exchange.there("rows", sent, "expert I"),
            self._product("up multiply", "expert I", "experts up W", "expert U", "NN"),
            *self._bias("up", "expert U"),
            Kernel(
                name=f"experts {self.functions[0]}",
                function=self.functions[0],
                into=("expert G",),
                sources=("expert U",),
            ),
            self._down_product(multiplied),
            *self._bias("down", multiplied),
            *self.exchange.back("rows", multiplied, "returned rows"),
            self._kernel("combine", "combine", ("E",), ("returned rows", "shares", "places")),
        )

    def _backward(self, router_gradient: Program) -> Program:
        name, gradient = self.functions
        far, near = ("dexpert O", "dsent rows") if self.is_spread else ("dreturned rows", "dexpert I")
        return (
            self._kernel(
                "combine gradient",
                "combine_gradient",
                ("dreturned rows", "dshares"),
                (self.into_gradient, "returned rows", "shares", "places"),
            ),
            *self.exchange.there("gradient", "dreturned rows", far),
            *self._bias_gradient("down", far),
            *self._down_gradients(far),
            Kernel(
                name=f"experts {name} gradient",
                function=gradient,
                into=("dexpert U",),
                sources=("expert U", "dexpert G"),
            ),
            *self._bias_gradient("up", "dexpert U"),
            self._product("up multiply dI", "dexpert U", "experts up W", "dexpert I", "NT"),
            self._product("up multiply dW", "expert I", "dexpert U", "dexperts up W", "TN"),
            *self.exchange.back("gradient", "dexpert I", near),
            self._kernel("permute gradient", "permute_gradient", ("dN2",), (near, "places")),
            *router_gradient,
        )

    def _router_gradient(self, scheme: Scheme) -> RouterGradient:
        """The gradient of the scores, with that of the auxiliary loss."""
        tokens = scheme.stream if scheme.stream.finer else scheme.inner
        within = tuple(axis for axis in scheme.stream.finer if self.grid.length(axis) > 1)
        sizes = scheme.context, self.sequence, self.batch
        return RouterGradient(self.experts, self.rows, tokens, within, *sizes, self._routing_scalars)
