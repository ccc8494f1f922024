"""`Builder` collects the nodes and cables of a topology and makes a `Network` from them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quadrille.topologies.network import Argument, Floats, Ints, Network
from quadrille.topologies.structured_paths import PathSet


class Builder:
    """Collects the nodes and cables of a network; its methods return node and link numbers.

    >>> builder = Builder("star", {"hosts": 2})
    >>> hosts, switch = builder.nodes("host", 2), builder.nodes("switch", 1)
    >>> up = builder.cables(hosts, switch, bandwidth=1e9, latency=1e-6)
    >>> net = builder.network(("host", 2))
    >>> [net.link(int(number)).name for number in (up[1], reverse(up)[1])]
    ['host:1>switch:0', 'switch:0>host:1']
    """

    def __init__(self, family: str, arguments: Mapping[str, Argument | None]) -> None:
        self.family = family
        self.arguments = {name: value for name, value in arguments.items() if value is not None}
        self._kinds: dict[str, tuple[int, int]] = {}
        self._nodes = 0
        self._links = 0
        self._cables: list[tuple[Ints, Ints, Floats, Floats]] = []

    def nodes(self, kind: str, count: int) -> Ints:
        """Adds the nodes kind:0 … kind:(count - 1) and returns their numbers [count]; a kind can be added once."""
        assert kind not in self._kinds, kind
        self._kinds[kind] = (self._nodes, count)
        self._nodes += count
        return np.arange(self._nodes - count, self._nodes)

    def cables(self, sources: Ints, targets: Ints, *, bandwidth: float | Floats, latency: float | Floats) -> Ints:
        """Adds cables and returns the links from sources to targets [cables]; `reverse` gives the other direction.

        The arguments are broadcast against each other.

        Parameters
        ----------
        sources, targets : node numbers of the two ends of each cable
        bandwidth, latency : bandwidth [B/s] and latency [s] of each direction
        """
        tails, heads, rates, delays = np.broadcast_arrays(sources, targets, bandwidth, latency)
        tails, heads = tails.ravel().astype(np.int64), heads.ravel().astype(np.int64)
        self._cables.append((tails, heads, rates.ravel().astype(np.float64), delays.ravel().astype(np.float64)))
        first = self._links
        self._links += 2 * len(tails)
        return first + 2 * np.arange(len(tails))

    def network(
        self,
        endpoints: tuple[str, int],
        paths: PathSet | None = None,
        *,
        cores: int | Sequence[int] = 1,
        name: str | None = None,
        per_node: int = 1,
    ) -> Network:
        """The network of all nodes and cables that were added.

        Parameters
        ----------
        endpoints : kind and number of the compute endpoints
        paths : shortest paths between endpoints in closed form; None if they must be searched
        cores : number of cores of each host, or of every host
        name : name of the network; by default `family:key=value,…`
        per_node : number of compute endpoints in a node
        """
        text = ",".join(f"{key}={value}" for key, value in self.arguments.items())
        hosts = self._kinds["host"][1] if endpoints[0] == "host" else 0
        return Network(
            name=name or (f"{self.family}:{text}" if text else self.family),
            family=self.family,
            arguments=self.arguments,
            kinds=self._kinds,
            sources=self._interleaved(0, 1, np.int64),
            targets=self._interleaved(1, 0, np.int64),
            bandwidths=self._interleaved(2, 2, np.float64),
            latencies=self._interleaved(3, 3, np.float64),
            endpoints=endpoints,
            cores=np.broadcast_to(np.asarray(cores, dtype=np.int64), (hosts,)),
            paths=paths,
            per_node=per_node,
        )

    def _interleaved(self, forward: int, backward: int, dtype: type) -> NDArray:  # type: ignore[type-arg]
        """One attribute of all links; the two directions of each cable follow each other [links]."""
        column: NDArray = np.empty(self._links, dtype=dtype)  # type: ignore[type-arg]
        if self._cables:
            column[0::2] = np.concatenate([cables[forward] for cables in self._cables])
            column[1::2] = np.concatenate([cables[backward] for cables in self._cables])
        return column


def reverse(links: Ints) -> Ints:
    """The links of the opposite directions of the same cables; -1, no link, stays -1."""
    return np.where(links < 0, links, links ^ 1)
