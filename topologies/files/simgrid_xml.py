"""SimGrid's platform files, version 4 and 4.1: a cluster, or zones with their routes.

A platform with one cluster and nothing else becomes the network of that family,
with its structure; else hosts, links, clusters and routes are taken as they are
listed.
Inside a cluster the routing is ours: it may take another of several equally
short paths than SimGrid does.  Speeds of hosts are passed over: how fast they compute is said by the machine
file.  What is not supported is refused by name and line.

Source: SimGrid's documentation, "Platform Description" and "Describing
Virtual Platforms: XML Reference", simgrid.org.
"""

from pathlib import Path

from quadrille.topologies.files.simgrid_clusters import cluster
from quadrille.topologies.files.simgrid_network import listed_network
from quadrille.topologies.files.simgrid_zones import IGNORED, Platform
from quadrille.topologies.files.xml_elements import Element, elements
from quadrille.topologies.network import Network

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
    alone = _only_cluster(root)
    if alone is not None:
        return cluster(alone)
    if len(found) != 1 or found[0].tag not in ("zone", "AS"):
        raise root.error("a platform must hold one <zone>, in which all else is")
    platform = Platform()
    platform.read(found[0])
    return listed_network(platform, path, Path(path).stem)


def _only_cluster(element: Element) -> Element | None:
    """The cluster that is all there is in the element, perhaps inside zones."""
    found = [child for child in element.children if child.tag not in IGNORED]
    if len(found) != 1:
        return None
    if found[0].tag == "cluster":
        return found[0]
    return _only_cluster(found[0]) if found[0].tag in ("zone", "AS") else None
