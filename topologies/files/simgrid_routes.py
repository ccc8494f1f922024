"""Routes between two hosts of a SimGrid platform, by SimGrid's rules for zones, gateways and bypasses.

The route of two hosts is that of the innermost zone that contains both.  In this
zone the hosts, or the subzones that contain them, have a listed route (Full), the
route with the fewest links of the listed routes (Floyd, Dijkstra), or the path of
the cluster's network.  A route between subzones begins and ends at their gateways;
the route between a host and its gateway is found by the same rules inside the
subzone.  A bypass of the common zone takes precedence.

Source: SimGrid's documentation, "The SimGrid Network Models", "Bypassing
Routes"; compared with SimGrid 3.32's own routes.
"""

from itertools import pairwise, product

import networkx as nx

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.simgrid_zones import SEARCHED, NamedPath, Platform, Route, Zone


def hops_between(platform: Platform, source: str, target: str) -> NamedPath:
    """Links of the route from one host or router to another, by name.

    Raises
    ------
    InputError : no route
    """
    if source == target:
        return ()
    sources, targets = platform.zone_of[source].above, platform.zone_of[target].above
    shared = sum(1 for a, b in zip(sources, targets, strict=False) if a is b)
    zone = sources[shared - 1]
    if zone.inside is not None:
        return zone.inside.hops(source, target)
    route = _bypass(zone, source, target, sources, targets)
    if route is None:
        start = source if len(sources) == shared else sources[shared].name
        end = target if len(targets) == shared else targets[shared].name
        route = _within(platform, zone, start, end)
    before = hops_between(platform, source, route.exit) if route.exit else ()
    after = hops_between(platform, route.entry, target) if route.entry else ()
    return (*before, *route.hops, *after)


def _bypass(zone: Zone, source: str, target: str, sources: list[Zone], targets: list[Zone]) -> Route | None:
    """The bypass between two hosts, or between zones that contain them, innermost first; None if there is none.

    Parameters
    ----------
    sources, targets : zones that contain the source and the target, from the outermost
    """
    if not zone.bypasses:
        return None
    if sources[-1] is zone and targets[-1] is zone:
        return zone.bypasses.get((source, target))
    below = len(zone.above)
    ends = sources[: below - 1 : -1] or [zone], targets[: below - 1 : -1] or [zone]
    depths = sorted(product(range(len(ends[0])), range(len(ends[1]))), key=_nearness)
    bypasses = (zone.bypasses.get((ends[0][i].name, ends[1][j].name)) for i, j in depths)
    return next((route for route in bypasses if route is not None), None)


def _nearness(depths: tuple[int, int]) -> tuple[int, int, int]:
    """Sort key of pairs of zones around two hosts: by the outer zone, then by the inner zone."""
    i, j = depths
    return max(i, j), min(i, j), int(i > j)


def _within(platform: Platform, zone: Zone, source: str, target: str) -> Route:
    """The route between two points of a zone: the listed route, or the one with the fewest links over listed routes."""
    if (source, target) in zone.routes:
        return zone.routes[source, target]
    missing = InputError(f"zone {zone.name!r} has no route from {source!r} to {target!r}")
    if zone.routing not in SEARCHED:
        raise missing
    if zone.graph is None:
        zone.graph = nx.DiGraph()
        for (tail, head), route in zone.routes.items():
            zone.graph.add_edge(tail, head, links=len(route.hops), route=route)
    try:
        points = nx.dijkstra_path(zone.graph, source, target, weight="links")
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        raise missing from None
    return _chained(platform, [zone.graph.edges[pair]["route"] for pair in pairwise(points)])


def _chained(platform: Platform, routes: list[Route]) -> Route:
    """Consecutive routes as one route, with the links between their gateways inside the zones that they pass."""
    hops = list(routes[0].hops)
    for before, after in pairwise(routes):
        if before.entry and after.exit:
            hops += hops_between(platform, before.entry, after.exit)
        hops += after.hops
    return Route(tuple(hops), routes[0].exit, routes[-1].entry)
