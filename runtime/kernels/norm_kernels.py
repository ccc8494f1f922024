"""LayerNorm and RMSNorm on arrays, from moments of whole rows; x̂ is a row divided by its deviation or its size.

Source: Ba, Kiros, Hinton, "Layer Normalization", 2016; Zhang, Sennrich, "Root
Mean Square Layer Normalization", 2019.
"""

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.kernel_arguments import KernelArguments


def row_moments(given: KernelArguments) -> None:
    """The sums of the elements and of their squares, row by row."""
    (x,) = given.sources
    given.into[0][:, 0] = x.sum(axis=1)
    given.into[0][:, 1] = (x * x).sum(axis=1)


def _normalised(given: KernelArguments) -> tuple[Array, Array]:
    """(x - mean) / deviation, and 1 / deviation, from the moments of whole rows."""
    x, moments = given.sources[:2]
    columns, epsilon = given.scalars["columns"], given.scalars["epsilon"]
    mean = moments[:, :1] / columns
    variance = moments[:, 1:] / columns - mean * mean
    inverse = 1 / given.xp.sqrt(given.xp.maximum(variance, 0) + epsilon)
    return (x - mean) * inverse, inverse


def normalise(given: KernelArguments) -> None:
    """Y = γ (x - mean) / deviation + β."""
    gamma, beta = given.sources[2:]
    given.into[0][...] = _normalised(given)[0] * gamma + beta


def normalise_sums(given: KernelArguments) -> None:
    """The sums over columns of γ g and of γ g x̂, which the gradient needs for whole rows."""
    gamma, g = given.sources[2:]
    hat, _ = _normalised(given)
    scaled = g * gamma
    given.into[0][:, 0] = scaled.sum(axis=1)
    given.into[0][:, 1] = (scaled * hat).sum(axis=1)


def normalise_gradient(given: KernelArguments) -> None:
    """(γ g - mean(γ g) - x̂ mean(γ g x̂)) / deviation."""
    sums, gamma, g = given.sources[2:]
    hat, inverse = _normalised(given)
    means = sums / given.scalars["columns"]
    given.into[0][...] = (g * gamma - means[:, :1] - hat * means[:, 1:]) * inverse


def normalise_parameter_sums(given: KernelArguments) -> None:
    """Gradients of γ and β: sums over rows of g x̂ and of g."""
    g = given.sources[2]
    hat, _ = _normalised(given)
    given.into[0][0] = (g * hat).sum(axis=0)
    given.into[1][0] = g.sum(axis=0)


def row_squares(given: KernelArguments) -> None:
    """The sums of the squares of elements, row by row."""
    (x,) = given.sources
    given.into[0][:, 0] = (x * x).sum(axis=1)


def _by_size(given: KernelArguments) -> tuple[Array, Array]:
    """X / size and 1 / size, where the size of a row is the root of its mean square."""
    x, squares = given.sources[:2]
    inverse = 1 / given.xp.sqrt(squares / given.scalars["columns"] + given.scalars["epsilon"])
    return x * inverse, inverse


def rms_normalise(given: KernelArguments) -> None:
    """Y = γ x / size."""
    given.into[0][...] = _by_size(given)[0] * given.sources[2]


def rms_sums(given: KernelArguments) -> None:
    """The sums over columns of γ g x̂, which the gradient needs for whole rows."""
    gamma, g = given.sources[2:]
    hat, _ = _by_size(given)
    given.into[0][:, 0] = (g * gamma * hat).sum(axis=1)


def rms_gradient(given: KernelArguments) -> None:
    """(γ g - x̂ mean(γ g x̂)) / size."""
    sums, gamma, g = given.sources[2:]
    hat, inverse = _by_size(given)
    given.into[0][...] = (g * gamma - hat * (sums / given.scalars["columns"])) * inverse


def rms_parameter_sums(given: KernelArguments) -> None:
    """Gradient of γ: sums over rows of g x̂."""
    hat, _ = _by_size(given)
    given.into[0][0] = (given.sources[2] * hat).sum(axis=0)
