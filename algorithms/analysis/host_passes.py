"""The passes over arrays that a kernel makes on a host: the NumPy calls of the runtime's kernels, with their sizes.

A kernel on a host is no fused function. It is a sequence of passes: batched products of small matrices, exponentials,
arithmetic with a new result, reductions of rows, selections, copies. Each pass has a cost per call, per row and per
element, which `calibrate` measures. `tests/runtime/kernels/test_host_pieces.py` compares these passes with the calls of
the runtime's kernels.

A kernel runs by pieces whose temporaries stay in the cache. A piece is a range of rows, or of whole sequences and whole
groups of heads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from quadrille.algorithms.schedule.kernel_signatures import Function, PassOperation

PIECE_ELEMENTS = 1 << 16
"""Largest number of elements of a temporary of a piece, unless one row or one group of heads has more."""


def piece_rows(columns: int) -> int:
    """Rows of a piece of a matrix with this number of columns.

    >>> piece_rows(256), piece_rows(1 << 20)
    (256, 1)
    """
    return max(1, PIECE_ELEMENTS // max(1, columns))


def attention_piece(sequence: int, group: int, groups: int) -> tuple[int, int]:
    """Sequences, and groups of heads, of a piece of attention.

    Parameters
    ----------
    sequence : tokens of a sequence
    group : query heads of a group
    groups : groups of heads of the rank

    >>> attention_piece(64, 1, 4), attention_piece(256, 1, 8)
    ((4, 4), (1, 1))
    """
    fitting = max(1, PIECE_ELEMENTS // (group * sequence * sequence))
    return max(1, fitting // groups), min(groups, fitting)


@dataclass(frozen=True, slots=True)
class HostPass:
    """Equal passes over arrays.

    Parameters
    ----------
    operation : kind of pass
    calls : number of NumPy calls
    rows : rows of all calls together; of a product, the number of its small matrices
    elements : elements of all calls together; of a product, those of its square matrices
    multiplications : multiplications of a product, m k n of all small matrices together
    narrow_elements : elements of a product's other operands, the queries, keys or values

    >>> HostPass("row_sum", calls=2, rows=8, elements=512).terms
    (2, 8, 512)
    """

    operation: PassOperation
    calls: int
    rows: int
    elements: int
    multiplications: int = 0
    narrow_elements: int = 0

    @property
    def terms(self) -> tuple[int, ...]:
        """The factors of the costs per call, row, element and, of a product, multiplication."""
        costs = self.calls, self.rows, self.elements
        if self.operation.startswith("product"):
            return (*costs, self.multiplications, self.narrow_elements)
        return costs


def product_pass(
    operation: PassOperation, calls: int, matrices: int, sequence: int, head: int, keys: int = 0
) -> HostPass:
    """Batched products of attention, between matrices of `sequence` rows and of `keys` or `head` columns.

    There are as many keys as rows unless `keys` says another number.

    >>> product_pass("product_nt", 1, 4, 64, 32).terms
    (1, 4, 16384, 524288, 8192)
    """
    scores = matrices * sequence * (keys or sequence)
    return HostPass(operation, calls, matrices, scores, scores * head, matrices * sequence * head)


@dataclass(frozen=True, slots=True)
class KernelShape:
    """The sizes of a kernel on one rank.

    Parameters
    ----------
    rows, columns : matrix of the kernel: tokens, and columns of hidden states or of logits
    sequence : tokens of a sequence, for attention and sums over positions
    head, group, groups : columns of a head, query heads of a group, and groups of heads, for attention
    rotary, drops : whether positions are rotary, and whether attention weights are dropped
    keys : keys of a sequence, if they are not as many as its queries
    in_pieces : whether attention runs piece by piece
    rotated : columns of a head that rotary positions rotate; 0 for all
    value : columns of a value; 0 for those of a head
    capped : whether scores have a soft cap
    streamed_bytes : bytes of the operands that move between memory and the caches [B]
    """

    rows: int
    columns: int
    sequence: int = 1
    head: int = 1
    group: int = 1
    groups: int = 1
    rotary: bool = False
    drops: bool = False
    streamed_bytes: int = 0
    keys: int = 0
    in_pieces: bool = True
    rotated: int = 0
    value: int = 0
    capped: bool = False


def host_passes(function: Function, shape: KernelShape) -> tuple[HostPass, ...]:
    """The passes of a kernel on a host; empty for a kernel that `calibrate` measures whole.

    >>> host_passes("row_maxima", KernelShape(8, 100))
    (HostPass(operation='row_maximum', calls=1, rows=8, elements=800, multiplications=0, narrow_elements=0),)
    """
    if function in ATTENTION:
        return tuple(ATTENTION[function](_Heads(shape)))
    return tuple(BY_MATRIX[function](shape)) if function in BY_MATRIX else ()


class _Heads:
    """Passes over the scores, the queries and the rows of all heads, by the pieces of the runtime."""

    def __init__(self, shape: KernelShape) -> None:
        self.shape = shape
        sequences = shape.rows // shape.sequence
        of_piece = attention_piece(shape.sequence, shape.group, shape.groups)
        self.pieces = ceil(sequences / of_piece[0]) * ceil(shape.groups / of_piece[1]) if shape.in_pieces else 1
        self.keys = shape.keys or shape.sequence
        self.matrices = sequences * shape.groups * shape.group
        self.tokens = self.matrices * shape.sequence

    def over_scores(self, operation: PassOperation, calls: int = 1) -> HostPass:
        """Passes over the square matrices of scores."""
        return self._over(operation, self.keys, calls)

    @property
    def value(self) -> int:
        """Columns of a value."""
        return self.shape.value or self.shape.head

    def over_queries(self, operation: PassOperation, calls: int = 1) -> HostPass:
        """Passes over matrices of the size of the queries and values, on average."""
        return self._over(operation, (self.shape.head + self.value) // 2, calls)

    def over_values(self, operation: PassOperation) -> HostPass:
        """A pass over a matrix of the size of the output."""
        return self._over(operation, self.value, 1)

    def over_rows(self, calls: int) -> HostPass:
        """Arithmetic on one number for each row of the scores."""
        return HostPass("elementwise", calls * self.pieces, calls * self.pieces, calls * self.tokens)

    def _over(self, operation: PassOperation, columns: int, calls: int) -> HostPass:
        return HostPass(operation, calls * self.pieces, calls * self.tokens, calls * self.tokens * columns)

    def product(self, operation: PassOperation, columns: int = 0, calls: int = 1) -> HostPass:
        """Batched products: of s x h by h x s (`product_nt`), or of s x s by s x h.

        Parameters
        ----------
        columns : the narrow side, of a value; 0 for that of a query
        """
        shape, matrices = self.shape, calls * self.matrices
        return product_pass(operation, calls * self.pieces, matrices, shape.sequence, columns or shape.head, self.keys)

    def keys_and_queries(self) -> Iterator[HostPass]:
        """Rotary positions of queries and keys: six passes over halves of the columns, and their concatenation."""
        if self.shape.rotary:
            rows = self.tokens * (self.shape.group + 1) // self.shape.group
            rotated = rows * (self.shape.rotated or self.shape.head)
            yield HostPass("arithmetic", 12 * self.pieces, 6 * rows, 3 * rotated)
            yield HostPass("rearrange", 2 * self.pieces, rows, rows * self.shape.head)

    def capped(self) -> Iterator[HostPass]:
        """The soft cap of the scores: quotient, tanh and product, and the square and difference of its slopes."""
        if self.shape.capped:
            yield self.over_scores("arithmetic", 4)
            yield self.over_scores("exponential")

    def dropped(self) -> Iterator[HostPass]:
        """Dropout of the weights: the mask from random numbers, its factors, and their product with the weights."""
        if self.shape.drops:
            yield self.over_scores("random")
            yield self.over_scores("elementwise", 2)

    def softmax(self) -> Iterator[HostPass]:
        """Rotation, scores, scale, mask, and the softmax: maximum, difference, exponential, sum and quotient."""
        yield from self.keys_and_queries()
        yield self.product("product_nt")
        yield from self.capped()
        yield self.over_scores("select")
        yield self.over_scores("row_maximum")
        yield self.over_scores("elementwise")
        yield self.over_scores("arithmetic", 2)
        yield self.over_scores("exponential")
        yield self.over_scores("row_sum")

    def gradients(self) -> Iterator[HostPass]:
        """The gradient of the weights and of the scores, the three products behind it, and the copies of the result."""
        yield self.product("product_nt", self.value)
        yield self.over_scores("arithmetic", 2 if self.shape.capped else 1)
        yield self.over_scores("elementwise", 2)
        yield self.product("product_nn")
        yield self.product("product_tn")
        yield self.product("product_tn", self.value)
        yield self.over_queries("rearrange", 9)
        if self.shape.rotary:
            yield from self.keys_and_queries()


def _attention(heads: _Heads) -> Iterator[HostPass]:
    yield from heads.softmax()
    yield from heads.dropped()
    yield heads.product("product_nn", heads.value)
    yield heads.over_queries("rearrange", 2)
    yield heads.over_rows(4)


def _attention_merge(heads: _Heads) -> Iterator[HostPass]:
    yield from _attention(heads)
    yield heads.over_queries("elementwise", 3)
    yield heads.over_rows(8)


def _attention_keeping(heads: _Heads) -> Iterator[HostPass]:
    yield from heads.softmax()
    yield heads.product("product_nn", heads.value)
    yield heads.over_queries("rearrange", 2)
    yield heads.over_scores("rearrange", 2)
    yield heads.over_rows(2)


def _attention_dropping(heads: _Heads) -> Iterator[HostPass]:
    yield from heads.softmax()
    yield from heads.dropped()
    yield heads.product("product_nn", heads.value)
    yield heads.over_queries("rearrange", 2)
    yield heads.over_scores("rearrange", 6)
    yield heads.over_rows(2)


def _attention_gradient(heads: _Heads) -> Iterator[HostPass]:
    yield from heads.keys_and_queries()
    yield heads.product("product_nt")
    yield from heads.capped()
    yield heads.over_scores("select")
    yield heads.over_scores("elementwise")
    yield heads.over_scores("arithmetic")
    yield heads.over_scores("exponential")
    yield from heads.dropped()
    yield heads.over_values("arithmetic")
    yield heads.over_values("row_sum")
    yield from heads.gradients()


def _attention_keeping_gradient(heads: _Heads) -> Iterator[HostPass]:
    yield from heads.keys_and_queries()
    if heads.shape.capped:  # the slopes need the scores again
        yield heads.product("product_nt")
        yield heads.over_scores("elementwise")
        yield from heads.capped()
        yield heads.over_scores("select")
    yield heads.over_scores("arithmetic")
    yield heads.over_scores("row_sum")
    yield from heads.gradients()


def _attention_dropping_gradient(heads: _Heads) -> Iterator[HostPass]:
    yield heads.over_scores("elementwise", 2)
    yield from _attention_keeping_gradient(heads)


ATTENTION: dict[Function, Callable[[_Heads], Iterator[HostPass]]] = {
    "attention": _attention,
    "attention_gradient": _attention_gradient,
    "attention_keeping": _attention_keeping,
    "attention_keeping_gradient": _attention_keeping_gradient,
    "attention_dropping": _attention_dropping,
    "attention_dropping_gradient": _attention_dropping_gradient,
    "attention_apart": _attention,
    "attention_apart_gradient": _attention_gradient,
    "attention_merge": _attention_merge,
    "attention_merge_gradient": _attention_gradient,
}


def _over(shape: KernelShape, operation: PassOperation, calls: int = 1, pieces: int = 1) -> HostPass:
    """Passes over the matrix of the kernel, by this number of pieces."""
    return HostPass(operation, calls * pieces, calls * shape.rows, calls * shape.rows * shape.columns)


def _over_rows(shape: KernelShape, calls: int, pieces: int = 1) -> HostPass:
    """Calls on one number for each row."""
    return HostPass("elementwise", calls * pieces, calls * pieces, calls * shape.rows)


def _exponential_sums(shape: KernelShape) -> Iterator[HostPass]:
    pieces = ceil(shape.rows / piece_rows(shape.columns))
    yield _over(shape, "arithmetic", 1, pieces)
    yield _over(shape, "exponential", 1, pieces)
    yield _over(shape, "row_sum", 1, pieces)
    yield _over_rows(shape, 10, pieces)


def _cross_entropy(shape: KernelShape) -> Iterator[HostPass]:
    pieces = ceil(shape.rows / piece_rows(shape.columns))
    yield _over(shape, "arithmetic", 2, pieces)
    yield _over(shape, "exponential", 1, pieces)
    yield _over(shape, "elementwise", 2, pieces)
    yield _over_rows(shape, 10, pieces)


def _embed(shape: KernelShape) -> Iterator[HostPass]:
    pieces = ceil(shape.rows / piece_rows(shape.columns))
    yield _over_rows(shape, 6, pieces)
    yield _over(shape, "gather", 1, pieces)
    yield _over(shape, "arithmetic", 1, pieces)
    yield _over(shape, "elementwise", 1, pieces)


def _embed_gradient(shape: KernelShape) -> Iterator[HostPass]:
    yield _over_rows(shape, 5)
    yield _over(shape, "select")
    yield _over(shape, "scatter")


def _add_positions(shape: KernelShape) -> Iterator[HostPass]:
    yield _over_rows(shape, 2)
    yield _over(shape, "gather")
    yield _over(shape, "elementwise")


def _position_sums(shape: KernelShape) -> Iterator[HostPass]:
    yield _over(shape, "elementwise", 1, ceil(shape.rows / shape.sequence))


def _dropout(shape: KernelShape) -> Iterator[HostPass]:
    yield _over(shape, "random")
    yield _over(shape, "elementwise", 3)


BY_MATRIX: dict[Function, Callable[[KernelShape], Iterator[HostPass]]] = {
    "row_maxima": lambda shape: iter([_over(shape, "row_maximum")]),
    "exponential_sums": _exponential_sums,
    "cross_entropy": _cross_entropy,
    "embed": _embed,
    "embed_gradient": _embed_gradient,
    "add_positions": _add_positions,
    "position_sums": _position_sums,
    "dropout": _dropout,
    "dropout_gradient": lambda shape: iter([_over(shape, "elementwise", 3)]),
}
PASSED_OVER: dict[Function, tuple[Literal["into", "updates", "sources"], int]] = {
    "embed": ("into", 0),
    "embed_gradient": ("sources", 1),
    "add_positions": ("updates", 0),
    "dropout": ("updates", 0),
}
"""The operand whose matrix the passes of a function read or write; the first source of all other functions."""
TABLE_STREAMS: dict[Function, int] = {"embed": 2, "embed_gradient": 3, "add_positions": 3}
"""Matrices that a function with a table moves: it reads or adds one row of the table for each token."""
