"""Kernels of the normalisation of queries and keys, forward and backward; values pass unchanged.

The columns of a group are those of its query heads, then of the key and the value that they share.  x̂ is a query or key
divided by its root mean square: of one head, or of all heads of a token, whose squares are summed over ranks before.

Source: Henry et al., "Query-Key Normalization for Transformers", 2020; Zhang, Sennrich, "Root Mean Square Layer
Normalization", 2019.
"""

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.kernel_arguments import KernelArguments

KEY, VALUE = -2, -1
"""Positions of the key and the value among the heads of a group."""
QUERIES = slice(0, KEY)
KEYS = slice(KEY, VALUE)


def _heads(args: KernelArguments, x: Array, more: int = 2) -> Array:
    """Rows x columns as rows × groups × heads of a group × columns of a head."""
    head, group = int(args.scalars["head"]), int(args.scalars["group"])
    return x.reshape(x.shape[0], -1, group + more, head)


def _inverse(args: KernelArguments, squares: Array, columns: float) -> Array:
    """The reciprocal of the root mean square, from sums of squares."""
    return 1 / args.xp.sqrt(squares / columns + args.scalars["epsilon"])


def _inverse_of_heads(args: KernelArguments, x: Array) -> Array:
    return _inverse(args, (x * x).sum(axis=3, keepdims=True), args.scalars["head"])


def head_norm(args: KernelArguments) -> None:
    """Queries and keys divided by the root mean square of their head, times the γ of queries or of keys."""
    x = _heads(args, args.sources[0])
    into = x.copy()
    for part, gamma in ((QUERIES, args.sources[1]), (KEYS, args.sources[2])):
        into[:, :, part] = x[:, :, part] * _inverse_of_heads(args, x[:, :, part]) * gamma[0]
    args.into[0][...] = into.reshape(args.into[0].shape)


def head_norm_gradient(args: KernelArguments) -> None:
    """(γ g - x̂ mean(γ g x̂)) / size of each head, and the gradients of both γ: sums over rows and heads of g x̂."""
    x, g = _heads(args, args.sources[0]), _heads(args, args.sources[3])
    into = g.copy()
    for number, part in ((1, QUERIES), (2, KEYS)):
        inverse = _inverse_of_heads(args, x[:, :, part])
        hat, scaled = x[:, :, part] * inverse, g[:, :, part] * args.sources[number][0]
        into[:, :, part] = (scaled - hat * (scaled * hat).mean(axis=3, keepdims=True)) * inverse
        args.into[number][0] = (g[:, :, part] * hat).sum(axis=(0, 1, 2))
    args.into[0][...] = into.reshape(args.into[0].shape)


def _row_sums(x: Array) -> Array:
    return x.sum(axis=(1, 2, 3))


def qk_squares(args: KernelArguments) -> None:
    """The sums of the squares of all queries and of all keys, row by row."""
    x = _heads(args, args.sources[0])
    for column, part in enumerate((QUERIES, KEYS)):
        args.into[0][:, column] = _row_sums(x[:, :, part] * x[:, :, part])


def _normalised(args: KernelArguments, column: int, part: slice) -> tuple[Array, Array]:
    """x̂ of all queries or of all keys, and 1 / size, from the sums of squares of whole rows."""
    x, squares = _heads(args, args.sources[0]), args.sources[1]
    columns = args.scalars[("query_columns", "key_columns")[column]]
    inverse = _inverse(args, squares[:, column], columns)[:, None, None, None]
    return x[:, :, part] * inverse, inverse


def _gammas(args: KernelArguments, gamma: Array) -> tuple[Array, Array]:
    """The γ of queries and of keys, by group and head."""
    by_head = _heads(args, gamma, more=1)
    return by_head[:, :, :-1], by_head[:, :, -1:]


def qk_normalise(args: KernelArguments) -> None:
    """Queries and keys divided by the root mean square of all queries or keys of the row, times γ."""
    into = _heads(args, args.sources[0]).copy()
    for column, (part, gamma) in enumerate(zip((QUERIES, KEYS), _gammas(args, args.sources[2]), strict=True)):
        into[:, :, part] = _normalised(args, column, part)[0] * gamma
    args.into[0][...] = into.reshape(args.into[0].shape)


def qk_sums(args: KernelArguments) -> None:
    """The sums over columns of γ g x̂ of queries and of keys, which the gradient needs for whole rows."""
    g = _heads(args, args.sources[3])
    for column, (part, gamma) in enumerate(zip((QUERIES, KEYS), _gammas(args, args.sources[2]), strict=True)):
        args.into[0][:, column] = _row_sums(g[:, :, part] * gamma * _normalised(args, column, part)[0])


def qk_gradient(args: KernelArguments) -> None:
    """(γ g - x̂ mean(γ g x̂)) / size, of the whole row of queries or keys."""
    sums, into = args.sources[2], _heads(args, args.sources[4]).copy()
    for column, (part, gamma) in enumerate(zip((QUERIES, KEYS), _gammas(args, args.sources[3]), strict=True)):
        hat, inverse = _normalised(args, column, part)
        mean = sums[:, column] / args.scalars[("query_columns", "key_columns")[column]]
        into[:, :, part] = (into[:, :, part] * gamma - hat * mean[:, None, None, None]) * inverse
    args.into[0][...] = into.reshape(args.into[0].shape)


def qk_parameter_sums(args: KernelArguments) -> None:
    """Gradient of γ: sums over rows of g x̂."""
    g = _heads(args, args.sources[2])
    parts = [
        (g[:, :, part] * _normalised(args, column, part)[0]).sum(axis=0) for column, part in enumerate((QUERIES, KEYS))
    ]
    args.into[0][0] = args.xp.concatenate(parts, axis=1).reshape(-1)
