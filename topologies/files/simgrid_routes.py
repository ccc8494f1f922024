"""Which links join two hosts of a platform: SimGrid's rules for zones, gateways and bypasses.

Two hosts meet in the innermost zone that holds both.  There they, or the zones
below it that they are in, have a route: as listed (Full), over the fewest links
of those listed (Floyd, Dijkstra), or by the cluster's own network.  A route of
zones begins at one's gateway and ends at the other's; how a host reaches its
gateway is asked again, further in.  A bypass of the common zone goes first.

Source: SimGrid's documentation, "The SimGrid Network Models", "Bypassing
Routes"; compared with SimGrid 3.32's own routes.
"""

from itertools import pairwise, product

import networkx as nx

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.simgrid_zones import SEARCHED, NamedPath, Platform, Route, Zone


def hops_between(platform: Platform, source: str, target: str) -> NamedPath:
    """Links from one host or router to another.

    Raises
    ------
    InputError : no route
    """
    if source == target:
        return ()
    one, other = platform.home[source].above, platform.home[target].above
    shared = sum(1 for a, b in zip(one, other, strict=False) if a is b)
    zone = one[shared - 1]
    if zone.inside is not None:
        return zone.inside.hops(source, target)
    route = _bypass(zone, source, target, one, other)
    if route is None:
        start = source if len(one) == shared else one[shared].name
        end = target if len(other) == shared else other[shared].name
        route = _within(platform, zone, start, end)
    before = hops_between(platform, source, route.exit) if route.exit else ()
    after = hops_between(platform, route.entry, target) if route.entry else ()
    return (*before, *route.hops, *after)


def _bypass(zone: Zone, source: str, target: str, one: list[Zone], other: list[Zone]) -> Route | None:
    """The bypass of two hosts, or of zones that they are in, the innermost first, if there is one."""
    if not zone.bypasses:
        return None
    if one[-1] is zone and other[-1] is zone:
        return zone.bypasses.get((source, target))
    below = len(zone.above)
    ends = one[: below - 1 : -1] or [zone], other[: below - 1 : -1] or [zone]
    depths = sorted(product(range(len(ends[0])), range(len(ends[1]))), key=_nearness)
    found = (zone.bypasses.get((ends[0][i].name, ends[1][j].name)) for i, j in depths)
    return next((route for route in found if route is not None), None)


def _nearness(depths: tuple[int, int]) -> tuple[int, int, int]:
    """The order in which zones around two hosts are tried: by the outer of the two, then by the inner."""
    i, j = depths
    return max(i, j), min(i, j), int(i > j)


def _within(platform: Platform, zone: Zone, source: str, target: str) -> Route:
    """The route between two points of a zone: as listed, or the fewest links over those listed."""
    if (source, target) in zone.routes:
        return zone.routes[source, target]
    missing = InputError(f"zone {zone.name!r} has no route from {source!r} to {target!r}")
    if zone.routing not in SEARCHED:
        raise missing
    if zone.graph is None:
        zone.graph = nx.DiGraph()
        for (one, other), route in zone.routes.items():
            zone.graph.add_edge(one, other, links=len(route.hops), route=route)
    try:
        points = nx.dijkstra_path(zone.graph, source, target, weight="links")
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        raise missing from None
    return _chained(platform, [zone.graph.edges[pair]["route"] for pair in pairwise(points)])


def _chained(platform: Platform, routes: list[Route]) -> Route:
    """Routes one after the other; through a zone from the gateway of the one to that of the next."""
    hops = list(routes[0].hops)
    for before, after in pairwise(routes):
        if before.entry and after.exit:
            hops += hops_between(platform, before.entry, after.exit)
        hops += after.hops
    return Route(tuple(hops), routes[0].exit, routes[-1].entry)
