"""The cases of the simulator speed study: each workload at each size, and again without some of the shortcuts.

The workloads W1 to W4 are defined in `README.md`: W1 is a ring all-reduce of all GPUs, W2 all-gathers in groups of 16,
W3 random flows, W4 training steps.  A shortcut of the simulator is folding: equivalent ranks, or equal periods, are
simulated once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quadrille.studies.simulator_speed.workloads import FlowSizes, hand_seconds, write_traffic

SIZES = (64, 256, 1024, 4096, 16_384, 65_536, 131_072)
ODD_SIZES = (100, 1000, 10_000)
FLOWS: tuple[tuple[int, FlowSizes], ...] = (
    (1000, "equal"),
    (1000, "random"),
    (10_000, "equal"),
    (10_000, "random"),
    (100_000, "equal"),
)
SLOW_NIC = ("--degrade", "gpu:7-leaf:0=0.5")
STEPS = (
    ("80b", 1024, "perlmutter", 1024, "data=8,z=32,x=4", 2.0),
    ("80b", 1024, "perlmutter", 1024, "data=32,z=2,y=4,x=4", 2.0),
    ("320b", 32_768, "frontier", 8192, "data=32,z=64,y=2,x=8", 5.0),
    ("320b", 32_768, "frontier", 8192, "data=64,z=64,x=8", 5.0),
    ("320b", 32_256, "frontier", 8064, "data=42,z=64,y=3,x=4", 30.0),
)
"""Training steps of W4: model, number of GPUs, machine, batch, grid, and the largest accepted wall time [s]."""
SWITCHES = ("", "--no-fold", "--no-fold-time", "--no-fold --no-fold-time", "--no-memory", "--no-local")
FLOOR_SECONDS = {
    ("W1", 1024, ""): 0.1,
    ("W1", 1024, "--no-fold --no-fold-time"): 2.0,
    ("W1", 16_384, ""): 0.3,
    ("W2", 16_384, ""): 0.3,
    ("W1", 131_072, ""): 2.0,
    ("W2", 131_072, ""): 2.0,
    ("W1, a slow NIC", 10_000, ""): 10.0,
    ("W3 equal", 10_000, ""): 0.2,
    ("W3 random", 10_000, ""): 2.5,
    ("W3 equal", 100_000, ""): 5.0,
}
"""Largest accepted wall time by workload, size and switches [s]; those of W4 are in `STEPS`."""


@dataclass(frozen=True, slots=True)
class SpeedCase:
    """One command of `quadrille` to time.

    Parameters
    ----------
    workload : name of the workload
    size : number of GPUs; of flows for W3
    switches : flags that switch shortcuts of the simulator off
    arguments : arguments of `quadrille`, without `--json`
    by_hand : simulated time by a formula [s]; None if there is none
    whole : whether the wall time is that of the whole process, imports included
    floor : largest accepted wall time [s]; None: that of `FLOOR_SECONDS`
    """

    workload: str
    size: int
    switches: str
    arguments: tuple[str, ...]
    by_hand: float | None = None
    whole: bool = False
    floor: float | None = None


def cases(folder: Path, *, quick: bool = False) -> Iterator[SpeedCase]:
    """All cases by workload and switches, from small to large.

    Parameters
    ----------
    folder : folder of the files of W3's flows
    quick : whether to leave out sizes above 16,384, switches, and the larger cases of W3 and W4
    """
    sizes = [size for size in SIZES if not quick or size <= 16_384]
    for workload in ("W1", "W2"):
        for switches in SWITCHES[:1] if quick else SWITCHES:
            for size in sizes:
                arguments = (*_collective(workload, size), *switches.split())
                yield SpeedCase(workload, size, switches, arguments, hand_seconds(workload, size))
    for size in ODD_SIZES:
        yield SpeedCase("W1, odd sizes", size, "", _collective("W1", size), hand_seconds("W1", size))
    for size in ODD_SIZES:
        yield SpeedCase("W1, a slow NIC", size, "", (*_collective("W1", size), *SLOW_NIC))
    for flows, sizes_of_flows in FLOWS[:4] if quick else FLOWS:
        path = folder / f"{flows}_{sizes_of_flows}.csv"
        write_traffic(path, flows, sizes_of_flows)
        arguments = ("flows", str(path), "--machine", "bench-2to1", "--gpus", "1024")
        yield SpeedCase(f"W3 {sizes_of_flows}", flows, "", arguments)
    for model, gpus, machine, batch, grid, floor in STEPS[:1] if quick else STEPS:
        arguments = ("simulate", "--gpt", model, "--batch", str(batch), "--gpus", str(gpus), "--machine", machine)
        arguments += ("--grid", grid, "--overlap", "oar,ors,oag", "--recompute", "full")
        yield SpeedCase(f"W4, {model} on {grid}", gpus, "", arguments, whole=True, floor=floor)


def _collective(workload: str, size: int) -> tuple[str, ...]:
    """The arguments of `quadrille` for W1 or W2 on `size` GPUs."""
    if workload == "W1":
        return ("collective", "all-reduce", "--bytes", "1GiB", "--gpus", str(size), "--machine", "bench-1to1")
    groups = ("--group", "16", "--stride", str(size // 16), "--concurrent", "all")
    return ("collective", "all-gather", "--bytes", "1GiB", "--gpus", str(size), *groups, "--machine", "bench-2to1")
