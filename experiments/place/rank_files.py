"""Files that give ranks to nodes: rankfiles and hostfiles of MPI, SLURM_HOSTFILE, and Quadrille's own placement."""

from collections.abc import Callable, Sequence

from quadrille.topologies.network import Ints, Network


def rankfile(net: Network, of_rank: Ints) -> str:
    """A rankfile of Open MPI: node and slot of each rank."""
    seen: dict[int, int] = {}
    lines = []
    for rank, node in enumerate((of_rank // net.per_node).tolist()):
        slot = seen[node] = seen.get(node, -1) + 1
        lines.append(f"rank {rank}={net.node_names[node]} slot={slot}")
    return _text(lines)


def hostfile(net: Network, of_rank: Ints) -> str:
    """A hostfile of MPI: the nodes in the order of their first ranks, each with its number of ranks."""
    counts: dict[int, int] = {}
    for node in (of_rank // net.per_node).tolist():
        counts[node] = counts.get(node, 0) + 1
    return _text([f"{net.node_names[node]} slots={count}" for node, count in counts.items()])


def slurm_hostfile(net: Network, of_rank: Ints) -> str:
    """A SLURM_HOSTFILE for `srun --distribution=arbitrary`: the node of each task."""
    return _text([net.node_names[node] for node in (of_rank // net.per_node).tolist()])


def placement_file(net: Network, of_rank: Ints) -> str:
    """A file for `--placement`: the GPU or host of each rank."""
    return _text([f"{net.endpoints[0]}:{endpoint}" for endpoint in of_rank.tolist()])


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


FORMS: dict[str, Callable[[Network, Ints], str]] = {
    "rankfile": rankfile,
    "hostfile": hostfile,
    "slurm": slurm_hostfile,
    "placement": placement_file,
}
"""The writer of each form of file."""
