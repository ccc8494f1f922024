"""Kernels of LayerNorm and RMSNorm, forward and backward, from the moments of whole rows.

x̂ is a normalised row: divided by its standard deviation (LayerNorm) or by its root mean square, its size (RMSNorm).

Source: Ba, Kiros, Hinton, "Layer Normalization", 2016; Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.kernel_arguments import KernelArguments


def row_moments(args: KernelArguments) -> None:
    """The sums of the elements and of their squares, row by row."""
    (x,) = args.sources
    args.into[0][:, 0] = x.sum(axis=1)
    args.into[0][:, 1] = (x * x).sum(axis=1)


def _normalised(args: KernelArguments) -> tuple[Array, Array]:
    """(x - mean) / deviation, and 1 / deviation, from the moments of whole rows."""
    x, moments = args.sources[:2]
    columns, epsilon = args.scalars["columns"], args.scalars["epsilon"]
    mean = moments[:, :1] / columns
    variance = moments[:, 1:] / columns - mean * mean
    inverse = 1 / args.xp.sqrt(args.xp.maximum(variance, 0) + epsilon)
    return (x - mean) * inverse, inverse


def normalise(args: KernelArguments) -> None:
    """Y = γ (x - mean) / deviation + β."""
    gamma, beta = args.sources[2:]
    args.into[0][...] = _normalised(args)[0] * gamma + beta


def normalise_sums(args: KernelArguments) -> None:
    """The sums over columns of γ g and of γ g x̂, which the gradient needs for whole rows."""
    gamma, g = args.sources[2:]
    hat, _ = _normalised(args)
    scaled = g * gamma
    args.into[0][:, 0] = scaled.sum(axis=1)
    args.into[0][:, 1] = (scaled * hat).sum(axis=1)


def normalise_gradient(args: KernelArguments) -> None:
    """(γ g - mean(γ g) - x̂ mean(γ g x̂)) / deviation."""
    sums, gamma, g = args.sources[2:]
    hat, inverse = _normalised(args)
    means = sums / args.scalars["columns"]
    args.into[0][...] = (g * gamma - means[:, :1] - hat * means[:, 1:]) * inverse


def normalise_parameter_sums(args: KernelArguments) -> None:
    """Gradients of γ and β: sums over rows of g x̂ and of g."""
    g = args.sources[2]
    hat, _ = _normalised(args)
    args.into[0][0] = (g * hat).sum(axis=0)
    args.into[1][0] = g.sum(axis=0)


def row_squares(args: KernelArguments) -> None:
    """The sums of the squares of elements, row by row."""
    (x,) = args.sources
    args.into[0][:, 0] = (x * x).sum(axis=1)


def _by_size(args: KernelArguments) -> tuple[Array, Array]:
    """X / size and 1 / size, where the size of a row is the root of its mean square."""
    x, squares = args.sources[:2]
    inverse = 1 / args.xp.sqrt(squares / args.scalars["columns"] + args.scalars["epsilon"])
    return x * inverse, inverse


def rms_normalise(args: KernelArguments) -> None:
    """Y = γ x / size."""
    args.into[0][...] = _by_size(args)[0] * args.sources[2]


def rms_sums(args: KernelArguments) -> None:
    """The sums over columns of γ g x̂, which the gradient needs for whole rows."""
    gamma, g = args.sources[2:]
    hat, _ = _by_size(args)
    args.into[0][:, 0] = (g * gamma * hat).sum(axis=1)


def rms_gradient(args: KernelArguments) -> None:
    """(γ g - x̂ mean(γ g x̂)) / size."""
    sums, gamma, g = args.sources[2:]
    hat, inverse = _by_size(args)
    args.into[0][...] = (g * gamma - hat * (sums / args.scalars["columns"])) * inverse


def rms_parameter_sums(args: KernelArguments) -> None:
    """Gradient of γ: sums over rows of g x̂."""
    hat, _ = _by_size(args)
    args.into[0][0] = (args.sources[2] * hat).sum(axis=0)
