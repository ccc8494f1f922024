"""Which machine of ours a published machine is, and what is learnt about it from at most three of its rows.

NCCL's model and the links say how a collective goes; what they cannot know of a
site is what passes before the first byte (launching from a framework), what its
network adds to each hop, and how much of the links its software reaches
(GPUDirect or not, switches, drivers).  Rows to learn this from are chosen by
rule, from the project's own copy of the data, and never judged:

    between   the largest message of the most GPUs, where they are on several nodes
    network   the message nearest to 1 MiB of the most GPUs, where they are on several nodes
    launch    the smallest message of the fewest GPUs
    inside    the largest message of the most GPUs, where all rows are of one node

of the all-reduces by NCCL (or RCCL) in which nothing is held.  All but `between`
are learnt only where at least eight measurements are left to be judged; what is
not learnt is neutral.  A site with one row across nodes is thus never judged.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log2

from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.studies.published_collectives.rows import SCALES, TOO_ROUNDED, CollectiveRow
from quadrille.topologies.machines.machine_catalogue import MACHINES

NAMES = {
    "ABCI 2.0 Compute Node (A)": "abci-a100",
    "ABCI 2.0 Compute Node (V)": "abci-v100",
    "AWS p4d.24xlarge": "aws-p4d",
    "AWS p6-b200.48xlarge": "aws-p6-b200",
    "IDRIS Jean Zay gpu_p13": "jean-zay-v100",
    "IDRIS Jean Zay gpu_p5": "jean-zay-a100",
    "8x H200 node": "h200-node",
    "8x H200-SXM node": "h200-node",
    "8x B200 node": "b200-node",
    "8x MI300X node": "mi300x-node",
    "H100 NVSwitch node": "h100-node",
    "H100 node": "h100-node",
    "4 nodes x 8 GPUs (GPU not printed)": "unnamed-4x8",
}
BY_WORD = (
    ("selene", "", "selene"),
    ("perlmutter", "", "perlmutter"),
    ("frontier", "", "frontier"),
    ("alps", "", "alps"),
    ("longhorn", "", "longhorn"),
    ("summit", "", "summit"),
    ("jean zay", "V100", "jean-zay-v100"),
    ("jean zay", "A100", "jean-zay-a100"),
    ("abci", "V100", "abci-v100"),
    ("abci", "A100", "abci-a100"),
    ("p4d.24xlarge", "", "aws-p4d"),
    ("p6-b200", "", "aws-p6-b200"),
    ("dgx a100", "", "selene"),
    ("dgx h100", "", "h100-superpod"),
)
"""Machines that are told by a word of their name and the beginning of their GPUs'."""
NODE_OF_GPU = {
    "A100": "selene",
    "H100": "h100-node",
    "H200": "h200-node",
    "B200": "b200-node",
    "MI300X": "mi300x-node",
}
"""For one node of a machine that is not known otherwise: eight GPUs behind NVSwitches, or MI300X as AMD joins them."""

MOST_LEARNT = 3
LEFT_AT_LEAST = 8
"""Measurements that must be left to be judged, where more than `between` is learnt."""
BORDER_BYTES = 1 << 20
"""Below it latency counts most, above it bandwidth."""
ROUNDS = 3
"""Each depends a little on the others."""
PRECISION = 1e-3
SHARES = (1e-3, 2.0)
LATENCIES = (1e-9, 1e-2)
"""Where shares and the latency of a hop [s] are looked for."""


@dataclass(frozen=True, slots=True)
class LearntCollectives:
    """A machine of the rows: ours that it is, what was learnt, and from which rows, by what they set."""

    machine: str
    settings: NcclSettings = field(default_factory=NcclSettings)
    learnt_from: tuple[tuple[str, CollectiveRow], ...] = ()


def machine_of(row: CollectiveRow) -> str | None:
    """The name of our machine; None where it is not known."""
    if row.machine in NAMES:
        return NAMES[row.machine]
    lower = row.machine.lower()
    if lower in MACHINES:
        return lower
    gpu_type = row.gpu_type.upper()
    for word, gpu, name in BY_WORD:
        if word in lower and gpu_type.startswith(gpu):
            return name
    for gpu, name in NODE_OF_GPU.items():
        if gpu_type.startswith(gpu) and "PCI" not in gpu_type and row.gpus <= MACHINES[name].gpus_per_node:
            return name
    return None


def calibration_rows(rows: Iterable[CollectiveRow]) -> dict[str, list[tuple[str, CollectiveRow]]]:
    """For each known machine, the calibration rows and the parameter that each row sets, by the rule above."""
    by_machine: dict[str, dict[tuple[str, ...], CollectiveRow]] = defaultdict(dict)
    for row in rows:
        name = machine_of(row)
        if name is None or row.collective != "all_reduce" or row.carrier not in ("NCCL", "RCCL") or row.held:
            continue
        if row.rounding > TOO_ROUNDED or row.bytes is None or (row.metric, row.unit) not in SCALES:
            continue
        best = by_machine[name].get(row.measurement)
        if best is None or row.rounding < best.rounding:
            by_machine[name][row.measurement] = row
    return {
        name: _chosen(list(measurements.values()), MACHINES[name].gpus_per_node)
        for name, measurements in by_machine.items()
    }


def _chosen(rows: Sequence[CollectiveRow], per_node: int) -> list[tuple[str, CollectiveRow]]:
    apart = [row for row in rows if row.gpus > per_node]
    chosen: list[tuple[str, CollectiveRow]] = []
    if apart:
        chosen.append(("between", max(apart, key=lambda row: (row.gpus, row.size))))
    if len(rows) - MOST_LEARNT < LEFT_AT_LEAST:
        return chosen
    if apart:
        border = min(apart, key=lambda row: (-row.gpus, abs(log2(row.size / BORDER_BYTES))))
        chosen.append(("network", border))
    else:
        chosen.append(("inside", max(rows, key=lambda row: (row.gpus, row.size))))
    chosen.append(("launch", min(rows, key=lambda row: (row.gpus, row.size))))
    return list({row.id: (parameter, row) for parameter, row in chosen}.values())


def learn(
    name: str, chosen: Sequence[tuple[str, CollectiveRow]], seconds: Callable[[CollectiveRow, NcclSettings], float]
) -> LearntCollectives:
    """The site whose settings come nearest to the seconds of the chosen rows.

    Where there are several rows, whether NCCL takes LL128 there is learnt too:
    it does unless the rows are met better without.

    Parameters
    ----------
    seconds : what is predicted for a row under some settings [s]
    """
    sites = [_learnt(name, chosen, seconds, ll128=ll128) for ll128 in ((True, False) if len(chosen) > 1 else (True,))]
    return min(sites, key=lambda site: round(_missed(site, seconds), 3))


def _missed(site: LearntCollectives, seconds: Callable[[CollectiveRow, NcclSettings], float]) -> float:
    """By how much the worst of the rows that a site was learnt from is missed, as a logarithm."""
    rows = [row for _, row in site.learnt_from]
    return max((abs(log2(seconds(row, site.settings) / published_seconds(row))) for row in rows), default=0.0)


def _learnt(
    name: str,
    chosen: Sequence[tuple[str, CollectiveRow]],
    seconds: Callable[[CollectiveRow, NcclSettings], float],
    *,
    ll128: bool,
) -> LearntCollectives:
    settings = NcclSettings(ll128=ll128)
    rows = dict(chosen)
    for _ in range(ROUNDS):
        if "launch" in rows:
            bare = seconds(rows["launch"], replace(settings, launch_seconds=0.0))
            settings = replace(settings, launch_seconds=max(0.0, published_seconds(rows["launch"]) - bare))
        for share in ("inside", "between"):
            if share in rows:
                settings = _fitted(share, SHARES, rows[share], settings, seconds, less=True)
        if "network" in rows:
            settings = _fitted("network", LATENCIES, rows["network"], settings, seconds, less=False)
    return LearntCollectives(name, settings, tuple(chosen))


def _fitted(
    parameter: str,
    bounds: tuple[float, float],
    row: CollectiveRow,
    settings: NcclSettings,
    seconds: Callable[[CollectiveRow, NcclSettings], float],
    *,
    less: bool,
) -> NcclSettings:
    """The settings with which the row takes its published time; a bisection finds the parameter.

    Parameters
    ----------
    parameter : name of the setting that the bisection changes
    less : whether a larger value takes less time
    """
    low, high = bounds
    wanted = published_seconds(row)
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        if (seconds(row, _with(settings, parameter, middle)) > wanted) == less:
            low = middle
        else:
            high = middle
    return _with(settings, parameter, 0.0 if parameter == "network" and low == bounds[0] else high)


def _with(settings: NcclSettings, parameter: str, value: float) -> NcclSettings:
    match parameter:
        case "inside":
            return replace(settings, inside=value)
        case "between":
            return replace(settings, between=value)
        case "network":
            return replace(settings, network_latency=value)
        case _:
            raise AssertionError(parameter)


def published_seconds(row: CollectiveRow) -> float:
    """The row's value as a time [s]."""
    from quadrille.experiments.network.bandwidths import bus_factor

    metric, scale = SCALES[row.metric, row.unit]
    if metric == "time":
        return row.value * scale
    kind = row.collective
    assert kind is not None, row.id
    return row.size * (bus_factor(kind, row.gpus) if metric == "busbw" else 1.0) / (row.value * scale)
