"""`export_tuner`: the algorithm, protocol and channels that the simulation predicts fastest, for NCCL's tuner plugin.

The example plugin of NCCL reads lines of kind, least and largest size, algorithm, protocol, channels, nodes and ranks.
Every algorithm and protocol that NCCL has for a collective is simulated at each size; a range of sizes reaches to the
geometric mean of a size and the next one.

Source: NVIDIA, NCCL, plugins/tuner/example/README.md, https://github.com/NVIDIA/nccl (Apache-2.0).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.nccl.costs import ALGORITHMS_OF_KIND
from quadrille.algorithms.collectives.nccl.tuning_constants import ALGORITHMS, Algorithm, Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.network.collective import CollectivePrediction, predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.runtime.host.console import remark
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

WORDS: dict[CollectiveKind, str] = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
}
"""The plugin's name of each kind of collective."""
SIZES = tuple(1 << power for power in range(10, 31, 2))
"""Sizes that are simulated: 1 KiB to 1 GiB [B]."""
LARGEST = (1 << 32) - 1
"""Largest size of a range, which the plugin takes for every larger size [B]."""
HEADER = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"


@dataclass(frozen=True, slots=True)
class FastestChoice:
    """The fastest algorithm of a collective at a size, and NCCL's own choice.

    Parameters
    ----------
    seconds, own_seconds : predicted times of both [s]
    """

    kind: CollectiveKind
    size: int
    algorithm: Algorithm
    protocol: Protocol
    channels: int
    seconds: float
    own_seconds: float

    @property
    def words(self) -> str:
        """Algorithm, protocol and channels as the plugin writes them."""
        return f"{self.algorithm},{self.protocol.lower()},{self.channels}"


def export_tuner(
    machine: Machine,
    net: Network,
    out: str,
    *,
    ranks: int,
    kinds: Sequence[CollectiveKind] = tuple(WORDS),
    sizes: Sequence[int] = SIZES,
) -> None:
    """Writes the file of NCCL's example tuner for collectives of the first ranks of a machine.

    Parameters
    ----------
    out : path of the file; `-` for stdout

    Raises
    ------
    InputError : a kind that the plugin lacks, a machine without NCCL, or a path that cannot be written
    """
    for kind in kinds:
        if kind not in WORDS:
            raise InputError(f"collective {kind}: NCCL's tuner takes {', '.join(WORDS)}")
    if ranks < 2:
        raise InputError(f"--gpus {ranks}: a collective of two GPUs or more is needed")
    if out != STDOUT:
        check_writable(out)
    nodes = -(-ranks // net.per_node)
    choices = [[fastest(kind, size, ranks, machine, net) for size in sizes] for kind in kinds]
    lines = [line for of_kind in choices for line in _lines(of_kind, nodes, ranks)]
    gain = max(
        (choice for of_kind in choices for choice in of_kind), key=lambda choice: choice.own_seconds / choice.seconds
    )
    remark(
        f"{len(lines)} ranges for {ranks} GPUs on {nodes} nodes; the largest gain over NCCL's choice is "
        f"{format_seconds(gain.own_seconds)} to {format_seconds(gain.seconds)}: {gain.kind} of {gain.size:,} bytes"
    )
    write_text(out, "\n".join([f"# {machine.name}, predicted by Quadrille", HEADER, *lines]) + "\n")


def fastest(kind: CollectiveKind, size: int, ranks: int, machine: Machine, net: Network) -> FastestChoice:
    """The choice with the least predicted time; the first of those that take as long.

    Raises
    ------
    InputError : a machine on which NCCL does not run
    """

    def predicted(choices: Choices) -> CollectivePrediction:
        question = CollectiveQuestion(kind=kind, bytes=size, gpus=ranks, group=ranks, choices=choices)
        return predict_collective(question, machine, net=net)

    own = predicted(Choices("nccl")).seconds
    best: FastestChoice | None = None
    for algorithm in ALGORITHMS_OF_KIND[kind]:
        for protocol in ALGORITHMS[algorithm]:
            try:
                prediction = predicted(Choices("nccl", nccl_algorithm=algorithm, nccl_protocol=protocol))
            except InputError:  # NCCL lacks the algorithm on these GPUs
                continue
            if best is None or prediction.seconds < best.seconds:
                channels = prediction.channels
                best = FastestChoice(kind, size, algorithm, protocol, channels, prediction.seconds, own)
    assert best is not None, "NCCL's own choice is one of them"
    return best


def _lines(choices: Sequence[FastestChoice], nodes: int, ranks: int) -> Iterator[str]:
    """Yields a line for each range of sizes with one choice."""
    least = 0
    for choice, following in zip(choices, [*choices[1:], None], strict=True):
        if following is not None and following.words == choice.words:
            continue
        largest = LARGEST if following is None else isqrt(choice.size * following.size)
        yield f"{WORDS[choice.kind]},{least},{largest},{choice.words},{nodes},{ranks}"
        least = largest + 1
