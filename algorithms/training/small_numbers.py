"""Products in small numbers (FP8, MXFP8, NVFP4): which tensors become small, with which scales, and what casts cost.

The products of linear layers read operands of 8 or 4 bits, in all three passes; attention, norms, embedding, logits,
activations between products, gradients, master weights and moments keep their 16 and 32 bits, as in Megatron-LM:

    O  = I W       cast I; gather it in 8 bits, if it is scattered
    dI = dO Wᵀ     cast dO; gather it in 8 bits
    dW = Iᵀ dO     the small I of the forward pass, which is stored in place of I; gradients have 16 bits and are
                   accumulated in 32

A product sums along rows of one operand and along columns of the other, so dI and dW need operands that are scaled or
stored along their columns:

    recipe        Megatron's name   scale for            largest magnitude      copy along columns
    fp8           tensorwise        a tensor             a pass of its own      transposed (not on Blackwell and CDNA)
    fp8-delayed   delayed           a tensor             of earlier steps       transposed, likewise
    fp8-block     blockwise         1 x 128, W 128 x 128 in the pass of a cast  a second cast in the same pass
    mxfp8         mxfp8             32 elements          in the pass of a cast  a second cast in the same pass
    nvfp4         nvfp4             16 elements, tensor  a pass of its own      a second cast in the same pass

Weights are cast once a step, from the 16-bit weights that products would read, or, with `--fp8-param-gather`, from the
master weights: then no 16-bit weights are stored, and data-parallel ranks gather small ones.  MXFP8 gathers 16 bits
even so, as its two copies would be as long.

Scales are not counted: 1/32 of a byte for each element (MXFP8, blocks), 1/16 (NVFP4).  Both copies of NVFP4, of half a
byte each, are one tensor of one byte; a stored or gathered copy is counted twice by that.

Source: NVIDIA, Transformer Engine documentation, "FP8 primer" and recipes (Float8CurrentScaling, DelayedScaling,
Float8BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling); NVIDIA, Megatron Core, `--fp8-recipe`, `--fp8-param-gather`;
Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433; Rouhani et al., "Microscaling data formats for
deep learning", arXiv 2310.10537.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import AllGather, Gemm, Kernel, Op, Products, SmallPrecision, reads
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import Copies, ElementType, Tensor
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.scheme import Linear, Scheme, sides

IN_DTYPE: Products = "dtype"
SIXTEEN_BITS = ("bfloat16", "float16")
"""Dtypes of activations beside products in small numbers."""
SMALL: ElementType = "uint8"
"""Element type of small numbers, which are stored as bytes."""
RECIPE_NAMES: dict[str, SmallPrecision] = {
    "tensorwise": "fp8",
    "delayed": "fp8-delayed",
    "blockwise": "fp8-block",
}
"""Megatron's names of recipes that have another name here (`--fp8-recipe`)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How operands become small.

    Parameters
    ----------
    element_bits : bits of an element
    scans : whether the largest magnitude of an operand is found in a pass of its own
    casts_columns : whether a cast writes a second tensor, scaled along columns
    transposes : whether the copy along columns is the transposed tensor
    """

    element_bits: int
    scans: bool = False
    casts_columns: bool = False
    transposes: bool = False

    @property
    def gathers_small(self) -> bool:
        """Whether weights can be gathered in small numbers."""
        return not self.casts_columns or self.element_bits < 8

    @property
    def has_columns(self) -> bool:
        """Whether a copy along columns is a tensor of its own."""
        return self.casts_columns or self.transposes


RECIPES: dict[SmallPrecision, Recipe] = {
    "fp8": Recipe(8, scans=True, transposes=True),
    "fp8-delayed": Recipe(8, transposes=True),
    "fp8-block": Recipe(8, casts_columns=True),
    "mxfp8": Recipe(8, casts_columns=True),
    "nvfp4": Recipe(4, scans=True),
}


def find_products(word: str) -> Products:
    """The precision of products that a word names: its own name, or the name of a recipe of Megatron.

    >>> find_products("mxfp8"), find_products("Tensorwise"), find_products("dtype")
    ('mxfp8', 'fp8', 'dtype')

    Raises
    ------
    InputError : an unknown word
    """
    asked = word.lower().replace("_", "-")
    for name in (IN_DTYPE, *RECIPES):
        if RECIPE_NAMES.get(asked, asked) == name:
            return name
    accepted = ", ".join((IN_DTYPE, *RECIPES, *RECIPE_NAMES))
    raise InputError(f"products {word!r:.60}: accepted are {accepted}")


def small_precision(products: Products) -> SmallPrecision | None:
    """The small precision of products; None for products in the dtype of activations."""
    return None if products == "dtype" else products


def small(name: str) -> str:
    """Name of the small copy of a tensor.

    >>> small("N1")
    'N1 small'
    """
    return f"{name} small"


def small_columns(name: str) -> str:
    """Name of the small copy of a tensor along its columns."""
    return f"{name} small columns"


def cast_ops(label: str, source: str, into: str, columns: str, recipe: Recipe) -> Iterator[Kernel]:
    """The ops that make a tensor small.

    Parameters
    ----------
    label : prefix of the names of the ops
    source : tensor of 16 or 32 bits
    into, columns : small tensors along rows and along columns
    recipe : scales and copies
    """
    if recipe.scans:
        yield Kernel(name=f"{label} largest", function="largest", sources=(source,))
    if recipe.casts_columns:
        yield Kernel(name=f"{label} cast", function="cast_twice", into=(into, columns), sources=(source,))
    else:
        yield Kernel(name=f"{label} cast", function="cast", into=(into,), sources=(source,))


def small_linear(linear: Linear, scheme: Scheme, precision: SmallPrecision, *, casts_input: bool = True) -> Layer:
    """A product O = I W + b whose three products read small numbers.

    Parameters
    ----------
    casts_input : whether the layer casts I; a product before it in the layer may have cast the same I

    Raises
    ------
    InputError : a scheme whose products move panels
    """
    before, after = sides(scheme, linear.orientation)
    ends = (
        before.tensor(linear.source, linear.rows, linear.inputs),
        after.tensor(linear.into_gradient, linear.rows, linear.outputs),
    )
    return _small(linear, scheme.linear(linear), ends, scheme, precision, casts_input=casts_input)


def small_latent(linear: Linear, scheme: Scheme, precision: SmallPrecision, *, casts_input: bool) -> Layer:
    """A product of few columns in the stream layout (`Scheme.latent`) whose three products read small numbers."""
    into_gradient = scheme.stream.tensor(linear.into_gradient, linear.rows, linear.outputs)
    return _small_uncut(linear, scheme.latent(linear), into_gradient, scheme, precision, casts_input=casts_input)


def small_shared(linear: Linear, scheme: Scheme, precision: SmallPrecision, *, casts_input: bool) -> Layer:
    """A product of columns that all heads read (`Scheme.shared`) whose three products read small numbers."""
    into_gradient = Tensor(linear.into_gradient, scheme.inner.cut_rows(linear.rows), linear.outputs)
    return _small_uncut(linear, scheme.shared(linear), into_gradient, scheme, precision, casts_input=casts_input)


def _small_uncut(
    linear: Linear, layer: Layer, gradient: Tensor, scheme: Scheme, precision: SmallPrecision, *, casts_input: bool
) -> Layer:
    """A product whose weight no axis cuts by columns: sums and gathers of its output and gradient keep 16 bits."""
    ends = scheme.stream.tensor(linear.source, linear.rows, linear.inputs), gradient
    return _small(linear, layer, ends, scheme, precision, casts_input=casts_input, sends_small=False)


def _small(
    linear: Linear,
    layer: Layer,
    ends: tuple[Tensor, Tensor],
    scheme: Scheme,
    precision: SmallPrecision,
    *,
    casts_input: bool,
    sends_small: bool = True,
) -> Layer:
    if any(isinstance(entry, Repeat) for entry in (*layer.forward, *layer.backward)):
        raise InputError(
            f"products {precision} with scheme {scheme.name}: its panels travel in the dtype; 4d, megatron and bian "
            "are accepted, or products dtype"
        )
    return _SmallProduct(linear, layer, ends, precision, casts_input=casts_input, sends_small=sends_small).layer()


class _SmallProduct:
    """Rewrites the ops of a product: casts before gathers, gathers of small tensors, products of small operands.

    Parameters
    ----------
    ends : the input, and the gradient of the output
    casts_input : whether the input is cast here, not by a product before
    sends_small : whether the gradient is cast before it is gathered, not before it is multiplied
    """

    def __init__(
        self,
        linear: Linear,
        layer: Layer,
        ends: tuple[Tensor, Tensor],
        precision: SmallPrecision,
        *,
        casts_input: bool,
        sends_small: bool,
    ) -> None:
        self._linear, self._layer = linear, layer
        self._casts_input, self._sends_small = casts_input, sends_small
        self._precision, self._recipe = precision, RECIPES[precision]
        self._weight = f"{linear.name} W"
        self._tensors = {tensor.name: tensor for tensor in (*layer.tensors, *ends)}
        self._again = {op.into for op in layer.backward if isinstance(op, AllGather)}
        self._made: dict[str, Tensor] = {}

    def layer(self) -> Layer:
        """The layer of the product."""
        forward, backward = self._forward(), self._backward()
        read = {name for op in (*forward, *backward) for name in reads(op)}
        whole = f"{self._weight} whole"
        kept = [
            replace(tensor, dtype=SMALL) if tensor.name == whole else tensor
            for tensor in self._layer.tensors
            if tensor.name not in self._gathered or tensor.name in read
        ]
        parameters = tuple(
            replace(parameter, small=True) if parameter.name == self._weight else parameter
            for parameter in self._layer.parameters
        )
        copies = (tensor for name, tensor in self._made.items() if name not in self._given)
        return Layer((*kept, *copies), parameters, tuple(forward), tuple(backward))

    @property
    def _given(self) -> tuple[str, ...]:
        """Names of the copies of the input that a product before has made."""
        if self._casts_input:
            return ()
        return small(self._linear.source), *([small_columns(self._linear.source)] if self._recipe.casts_columns else [])

    @property
    def _gathered(self) -> set[str]:
        """Names of activations that are gathered in small numbers."""
        if not self._sends_small:
            return set()
        both = (*self._layer.forward, *self._layer.backward)
        return {op.into for op in both if isinstance(op, AllGather) and op.source != self._weight}

    def _forward(self) -> list[Op]:
        changed = [*self._cast("I", self._linear.source, stored=True)] if self._casts_input else []
        for op in self._ops(self._layer.forward):
            if isinstance(op, AllGather) and op.source == self._linear.source:
                changed.append(self._gather(op))
                if self._recipe.casts_columns and op.into not in self._again:
                    changed.append(self._gather(op, columns=True))
            elif isinstance(op, Gemm):
                changed.append(replace(op, a=self._rows(op.a), precision=self._precision))
            else:
                changed.append(op)
        return changed

    def _backward(self) -> list[Op]:
        changed, is_cast = list[Op](), False
        for op in self._ops(self._layer.backward):
            gradient = self._gradient_of(op)
            if gradient and not is_cast:
                changed += self._cast("dO", gradient, stored=False)
                is_cast = True
            if isinstance(op, AllGather) and op.source == gradient:
                changed.append(self._gather(op))
                changed += [self._gather(op, columns=True)] if self._recipe.casts_columns else []
            elif isinstance(op, AllGather) and op.source == self._linear.source:
                changed.append(self._gather(op, columns=self._recipe.casts_columns))
            elif isinstance(op, Gemm) and op.layout == "TN":
                changed += self._weight_gradient(op)
            elif isinstance(op, Gemm):
                changed.append(replace(op, a=self._rows(op.a), precision=self._precision))
            else:
                changed.append(op)
        return changed

    def _gradient_of(self, op: Op) -> str:
        """The gradient that is cast before an op, if it has not been; empty if the op reads none."""
        if not self._sends_small:
            return op.a if isinstance(op, Gemm) and op.layout == "NT" else ""
        reads_gradient = isinstance(op, AllGather | Gemm) and self._linear.into_gradient in reads(op)
        return self._linear.into_gradient if reads_gradient else ""

    @staticmethod
    def _ops(program: Program) -> Iterator[Op]:
        return (op for op in program if not isinstance(op, Repeat))

    def _cast(self, letter: str, name: str, *, stored: bool) -> Iterator[Op]:
        """The ops that make an activation small; the copy that the gradient of weights reads is stored."""
        copies = self._linear.copies if stored else ()
        into = self._rows(name, copies=() if self._recipe.casts_columns else copies)
        columns = self._columns(name, copies) if self._recipe.casts_columns else ""
        yield from cast_ops(f"{self._linear.name} {letter}", name, into, columns, self._recipe)

    def _gather(self, op: AllGather, *, columns: bool = False) -> AllGather:
        copies = self._tensors[op.into].copies
        if columns:
            into = self._columns(op.into, copies)
            return replace(op, name=f"{op.name} columns", source=small_columns(self._own(op.source)), into=into)
        return replace(op, source=small(self._own(op.source)), into=self._rows(op.into, copies))

    def _weight_gradient(self, op: Gemm) -> Iterator[Op]:
        """The product dW = Iᵀ dO, of operands along columns."""
        a, b = op.a, op.b
        if self._recipe.transposes:
            for letter, name in (("I", a), ("dO", b)):
                label = f"{self._linear.name} transpose {letter}"
                yield Kernel(
                    name=label, function="to_columns", into=(self._columns(name),), sources=(self._rows(name),)
                )
        side = self._columns if self._recipe.has_columns else self._rows
        yield replace(op, a=side(a), b=side(b), precision=self._precision)

    def _rows(self, name: str, copies: Copies = ()) -> str:
        return self._declare(small(self._own(name)), name, copies)

    def _columns(self, name: str, copies: Copies = ()) -> str:
        own = small_columns(self._own(name))
        if name == self._linear.source and own not in self._given and not self._casts_input:
            own = small_columns(f"{self._linear.name} I")
        return self._declare(own, name, copies)

    def _own(self, name: str) -> str:
        """Name of an activation in the names of its small copies; several products read the gradient of the stream."""
        return f"{self._linear.name} dO" if name == self._linear.into_gradient else name

    def _declare(self, own: str, name: str, copies: Copies) -> str:
        """Declares a small copy of a tensor, unless it is declared."""
        if own not in self._made:
            self._made[own] = replace(self._tensors[name], name=own, dtype=SMALL, copies=copies)
        return own


def without_unread_copies(layer: Layer) -> Layer:
    """The layer whose 16-bit activations exist for one layer at a time, where the backward pass reads small ones."""
    read = {name for op in layer.backward if not isinstance(op, Repeat) for name in reads(op)}
    smalls = {tensor.name for tensor in layer.tensors}
    return replace(
        layer,
        tensors=tuple(
            replace(tensor, copies=()) if tensor.name not in read and small(tensor.name) in smalls else tensor
            for tensor in layer.tensors
        ),
    )


def check_small(products: Products, dtype: str, *, gathers_small: bool, excluded: str) -> None:
    """Checks that products in small numbers have activations of 16 bits, and no option that they exclude.

    Parameters
    ----------
    gathers_small : whether weights are stored and gathered in small numbers alone
    excluded : an option that small products exclude; empty if there is none

    Raises
    ------
    InputError : another dtype, an excluded option, or small weights without small products
    """
    if products == IN_DTYPE:
        if gathers_small:
            words = ", ".join(get_args(SmallPrecision))
            raise InputError(f"fp8 param gather with products dtype: accepted with it are the products {words}")
        return
    if dtype not in SIXTEEN_BITS:
        raise InputError(f"products {products} with dtype {dtype}: accepted are {' and '.join(SIXTEEN_BITS)}")
    if excluded:
        raise InputError(f"products {products} with {excluded}: no schedule has both; leave out one")
