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
from typing import Literal

from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import EXPERT, Axis, Grid
from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import AllGather, AllToAll, Gemm, Kernel, SmallPrecision
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.routed_rows import RoutedRows
from quadrille.algorithms.schedule.tensors import Copies, ElementType, Tensor
from quadrille.algorithms.training.every_token import EveryToken, added_gradient
from quadrille.algorithms.training.expert_grid import token_axes
from quadrille.algorithms.training.experts import EXPERTS, ROUTERS, Experts
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.router_gradient import RouterGradient
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.small_experts import small_experts

INTEGERS: ElementType = "int32"


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
        """Whether several ranks share out the experts."""
        return self.grid.expert > 1

    def cuts(self, scheme: Scheme) -> tuple[Axis, ...]:
        """Axes beside data that cut the tokens."""
        return token_axes(scheme, self.grid)

    @property
    def counts(self) -> str:
        """The tensor of the rows of each expert, from all ranks that send to a rank."""
        return "all counts" if self.is_spread else "counts"

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
        cuts, experts = self.cuts(scheme), Part(EXPERTS)
        routers = Part(ROUTERS, ("replica", EXPERT) if self.is_spread else (*cuts, "data"))
        counts = Tensor("counts", routers, experts, copies=self.copies, dtype=INTEGERS)
        of_group = replace(counts, name="all counts", rows=Part(ROUTERS, ("replica",)))
        return (
            *(
                replace(stream.tensor(name, self.rows, chosen, self.copies), dtype=INTEGERS, columns=chosen)
                for name in ("chosen", "places")
            ),
            *(replace(stream.tensor("shares", self.rows, chosen, self.copies), columns=chosen),),
            counts,
            *((of_group,) if self.is_spread else ()),
            replace(stream.tensor("dshares", self.rows, chosen), columns=chosen),
            *self._router_gradient(scheme).tensors(),
        )

    def _row_tensors(self, scheme: Scheme) -> tuple[Tensor, ...]:
        """Rows of tokens for each chosen expert: at the rank of the token, and at the rank of the expert."""
        hidden, inner, up = Part("hidden"), Part("expert inner"), Part("expert inner", unit=self.up_columns)
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
        return (
            *(Tensor(name, of_tokens, columns, copies=copies) for name, columns, copies in home),
            *(
                Tensor(name, of_experts, columns, copies=copies, routed=self.is_spread)
                for name, columns, copies in away
            ),
        )

    def _of_experts(self, of_tokens: Part) -> Part:
        """Rows at the ranks of their experts, of which each takes no more than its capacity."""
        taken = self.experts.taken(self.loads)
        return replace(of_tokens, loads=taken, dropped=sum(self.loads) - sum(taken))

    def _parameters(self, scheme: Scheme) -> tuple[Parameter, ...]:
        """The weights of all experts of a rank, one below the other."""
        axes: tuple[Axis, ...] = (EXPERT,) if self.is_spread else ()
        replicas = self.grid.replicas
        up, down = (Part(EXPERTS, axes, unit=height) for height in (self.hidden, self.experts.inner))
        columns = Part("expert inner", unit=self.up_columns), Part("hidden")
        tensors = (
            Tensor(f"experts {name} W", rows, width, copies=self.copies)
            for name, rows, width in zip(("up", "down"), (up, down), columns, strict=True)
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

    def _product(self, name: str, a: str, b: str, c: str, layout: Literal["NN", "NT", "TN"]) -> Gemm:
        return Gemm(name=f"experts {name}", a=a, b=b, c=c, layout=layout, counts=self.counts)

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

    def _exchange(self, name: str, source: str, into: str, *, back: bool) -> Program:
        """Rows sent to the ranks of their experts, or back; nothing where a rank has all experts."""
        if not self.is_spread:
            return ()
        experts = self.experts
        routed = RoutedRows(experts.count, experts.chosen, experts.groups, experts.chosen_groups)
        return (
            AllToAll(name=name, axis=EXPERT, source=source, into=into, counts=self.counts, back=back, routed=routed),
        )

    def _forward(self) -> Program:
        routing = ("chosen", "shares", "places", "counts")
        sent, received, multiplied, returned = (
            ("sent rows", "expert I", "expert O", "returned rows")
            if self.is_spread
            else ("expert I", "expert I", "returned rows", "returned rows")
        )
        gather = AllGather(name="gather counts", axis=EXPERT, source="counts", into="all counts")
        return (
            Kernel(name="route", function="route", into=routing, sources=("scores",), scalars=self._routing_scalars),
            *((gather,) if self.is_spread else ()),
            self._kernel("permute", "permute", (sent,), (self.source, "places")),
            *self._exchange("send to experts", sent, received, back=False),
            self._product("up multiply", received, "experts up W", "expert U", "NN"),
            *self._bias("up", "expert U"),
            Kernel(
                name=f"experts {self.functions[0]}",
                function=self.functions[0],
                into=("expert G",),
                sources=("expert U",),
            ),
            self._product("down multiply", "expert G", "experts down W", multiplied, "NN"),
            *self._bias("down", multiplied),
            *self._exchange("return from experts", multiplied, returned, back=True),
            self._kernel("combine", "combine", ("E",), (returned, "shares", "places")),
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
            *self._exchange("send gradient to experts", "dreturned rows", far, back=False),
            *self._bias_gradient("down", far),
            self._product("down multiply dI", far, "experts down W", "dexpert G", "NT"),
            self._product("down multiply dW", "expert G", far, "dexperts down W", "TN"),
            Kernel(
                name=f"experts {name} gradient",
                function=gradient,
                into=("dexpert U",),
                sources=("expert U", "dexpert G"),
            ),
            *self._bias_gradient("up", "dexpert U"),
            self._product("up multiply dI", "dexpert U", "experts up W", "dexpert I", "NT"),
            self._product("up multiply dW", "expert I", "dexpert U", "dexperts up W", "TN"),
            *self._exchange("return gradient from experts", "dexpert I", near, back=True),
            self._kernel("permute gradient", "permute_gradient", ("dN2",), (near, "places")),
            *router_gradient,
        )

    def _router_gradient(self, scheme: Scheme) -> RouterGradient:
        """The gradient of the scores, with that of the auxiliary loss."""
        tokens = scheme.stream if scheme.stream.finer else scheme.inner
        within = tuple(axis for axis in scheme.stream.finer if self.grid.length(axis) > 1)
        sizes = scheme.context, self.sequence, self.batch
        return RouterGradient(self.experts, self.rows, tokens, within, *sizes, self._routing_scalars)
