"""Vector parameters (bias, γ, β): where they are stored, and the ops that bring them to the ranks that use them.

    replicated    on every rank that holds the columns
    first row     on the first row of a mesh; broadcast along its columns, gradients reduced back
    diagonal      on the ranks of a diagonal, cut further over z; broadcast, then gathered, and back

A vector belongs to an activation whose columns one axis cuts, and whose rows z, a third axis and data cut.  The
diagonal is where the coordinates of the column axis and of the third axis add up to 0 modulo the third's length; on a
cube that is one rank in p of each plane.

Source: Xu et al. (Optimus), arXiv 2104.05343, section 3.2; Bian et al., arXiv 2105.14450, section 3.1.2 and algorithms
7 and 8 (matrix-vector operations).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllGather, Broadcast, Kernel, Reduce, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.layers import Parameter, Start
from quadrille.algorithms.training.scheme import ONE, Layout, Linear, Scheme, Vector


def replicated_vector(name: str, columns: Part, layout: Layout, start: Start, copies: Copies) -> Vector:
    """A vector that is replicated on every rank that holds its columns; see `Scheme.vector` for the parameters."""
    tensor = Tensor(name, ONE, layout.cut_columns(columns), copies=copies)
    return Vector(Parameter(tensor, layout.row_axes, start), (), name, f"d{name}")


def first_row_vector(name: str, columns: Part, layout: Layout, start: Start, copies: Copies, down: Axis) -> Vector:
    """A vector on the first row of a mesh, the ranks at coordinate 0 of axis `down`; it is broadcast for use.

    Parameters
    ----------
    name : name of the parameter
    columns : columns of the activation, uncut
    layout : layout of the activation
    start : initial values
    copies : copies of the parameter, one for each layer
    down : axis along the mesh's columns
    """
    cut = layout.cut_columns(columns)
    stored = Tensor(name, replace(ONE, axes=(down,)), cut, copies=copies)
    local = Tensor(f"{name} local", ONE, cut)
    local_gradient = replace(local, name=f"d{local.name}")

    def fetch(suffix: str) -> Program:
        return (Broadcast(name=f"send {name}{suffix}", axis=down, root=0, source=name, into=local.name),)

    reduce_gradient: Program = (
        Reduce(name=f"collect d{name}", axis=down, root=0, source=local_gradient.name, into=f"d{name}"),
    )
    summed_over = tuple(axis for axis in layout.row_axes if axis != down)
    parameter = Parameter(stored, summed_over, start)
    return Vector(
        parameter, (local, local_gradient), local.name, local_gradient.name, fetch(""), fetch(" again"), reduce_gradient
    )


def diagonal_vector(name: str, columns: Part, layout: Layout, start: Start, copies: Copies, third: Axis) -> Vector:
    """A vector on the diagonal of the layout's column axis and the axis `third`, cut over z; it is gathered for use.

    Parameters
    ----------
    name : name of the parameter
    columns : columns of the activation, uncut
    layout : layout of the activation
    start : initial values
    copies : copies of the parameter, one for each layer
    third : axis other than z and data that cuts the rows of the activation
    """
    whole = layout.cut_columns(columns)
    shard_columns = replace(whole, finer=("z",))
    stored = Tensor(name, replace(ONE, axes=(third,), rotated_by=(layout.columns,)), shard_columns, copies=copies)
    shard, local = Tensor(f"{name} shard", ONE, shard_columns), Tensor(f"{name} local", ONE, whole)
    gradients = [replace(tensor, name=f"d{tensor.name}") for tensor in (shard, local)]
    root = Affine(layout.columns, -1, modulo=third)

    def fetch(suffix: str) -> Program:
        return (
            Broadcast(name=f"send {name}{suffix}", axis=third, root=root, source=name, into=shard.name),
            AllGather(name=f"gather {name}{suffix}", axis="z", source=shard.name, into=local.name),
        )

    reduce_gradient: Program = (
        ReduceScatter(name=f"scatter d{name}", axis="z", source=gradients[1].name, into=gradients[0].name),
        Reduce(name=f"collect d{name}", axis=third, root=root, source=gradients[0].name, into=f"d{name}"),
    )
    summed_over = tuple(axis for axis in layout.row_axes if axis not in ("z", third))
    return Vector(
        Parameter(stored, summed_over, start),
        (shard, local, *gradients),
        local.name,
        gradients[1].name,
        fetch(""),
        fetch(" again"),
        reduce_gradient,
    )


@dataclass(frozen=True, slots=True)
class Bias:
    """The bias of a product, or none.

    Parameters
    ----------
    add : ops that add the bias to the product
    gradient : ops from the product's gradient to the stored gradient of the bias
    """

    tensors: tuple[Tensor, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    add: Program = ()
    gradient: Program = ()


def bias_of(linear: Linear, scheme: Scheme, after: Layout) -> Bias:
    """Returns the bias of a product whose output has the layout `after`."""
    if not linear.biased:
        return Bias()
    name = linear.name
    bias = scheme.vector(f"{name} b", linear.outputs, after, "zeros", linear.copies)
    add = Kernel(name=f"{name} add b", function="add_bias", updates=(linear.into,), sources=(bias.local,))
    sums = Kernel(
        name=f"{name} sum db", function="column_sums", into=(bias.local_gradient,), sources=(linear.into_gradient,)
    )
    return Bias(bias.tensors, (bias.parameter,), (*bias.fetch, add), (sums, *bias.reduce_gradient))
