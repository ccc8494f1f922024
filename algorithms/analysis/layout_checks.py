"""Layout checks: whether the shapes, regions, roots and peers of an op's tensors fit together on one rank."""

from dataclasses import replace

from quadrille.algorithms.analysis.traffic import traffic, written_coordinates
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.kernel_signatures import SIGNATURES, WHOLE_BLOCKS, attention_columns
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    CommunicationOp,
    Gemm,
    HostCopy,
    Kernel,
    Op,
    Pointwise,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    is_host_op,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block

OPERANDS = {"zero": 0, "copy": 1, "add": 2}


def check_op(op: Op, schedule: Schedule, coordinates: Coordinates) -> None:
    """Checks that the tensors of an op fit together at the coordinates.

    Raises
    ------
    InputError : names the op, its tensors and the coordinates
    """
    _check_memory(op, schedule)
    match op:
        case Gemm():
            _check_product(op, schedule, coordinates)
        case Pointwise():
            takes = OPERANDS[op.function]
            if len(op.sources) != takes:
                raise InputError(f"op {op.name!r}: {op.function} takes {takes} sources, not {len(op.sources)}")
            for source in op.sources:
                _check_same(op, source, op.into, schedule, coordinates)
        case Kernel():
            _check_kernel(op, schedule, coordinates)
        case HostCopy():
            _check_same(op, op.source, op.into, schedule, coordinates)
        case _:
            _check_communication(op, schedule, coordinates)


def _check_kernel(op: Kernel, schedule: Schedule, coordinates: Coordinates) -> None:
    """Checks that every tensor has the shape that the function's signature in `kernel_signatures.py` gives it."""
    signature = SIGNATURES[op.function]
    names = (*op.into, *op.updates, *op.sources)
    shapes = (*signature.into, *signature.updates, *signature.sources)
    counts = len(op.into), len(op.updates), len(op.sources)
    if counts != (len(signature.into), len(signature.updates), len(signature.sources)):
        raise InputError(
            f"op {op.name!r}: {op.function} writes {len(signature.into)}, updates {len(signature.updates)} and reads "
            f"{len(signature.sources)} tensors, not {', '.join(map(str, counts))}"
        )
    bindings: dict[str, object] = {}
    for name, shape in zip(names, shapes, strict=True):
        block = schedule.tensors[name].block(coordinates)
        fits = (
            _is_whole(bindings, shape, block)
            if shape in WHOLE_BLOCKS
            else block.stored_range is None and _has(block, shape, bindings, op)
        )
        if not fits:
            raise InputError(
                f"op {op.name!r}: {schedule.tensors[name]} does not fit the others of {op.function} "
                f"({shape}) at {_where(coordinates)}"
            )


def _is_whole(bindings: dict[str, object], shape: str, block: Block) -> bool:
    """Whether a block is the block of the other operands, or its compressed vector."""
    if shape == "=":
        return _same_as(bindings, "=", block)
    of_block = _same_as(bindings, "=", replace(block, kept_range=None))
    compressed = block.kept_range is not None or not block.elements
    return of_block and compressed and _same_as(bindings, "kept", block.kept_range)


def _has(block: Block, shape: str, bindings: dict[str, object], op: Kernel) -> bool:
    """Whether rows and columns of a block match the two words of a shape."""
    words = zip(shape.split(), (block.rows, block.columns), strict=True)
    return all(_is(word, span, bindings, op) for word, span in words)


def _is(word: str, span: tuple[int, int], bindings: dict[str, object], op: Kernel) -> bool:
    if word == "-":
        return True
    if word.isdigit():
        return span[1] - span[0] == int(word)
    factor, letter = _factor(word[:-1], op), word[-1]
    divided = not any(edge % factor for edge in span)
    return divided and _same_as(bindings, letter, (span[0] // factor, span[1] // factor))


def _factor(word: str, op: Kernel) -> int:
    """Value of a number, `(scalar)`, `(scalar+number)`, `(qkv)` or `(attended)`; 1 for an empty word.

    >>> attention = Kernel(name="attention", function="attention", scalars=(("group", 4.0),))
    >>> _factor("", attention), _factor("3", attention), _factor("(group+2)", attention)
    (1, 3, 6)
    """
    if not word.startswith("("):
        return int(word or 1)
    if word in ("(qkv)", "(attended)"):
        return attention_columns(dict(op.scalars))[word == "(attended)"]
    scalar, _, more = word[1:-1].partition("+")
    return int(dict(op.scalars).get(scalar, 1)) + int(more or 0)


def _same_as(bindings: dict[str, object], word: str, value: object) -> bool:
    return bindings.setdefault(word, value) == value


def _check_memory(op: Op, schedule: Schedule) -> None:
    """Checks that a host copy joins the two memories, and that every other op stays in one memory."""
    on_host = [name for name in (*reads(op), *writes(op)) if schedule.tensors[name].on_host]
    if isinstance(op, HostCopy):
        if len(on_host) != 1:
            raise InputError(
                f"op {op.name!r}: one of {op.source!r} and {op.into!r} must be on the host, not {len(on_host)}"
            )
        if op.to_host != (op.into in on_host):
            raise InputError(f"op {op.name!r}: {op.into!r} is not where the copy goes, to the host or to the device")
    elif is_host_op(op):
        if len(on_host) < len((*reads(op), *writes(op))):
            raise InputError(f"op {op.name!r}: runs on the host, and not all of its tensors are in host memory")
    elif on_host:
        raise InputError(f"op {op.name!r}: {on_host[0]!r} is on the host, where only a host copy reaches it")


def _check_communication(op: CommunicationOp, schedule: Schedule, coordinates: Coordinates) -> None:
    match op:
        case AllGather() | ReduceScatter() | AllToAll():
            traffic(op, schedule, coordinates, Choices())
            if coordinates.grid.length(op.axis) == 1:
                _check_same(op, op.source, op.into, schedule, coordinates, flat=True)
        case Broadcast():
            _check_region(op, op.into, op.source, evaluate(op.root, coordinates), schedule, coordinates)
        case Reduce():
            _check_region(op, op.source, op.into, evaluate(op.root, coordinates), schedule, coordinates)
        case Send() | Receive():
            traffic(op, schedule, coordinates, Choices())
        case Shift():
            _check_shift(op, schedule, coordinates)
        case AllReduce():
            _check_bucket(op, schedule)
        case Barrier():
            pass


def _check_bucket(op: AllReduce, schedule: Schedule) -> None:
    """Checks that the buffers of a bucket have one dtype, and that each occurs once."""
    dtypes = {name: schedule.tensors[name].dtype or schedule.dtype for name in op.buffers}
    if len(set(dtypes.values())) > 1 or len(dtypes) < len(op.buffers):
        dtype_texts = ", ".join(f"{name!r} of {dtypes[name]}" for name in op.buffers)
        raise InputError(f"op {op.name!r} sums {dtype_texts} together: buffers of one dtype are accepted, each once")


def _check_expert_products(op: Gemm, schedule: Schedule, coordinates: Coordinates) -> None:
    """Checks a product for each expert: its rows are sorted by expert, and weights stand one below the other."""
    weights = schedule.tensors[op.weights]
    height, (a, b, c) = (
        weights.rows.unit,
        (schedule.tensors[name].block(coordinates).rectangle_shape for name in (op.a, op.b, op.c)),
    )
    fits = {
        "NN": (a[0], a[1], b[1]) == (c[0], height, c[1]),
        "NT": (a[0], a[1], c[1]) == (c[0], b[1], height),
        "TN": (a[0], a[1], b[1]) == (b[0], height, c[1]),
    }
    if not fits[op.layout]:
        raise InputError(
            f"op {op.name!r}: {op.layout} of {schedule.tensors[op.a]} and {schedule.tensors[op.b]} "
            f"does not give {schedule.tensors[op.c]} for each expert at {_where(coordinates)}"
        )


def _check_product(op: Gemm, schedule: Schedule, coordinates: Coordinates) -> None:
    if op.counts:
        _check_expert_products(op, schedule, coordinates)
        return
    a, b, c = (schedule.tensors[name].block(coordinates) for name in (op.a, op.b, op.c))
    rows, inner = (a.columns, a.rows) if op.layout == "TN" else (a.rows, a.columns)
    inner_b, columns = (b.columns, b.rows) if op.layout == "NT" else (b.rows, b.columns)
    if (rows, columns) != (c.rows, c.columns) or inner != inner_b:
        raise InputError(
            f"op {op.name!r}: {op.layout} of {schedule.tensors[op.a]} and {schedule.tensors[op.b]} "
            f"does not give {schedule.tensors[op.c]} at {_where(coordinates)}"
        )


def _check_same(
    op: Op, source: str, destination: str, schedule: Schedule, coordinates: Coordinates, *, flat: bool = False
) -> None:
    blocks = [schedule.tensors[name].block(coordinates) for name in (source, destination)]
    if (blocks[0].elements != blocks[1].elements) if flat else (blocks[0].shape != blocks[1].shape):
        raise InputError(
            f"op {op.name!r}: {schedule.tensors[source]} and {schedule.tensors[destination]} differ in size "
            f"at {_where(coordinates)}"
        )


def _check_region(
    op: Broadcast | Reduce, region: str, whole: str, root: int, schedule: Schedule, coordinates: Coordinates
) -> None:
    """Checks that the region is the same on all members, and inside the root's block of the whole."""
    members = coordinates.grid.length(op.axis)
    if not 0 <= root < members:
        raise InputError(f"op {op.name!r}: root {root} is not among the {members} members of its group")
    root_coordinates = coordinates.at(op.axis, root)
    part, block = schedule.tensors[region].block(coordinates), schedule.tensors[whole].block(root_coordinates)
    same = part == schedule.tensors[region].block(root_coordinates)
    if part.elements and not (same and _inside(part.rows, block.rows) and _inside(part.columns, block.columns)):
        raise InputError(
            f"op {op.name!r}: {schedule.tensors[region]} at {_where(coordinates)} is no region of "
            f"{schedule.tensors[whole]} at {op.axis}={root}"
        )


def _inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _check_shift(op: Shift, schedule: Schedule, coordinates: Coordinates) -> None:
    """Checks that what a member receives is what the member behind sends."""
    members, member = coordinates.grid.length(op.axis), coordinates.along[op.axis]
    behind = coordinates.at(op.axis, (member - evaluate(op.distance, coordinates)) % members)
    sent: Block = schedule.tensors[op.source].block(behind)
    if sent.elements != schedule.tensors[op.into].block(written_coordinates(op, schedule, coordinates)).elements:
        raise InputError(
            f"op {op.name!r}: {schedule.tensors[op.source]} at {_where(behind)} does not fill "
            f"{schedule.tensors[op.into]} at {_where(coordinates)}"
        )


def _where(coordinates: Coordinates) -> str:
    text = ", ".join(f"{axis}={coordinate}" for axis, coordinate in coordinates.along.items())
    return text + "".join(f", {loop}={index}" for loop, index in coordinates.indices.items())
