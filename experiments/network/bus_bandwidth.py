"""The bus bandwidth of a collective, as nccl-tests defines it.

The algorithm bandwidth is the size of the buffer / time.  The bus bandwidth is the rate
of a link if the algorithm sends no byte twice; it can be compared with the links.

Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md.
"""

from quadrille.algorithms.schedule.ops import CollectiveKind


def bus_factor(kind: CollectiveKind, members: int) -> float:
    """Bus bandwidth / algorithm bandwidth of a collective.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    match kind:
        case "all_reduce":
            return 2 * (members - 1) / members
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (members - 1) / members
        case "broadcast" | "reduce" | "send_receive" | "barrier":
            return 1.0


def bus_formula(kind: CollectiveKind) -> str:
    """The formula of the bus bandwidth of a group of g ranks, as text."""
    match kind:
        case "all_reduce":
            return "bytes / seconds x 2 (g - 1) / g"
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return "bytes / seconds x (g - 1) / g"
        case "broadcast" | "reduce" | "send_receive" | "barrier":
            return "bytes / seconds"
