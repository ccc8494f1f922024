"""Times of NCCL's collectives inside a node, from the measured collectives of the node's GPUs.

The links say which bytes go where; a table (`topologies/nodes/collective_tables.py`) says how long this takes.  A table
is used if all groups are inside nodes with an NVSwitch, NCCL chooses the algorithm itself, and as many GPUs were
measured.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.layout import NcclSettings, switch_links
from quadrille.simulator.collectives.programs import Ints
from quadrille.simulator.collectives.run import Causes
from quadrille.topologies.gpu_kind import node_kind_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """The time of a collective by a table.

    Parameters
    ----------
    table : name of the table
    seconds : time of the collective [s]
    on_links : part of it that the rate of the links explains [s]
    extrapolated : whether no collective as large or as small was measured
    """

    table: str
    seconds: float
    on_links: float
    extrapolated: bool

    @property
    def why(self) -> str:
        """The source of the time, in words."""
        return f"; time of measured collectives ({self.table}{', extrapolated' if self.extrapolated else ''})"


def measured_time(
    kind: CollectiveKind,
    size_bytes: float,
    endpoints: Ints,
    machine: Machine,
    net: Network,
    settings: NcclSettings,
    *,
    wide: bool = False,
) -> MeasuredTime | None:
    """The measured time of a collective of groups inside nodes; None if the table of the node does not hold it.

    Parameters
    ----------
    endpoints : endpoints of the members of each group [groups, members]
    wide : whether the elements are known to have 2 bytes or more
    """
    if not settings.measured or settings.planned is not None or "nvswitch" not in net.kinds:
        return None
    from quadrille.topologies.nodes.collective_tables import (  # only nodes with NVSwitches have tables
        NO_TABLE,
        collective_bound,
        collective_table,
        collective_table_of,
    )

    nodes = endpoints // net.per_node
    if not (nodes == nodes[:, :1]).all():
        return None
    named = machine.device.collective_table
    name = named or collective_table_of(node_kind_of(machine))
    if name in ("", NO_TABLE):
        return None
    rate = _slowest_link(endpoints, net) * settings.inside
    members = endpoints.shape[1]
    estimate = collective_table(name).seconds(kind, members, size_bytes, rate, wide=wide) if rate > 0 else None
    if estimate is None:
        return None
    seconds, extrapolated = estimate
    on_links = collective_bound(kind, members, size_bytes, rate) - collective_bound(kind, members, 0, rate)
    return MeasuredTime(name, seconds, min(seconds, on_links), extrapolated)


def _slowest_link(endpoints: Ints, net: Network) -> float:
    """The least bandwidth between a member and its NVSwitch, either way [B/s]; 0 if a link has failed."""
    links = np.concatenate([way[endpoints.ravel()] for way in switch_links(net)])
    return 0.0 if (links < 0).any() or net.failed[links].any() else float(net.bandwidths[links].min())


def with_time(result: CollectiveResult, time: MeasuredTime) -> CollectiveResult:
    """The result with its time replaced; links are in use for the same share of it as simulated, at most all of it."""
    factor = time.seconds / result.seconds if result.seconds else 1.0
    causes = Causes.together(time.on_links, 0.0) if result.causes is not None else None
    return replace(
        result,
        seconds=time.seconds,
        ends=np.full_like(result.ends, time.seconds),
        busy_seconds=result.busy_seconds * factor,
        error_seconds=0.0,
        causes=causes,
    )
