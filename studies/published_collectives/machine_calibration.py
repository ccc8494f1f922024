"""The calibration of published machines: the named machine of each, and four parameters from at most three of its rows.

The model of NCCL and the links do not contain the time before the first byte (launch from a framework), the latency
that a machine's network adds to each hop, and the share of the links' bandwidth that its software reaches (GPUDirect,
switches, drivers).  These parameters are fitted to rows that a rule chooses from the project's own copy of the data.
The chosen rows are never judged:

    between   share of the bandwidth between nodes: the largest message on the most GPUs, if they are on several nodes
    network   latency of a hop: the message nearest to 1 MiB on the most GPUs, if they are on several nodes
    launch    time before the first byte: the smallest message on the fewest GPUs
    inside    share of the bandwidth inside a node: the largest message on the most GPUs, if all rows are on one node

Only all-reduces by NCCL or RCCL whose algorithm was not forced are chosen.  All parameters except `between` are fitted
only if at least eight measurements remain to be judged; a parameter that is not fitted is neutral.  Therefore a machine
with one row across nodes is never judged.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log2

from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.studies.published_collectives.collective_rows import LARGEST_ROUNDING, SCALES, CollectiveRow
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
MACHINES_BY_WORD = (
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
"""Named machines by a part of the published name (lower case) and the beginning of the GPU's name."""
NODE_OF_GPU = {
    "A100": "selene",
    "H100": "h100-node",
    "H200": "h200-node",
    "B200": "b200-node",
    "MI300X": "mi300x-node",
}
"""The named machine that stands for one node of any other machine with these GPUs: eight GPUs behind NVSwitches, or
AMD's platform of eight MI300X."""

CALIBRATION_ROWS = 3
"""Most rows of a machine that set its parameters."""
LEFT_AT_LEAST = 8
"""Number of measurements that must remain to be judged if more than `between` is fitted."""
BORDER_BYTES = 1 << 20
"""Message size above which bandwidth dominates the time, and below which latency does [bytes]."""
ROUNDS = 3
"""Number of rounds of the fit, because the parameters depend a little on each other."""
PRECISION = 1e-3
SHARES = (1e-3, 2.0)
LATENCIES = (1e-9, 1e-2)
"""Bounds of the bisections for shares and for the latency of a hop [s]."""


@dataclass(frozen=True, slots=True)
class CollectiveCalibration:
    """The calibration of a machine.

    Parameters
    ----------
    machine : name of the machine
    settings : fitted settings of NCCL's model
    used_rows : fitted parameters, each with its row
    """

    machine: str
    settings: NcclSettings = field(default_factory=NcclSettings)
    used_rows: tuple[tuple[str, CollectiveRow], ...] = ()


def machine_of(row: CollectiveRow) -> str | None:
    """The name of the named machine that a row's machine is; None if it is unknown."""
    if row.machine in NAMES:
        return NAMES[row.machine]
    lower = row.machine.lower()
    if lower in MACHINES:
        return lower
    gpu_type = row.gpu_type.upper()
    for word, gpu, name in MACHINES_BY_WORD:
        if word in lower and gpu_type.startswith(gpu):
            return name
    for gpu, name in NODE_OF_GPU.items():
        if gpu_type.startswith(gpu) and "PCI" not in gpu_type and row.gpus <= MACHINES[name].gpus_per_node:
            return name
    return None


def calibration_rows(rows: Iterable[CollectiveRow]) -> dict[str, list[tuple[str, CollectiveRow]]]:
    """The calibration rows of each known machine, by the module's rule: pairs of a parameter and its row."""
    by_machine: dict[str, dict[tuple[str, ...], CollectiveRow]] = defaultdict(dict)
    for row in rows:
        name = machine_of(row)
        if (
            name is None
            or row.collective != "all_reduce"
            or row.library not in ("NCCL", "RCCL")
            or row.forced_algorithm
        ):
            continue
        if row.rounding > LARGEST_ROUNDING or row.bytes is None or (row.metric, row.unit) not in SCALES:
            continue
        best = by_machine[name].get(row.measurement_key)
        if best is None or row.rounding < best.rounding:
            by_machine[name][row.measurement_key] = row
    return {
        name: _choose_rows(list(measurements.values()), MACHINES[name].gpus_per_node)
        for name, measurements in by_machine.items()
    }


def _choose_rows(rows: Sequence[CollectiveRow], per_node: int) -> list[tuple[str, CollectiveRow]]:
    """The calibration rows of one machine with their parameters, by the module's rule."""
    apart = [row for row in rows if row.gpus > per_node]
    chosen: list[tuple[str, CollectiveRow]] = []
    if apart:
        chosen.append(("between", max(apart, key=lambda row: (row.gpus, row.size))))
    if len(rows) - CALIBRATION_ROWS < LEFT_AT_LEAST:
        return chosen
    if apart:
        border = min(apart, key=lambda row: (-row.gpus, abs(log2(row.size / BORDER_BYTES))))
        chosen.append(("network", border))
    else:
        chosen.append(("inside", max(rows, key=lambda row: (row.gpus, row.size))))
    chosen.append(("launch", min(rows, key=lambda row: (row.gpus, row.size))))
    return list({row.id: (parameter, row) for parameter, row in chosen}.values())


def calibrate(
    name: str, chosen: Sequence[tuple[str, CollectiveRow]], seconds: Callable[[CollectiveRow, NcclSettings], float]
) -> CollectiveCalibration:
    """Fit the parameters of a machine to its calibration rows.

    With several rows, the use of the protocol LL128 is fitted too: NCCL uses it unless the rows fit better without.

    Parameters
    ----------
    name : name of the machine
    chosen : pairs of a parameter and its row
    seconds : function that returns the predicted time of a row with given settings [s]
    """
    sites = [_fit_all(name, chosen, seconds, ll128=ll128) for ll128 in ((True, False) if len(chosen) > 1 else (True,))]
    return min(sites, key=lambda site: round(_largest_error(site, seconds), 3))


def _largest_error(site: CollectiveCalibration, seconds: Callable[[CollectiveRow, NcclSettings], float]) -> float:
    """The largest error of a calibration row, as |log2(predicted / published)|."""
    rows = [row for _, row in site.used_rows]
    return max((abs(log2(seconds(row, site.settings) / published_seconds(row))) for row in rows), default=0.0)


def _fit_all(
    name: str,
    chosen: Sequence[tuple[str, CollectiveRow]],
    seconds: Callable[[CollectiveRow, NcclSettings], float],
    *,
    ll128: bool,
) -> CollectiveCalibration:
    """The fit of the parameters of the chosen rows, with or without LL128."""
    settings = NcclSettings(ll128=ll128)
    rows = dict(chosen)
    for _ in range(ROUNDS):
        if "launch" in rows:
            bare = seconds(rows["launch"], replace(settings, launch_seconds=0.0))
            settings = replace(settings, launch_seconds=max(0.0, published_seconds(rows["launch"]) - bare))
        for share in ("inside", "between"):
            if share in rows:
                settings = _fit(share, SHARES, rows[share], settings, seconds, less=True)
        if "network" in rows:
            settings = _fit("network", LATENCIES, rows["network"], settings, seconds, less=False)
    return CollectiveCalibration(name, settings, tuple(chosen))


def _fit(
    parameter: str,
    bounds: tuple[float, float],
    row: CollectiveRow,
    settings: NcclSettings,
    seconds: Callable[[CollectiveRow, NcclSettings], float],
    *,
    less: bool,
) -> NcclSettings:
    """The settings with which the predicted time of a row is its published time, by bisection of one parameter.

    Parameters
    ----------
    parameter : name of the parameter that the bisection changes
    bounds : bounds of the parameter
    row : row to fit
    settings : settings that contain the other parameters
    seconds : function that returns the predicted time of a row with given settings [s]
    less : whether a larger parameter makes the predicted time shorter
    """
    low, high = bounds
    published = published_seconds(row)
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        if (seconds(row, _with(settings, parameter, middle)) > published) == less:
            low = middle
        else:
            high = middle
    return _with(settings, parameter, 0.0 if parameter == "network" and low == bounds[0] else high)


def _with(settings: NcclSettings, parameter: str, value: float) -> NcclSettings:
    """The settings with another value of one parameter."""
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
    """The published time of a row [s], from its time or its bandwidth by the formulas of nccl-tests."""
    from quadrille.experiments.network.bus_bandwidth import bus_factor

    metric, scale = SCALES[row.metric, row.unit]
    if metric == "time":
        return row.value * scale
    kind = row.collective
    assert kind is not None, row.id
    return row.size * (bus_factor(kind, row.gpus) if metric == "busbw" else 1.0) / (row.value * scale)
