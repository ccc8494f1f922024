"""SimGrid's platform files, version 4 and 4.1: a cluster, or zones with their routes.

A platform with one cluster and nothing else becomes the network of that family,
with its structure; else hosts, links and routes are taken as they are listed.
Speeds of hosts are passed over: how fast they compute is said by the machine
file.  What is not supported is refused by name and line.

Source: SimGrid's documentation, "Platform Description" and "Describing
Virtual Platforms: XML Reference", simgrid.org.
"""

from collections.abc import Iterator
from pathlib import Path

from topologies.files.simgrid_clusters import cluster
from topologies.files.simgrid_zones import IGNORED, Platform, listed_network
from topologies.files.xml_elements import Element, elements
from topologies.network import Network

VERSIONS = ("4", "4.1")


def parse(text: str, path: str) -> Network:
    """The network of a platform; `path` is for messages.

    Raises
    ------
    InputError : not such a platform; the message has the line and the reason
    """
    root = elements(text, path)
    if root.tag != "platform":
        raise root.error(f"<{root.tag}> is not <platform>")
    root.check_attributes("version")
    if root.needed("version") not in VERSIONS:
        raise root.error(f"version={root.attributes['version']!r} of the platform; supported are {', '.join(VERSIONS)}")
    found = [child for child in root.children if child.tag not in IGNORED]
    clusters = list(_clusters(root))
    if len(clusters) == 1 and _holds_only(root, clusters[0]):
        return cluster(clusters[0])
    if clusters:
        raise clusters[0].error(
            "<cluster> is supported where it is all there is; describe the others by zones of hosts"
        )
    if len(found) != 1 or found[0].tag not in ("zone", "AS"):
        raise root.error("a platform must hold one <zone>, in which all else is")
    platform = Platform()
    platform.read(found[0])
    return listed_network(platform, path, Path(path).stem)


def _clusters(element: Element) -> Iterator[Element]:
    for child in element.children:
        if child.tag == "cluster":
            yield child
        yield from _clusters(child)


def _holds_only(element: Element, cluster: Element) -> bool:
    """Whether the element holds the cluster, perhaps inside zones, and nothing else."""
    found = [child for child in element.children if child.tag not in IGNORED]
    if len(found) != 1:
        return False
    return found[0] is cluster or (found[0].tag in ("zone", "AS") and _holds_only(found[0], cluster))
