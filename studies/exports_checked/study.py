"""`python -m quadrille.studies.exports_checked.study`: predicted times of exported files, in SimGrid and by `replay`.

A schedule goes out as GOAL and a network as SimGrid XML.  SimGrid follows the tasks of the GOAL file on the platform;
our simulator reads the same two files.  The schedules are collectives, products and a training step; the networks are
one switch, a fat tree, a torus and a dragonfly.
"""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import msgspec

from quadrille.algorithms.analysis.graph_steps import with_steps
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.goal import goal_text, parse_goal
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph
from quadrille.algorithms.formats.schema_files import write_json
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.experiments.output.tables import duration, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.machine.network import network_of
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.graph_simulation import simulate_graph
from quadrille.simulator.ranks.schedule_graph import message_graph
from quadrille.studies.exports_checked.simgrid_replay import compile_follower, simgrid_finish
from quadrille.topologies.files.exported import exported_text
from quadrille.topologies.find_machine import find_machine_or_topology
from quadrille.topologies.machines.machine import Device, Machine
from quadrille.topologies.network import Network

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = "quadrille/exports-checked/1"
RATES = "bandwidth=12.5e9,latency=1e-6"
STAR, STAR_64 = f"star:hosts=8,{RATES}", f"star:hosts=64,{RATES}"
TREE, TREE_64 = f"fat-tree:ports=4,{RATES}", f"fat-tree:ports=8,{RATES}"
TORUS = f"torus:dims=4x2,{RATES}"
DRAGONFLY = f"dragonfly:groups=3,routers=2,hosts_per_router=2,global_links=1,{RATES}"
DEVICE = Device(
    peak_flops_per_second={"float32": 1e13}, memory_bytes_per_second=1e12, memory_bytes=16e9, overhead_seconds=5e-6
)
"""A device of round numbers, from which the seconds of calculations in the files follow."""


class CheckedCase(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one schedule on one network.

    Parameters
    ----------
    tasks : calculations, sends and receives of all ranks
    simgrid_s, replay_s : end of the last rank [s]
    largest_difference : largest relative difference of the ends of a rank
    largest_with_weights : the same if messages share links as in SimGrid, in proportion to 1 / latency
    """

    schedule: str
    network: str
    ranks: int
    tasks: int
    simgrid_s: float
    replay_s: float
    largest_difference: float
    largest_with_weights: float

    @property
    def difference(self) -> float:
        """Relative difference of the end of the last rank."""
        return self.replay_s / self.simgrid_s - 1


class CheckedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study."""

    cases: tuple[CheckedCase, ...]
    provenance: Provenance


def main() -> None:
    """Run the study, and write the answer to `results/` under today's date."""
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        program = compile_follower(Path(name))
        rows = [
            checked_case(program, schedule, graph, network, Path(name))
            for schedule, graph, networks in schedules()
            for network in networks
        ]
    answer = CheckedAnswer(cases=tuple(rows), provenance=provenance(["exports_checked/study.py"]))
    write_json(RESULTS / f"{date.today()}.json", answer, SCHEMA)
    print_checked(answer)


def schedules() -> Iterator[tuple[str, MessageGraph, tuple[str, ...]]]:
    """Yields the name and the graph of each schedule, and the networks on which it runs."""
    small = (STAR, TREE, TORUS, DRAGONFLY)
    yield "ring all-reduce of 64 MiB, 8 ranks", collective_graph("all_reduce", 8, 1 << 26), small
    yield "all-to-all of 64 MiB, 8 ranks", collective_graph("all_to_all", 8, 1 << 26), small
    product = Matmul(4096, 4096, 4096, passes="training")
    yield "4d product of 4096, 8 ranks", schedule_graph(matmul_schedule(product, "4d", Grid(z=2, y=2, x=2))), small
    large = schedule_graph(matmul_schedule(product, "4d", Grid(z=4, y=4, x=4)))
    yield "4d product of 4096, 64 ranks", large, (STAR_64, TREE_64)
    step = Gpt(4, 256, 8, 32, 512, 8)
    pipeline = schedule_graph(gpt_schedule(step, Grid(pipeline=2, data=2, x=2), Scheme4D()))
    yield "training step, pipeline=2,data=2,x=2", pipeline, small


def collective_graph(kind: CollectiveKind, ranks: int, size: int) -> MessageGraph:
    """A collective of all ranks as messages."""
    task = GraphTask("collective", float(size), collective=kind, group=tuple(range(ranks)))
    return with_steps(MessageGraph(tuple([task] for _ in range(ranks))), Choices(), kind)


def schedule_graph(schedule: Schedule) -> MessageGraph:
    """A schedule on devices of round numbers as messages and calculations."""
    topology = find_machine_or_topology(f"star:hosts={schedule.grid.size},{RATES}").topology
    machine = Machine(name="star", topology=topology, device=DEVICE)
    placement = place_ranks(machine, schedule.grid.size, "packed", schedule.grid)
    return message_graph(schedule, machine, Choices(), placement)


def checked_case(program: Path, schedule: str, graph: MessageGraph, network: str, folder: Path) -> CheckedCase:
    """A graph on a network, through their files, in SimGrid and in our simulator.

    Parameters
    ----------
    program : compiled follower
    folder : folder for the files
    """
    read = parse_goal(goal_text(graph.ranks), "job.goal")
    net = network_of(find_machine_or_topology(network))
    platform = folder / "platform.xml"
    schema_files.write_text(platform, exported_text(net, str(platform)))
    theirs = simgrid_finish(program, read, host_names(net), platform, folder)
    machine = find_machine_or_topology(str(platform))
    ours = simulate_graph(read, machine).finish
    weighted = simulate_graph(read, machine, latency_weights=True).finish
    return CheckedCase(
        schedule=schedule,
        network=network.partition(":")[0],
        ranks=len(read.ranks),
        tasks=sum(map(len, read.ranks)),
        simgrid_s=max(theirs),
        replay_s=max(ours),
        largest_difference=_largest_difference(ours, theirs),
        largest_with_weights=_largest_difference(weighted, theirs),
    )


def _largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(end / simgrid_end - 1) for end, simgrid_end in zip(ours, theirs, strict=True))


def host_names(net: Network) -> list[str]:
    """Names of the endpoints in a SimGrid file."""
    return list(net.host_names) or [net.node_name(node) for node in net.endpoint_nodes().tolist()]


def print_checked(answer: CheckedAnswer) -> None:
    """Print the times of all cases."""
    columns = ("schedule", "network", "tasks", "SimGrid", "replay", "differs by", "largest of a rank", "with weights")
    rows = [
        (
            case.schedule,
            case.network,
            f"{case.tasks:,}",
            duration(case.simgrid_s),
            duration(case.replay_s),
            f"{case.difference:+.1e}",
            f"{case.largest_difference:.1e}",
            f"{case.largest_with_weights:.1e}",
        )
        for case in answer.cases
    ]
    print_tables(table("the same files in SimGrid and in replay", columns, rows, names=2))


if __name__ == "__main__":
    run_as_program(main)
