"""Reader of ASTRA-sim's analytical networks (yml) and of its list of logical dimensions (json).

    read          topology, npus_count, bandwidth and latency of each dimension
    ignored       other keys
    not there     a dimension's order of routes: paths are the shortest ones

NPU n has the coordinates of n, the first dimension fastest.  A `Ring` and a
`FullyConnected` join the NPUs of a line; a `Switch` joins them over a switch.  ASTRA-sim
counts 2^30 bytes as a gigabyte.  `logical-dims` alone has no rates: all dimensions
are switches with the given rates.

Source: ASTRA-sim, astra-network-analytical, common/NetworkFunction (bw_GBps_to_Bpns) and NetworkParser, github.com.
"""

from dataclasses import dataclass
from itertools import combinations
from math import isfinite, prod
from typing import Any

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import parse_integer
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.size_limits import check_cable, check_size

BYTES = float(1 << 30)
SHAPES = ("Ring", "FullyConnected", "Switch")
MOST_DIMENSIONS = 8
KEYS = ("topology", "npus_count", "bandwidth", "latency")
LOGICAL = "logical-dims"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension: shape, number of NPUs in a line, bandwidth [B/s] and latency [s] of a link."""

    shape: str
    size: int
    bandwidth: float
    latency: float

    def cables(self) -> int:
        """Number of cables of a line."""
        if self.shape == "FullyConnected":
            return self.size * (self.size - 1) // 2
        return self.size if self.shape == "Switch" or self.size > 2 else self.size - 1


def is_astra_sim(data: Any) -> bool:
    """Whether a YAML or JSON value is a network of ASTRA-sim."""
    return isinstance(data, dict) and ("npus_count" in data or LOGICAL in data)


def read_astra_sim(data: Any, path: str, ignored: Say, rates: tuple[float | None, float]) -> Network:
    """The network of a file.

    Parameters
    ----------
    data : value of the YAML or JSON text
    ignored : is called with each thing that is not used
    rates : bandwidth [B/s], or None, and latency [s] of the links of a file without rates

    Raises
    ------
    InputError : a list that is missing or of another length, a value that cannot be, or a network that is too large
    """
    for name in data.keys() - {*KEYS, LOGICAL}:
        ignored(f"{name}")
    if LOGICAL in data:
        sizes = _numbers(path, data, LOGICAL)
        if rates[0] is None:
            raise InputError(f"{path}: {LOGICAL} has no rates: --bandwidth gives one to all links")
        return _network([Dimension("Switch", size, rates[0], rates[1]) for size in sizes], path)
    shapes = _list(path, data, "topology")
    if wrong := [shape for shape in shapes if shape not in SHAPES]:
        raise InputError(f"{path}: topology {wrong[0]!r:.40} is unknown; accepted are {', '.join(SHAPES)}")
    sizes = _numbers(path, data, "npus_count")
    columns = [_rates(path, data, key) for key in ("bandwidth", "latency")]
    if len({len(shapes), len(sizes), *map(len, columns)}) > 1:
        raise InputError(f"{path}: {', '.join(KEYS)} must be lists of equal length")
    rows = zip(shapes, sizes, *columns, strict=True)
    return _network([Dimension(shape, size, b * BYTES, seconds * 1e-9) for shape, size, b, seconds in rows], path)


def _list(path: str, data: Any, key: str) -> list[Any]:
    values = data.get(key)
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_DIMENSIONS:
        raise InputError(f"{path}: {key}={values!r:.40} must be a list of 1 to {MOST_DIMENSIONS} entries")
    return values


def _numbers(path: str, data: Any, key: str) -> list[int]:
    sizes = [value if type(value) is int else parse_integer(str(value)) for value in _list(path, data, key)]
    if not all(size is not None and 1 <= size < 1 << 40 for size in sizes):
        raise InputError(f"{path}: {key}={data[key]!r:.60} must be whole numbers from 1")
    return [size for size in sizes if size is not None]


def _rates(path: str, data: Any, key: str) -> list[float]:
    try:
        values = [float(value) for value in _list(path, data, key)]
    except (TypeError, ValueError):
        values = [float("nan")]
    if not all(isfinite(value) and value >= 0 for value in values):
        raise InputError(f"{path}: {key}={data[key]!r:.60} must be numbers from 0, in GB/s and ns")
    return values


def _network(dimensions: list[Dimension], path: str) -> Network:
    sizes = [dimension.size for dimension in dimensions]
    npus = prod(sizes)
    lines = [npus // size for size in sizes]
    switches = sum(count for count, part in zip(lines, dimensions, strict=True) if part.shape == "Switch")
    check_size(path, npus + switches, 2 * sum(n * part.cables() for n, part in zip(lines, dimensions, strict=True)))
    for part in dimensions:
        check_cable(path, part.bandwidth, part.latency)
    builder = Builder("file", {})
    numbers = builder.nodes("gpu", npus).reshape(sizes[::-1])
    hubs = builder.nodes("switch", switches) if switches else np.zeros(0, dtype=np.int64)
    used = 0
    for axis, part in enumerate(dimensions):
        along = np.moveaxis(numbers, len(sizes) - 1 - axis, -1).reshape(-1, part.size)
        if part.shape == "Switch":
            _add_switches(builder, along, hubs[used : used + len(along)], part)
            used += len(along)
        else:
            _add_line(builder, along, part)
    return builder.network(("gpu", npus), name=" ".join(f"{part.shape}:{part.size}" for part in dimensions))


def _add_switches(builder: Builder, along: Ints, hubs: Ints, part: Dimension) -> None:
    ends = along.ravel(), np.repeat(hubs, part.size)
    builder.cables(*ends, bandwidth=part.bandwidth, latency=part.latency)


def _add_line(builder: Builder, along: Ints, part: Dimension) -> None:
    if part.shape == "FullyConnected":
        pairs = list(combinations(range(part.size), 2))
    else:
        pairs = [(place, (place + 1) % part.size) for place in range(part.size if part.size > 2 else part.size - 1)]
    if pairs:
        first, second = np.array(pairs).T
        ends = along[:, first].ravel(), along[:, second].ravel()
        builder.cables(*ends, bandwidth=part.bandwidth, latency=part.latency)
