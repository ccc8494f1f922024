"""`quadrille study weak-scaling` and `strong-scaling`: how one matmul goes on more and more GPUs.

For each number of GPUs all grids are ranked by the closed form of
`studies.scaling.ranking`, and the best few that fit in memory are simulated.

    strong    the same matmul on more GPUs
    weak      m grows with the GPUs: each brings its own rows

Efficiency is the rate of one GPU, flop / (GPUs * seconds), over that of the
fastest simulated run on the fewest GPUs.

The simulated seconds are the answer; the closed form only says which grids are
worth a simulation.  Where the two disagree, and why, is said in `studies.closed_form`.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

import msgspec

from algorithms.collectives.choices import Choices, parse_choices
from algorithms.costs.volumes import volumes
from algorithms.errors import InputError
from algorithms.formats.machine import Machine
from algorithms.formats.provenance import provenance
from algorithms.formats.record import MachineName
from algorithms.formats.record import Matmul as Sizes
from algorithms.grid import DEFAULT_ORDER, Axis, Grid, parse_order
from algorithms.matmuls.catalogue import Algorithm, find_algorithm, matmul_schedule
from algorithms.matmuls.catalogue import algorithms as all_algorithms
from algorithms.matmuls.matmul import DEFAULT_PANEL, Gathered, Matmul, Passes
from algorithms.ops import OverlapName
from algorithms.reordering.overlap import overlap, parse_overlap
from algorithms.tensors import DType
from algorithms.units import format_bytes
from simulator.machine_network import network_of, speeds_of
from simulator.simulate import Prediction, simulate
from studies.closed_form import Yardstick
from studies.experiments.machine_flags import MachineFlags, chosen_machine
from studies.experiments.machines import is_file_name
from studies.experiments.placement import Placement, placement
from studies.experiments.results import Destinations
from studies.scaling.ranking import RankedGrid, rank_grids
from studies.scaling.report import Ranked, Run, Scaling, write_outputs

ScalingKind = Literal["weak", "strong"]
MACHINE = "perlmutter"
RESULTS = Path(__file__).resolve().parent / "results"
DEFAULT_GPUS = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_SIZES: dict[ScalingKind, tuple[int, int, int]] = {
    "weak": (8192, 8192, 8192),
    "strong": (32768, 32768, 32768),
}
"""Of one GPU (weak), of all together (strong); both fit on one GPU of the named machines, training included."""


def main() -> None:
    """Ask both questions of a named machine and keep the answers."""
    RESULTS.mkdir(exist_ok=True)
    for kind in get_args(ScalingKind):
        command = ["quadrille", "study", f"{kind}-scaling", "--machine", MACHINE]
        tables = str(RESULTS / f"{kind}-{MACHINE}")
        scaling(kind, MachineFlags(machine=MACHINE), json=f"{tables}.json", csv=f"{tables}.csv", command=command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be scaled, on which numbers of GPUs.

    Parameters
    ----------
    problem : of one GPU (weak) or of all together (strong)
    gpus : numbers of GPUs, in increasing order
    top : grids simulated for each number of GPUs
    """

    kind: ScalingKind
    problem: Matmul
    gpus: tuple[int, ...] = DEFAULT_GPUS
    algorithms: tuple[Algorithm, ...]
    order: tuple[Axis, ...] = DEFAULT_ORDER
    overlaps: frozenset[OverlapName] = frozenset()
    choices: Choices = field(default_factory=Choices)
    threads: int | None = None
    top: int = 3

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScalingKind):
            raise InputError(f"scaling {self.kind!r}: accepted are {', '.join(get_args(ScalingKind))}")
        if not self.gpus or min(self.gpus) < 1 or sorted(set(self.gpus)) != list(self.gpus):
            numbers = ",".join(map(str, self.gpus)) or "none"
            raise InputError(f"gpus {numbers}: accepted are different whole numbers from 1, such as 1,2,4,8")
        if self.top < 1:
            raise InputError(f"top {self.top}: the number of grids to simulate is a whole number from 1")

    def problem_on(self, gpus: int) -> Matmul:
        """The problem on so many GPUs: m grows with them, or nothing does.

        >>> question = Question(kind="weak", problem=Matmul(5, 3, 2), algorithms=(find_algorithm("4d"),))
        >>> question.problem_on(7).sizes
        {'m': 35, 'k': 3, 'n': 2}
        """
        grown = self.problem.m * (gpus if self.kind == "weak" else 1)
        one = self.problem
        return Matmul(grown, one.k, one.n, one.dtype, one.passes, one.gathered, one.panel)


def scaling(
    kind: str,
    machine: Machine | MachineFlags,
    *,
    matmul: tuple[int, int, int] | None = None,
    gpus: Sequence[int] = DEFAULT_GPUS,
    algorithm: str = "4d",
    passes: str = "training",
    dtype: str = "bfloat16",
    top: int = 3,
    order: str = "x,y,z,data",
    overlaps: str = "none",
    gathered: str = "again",
    collectives: str = "own",
    panel: int = DEFAULT_PANEL,
    threads: int | None = None,
    json: str | None = None,
    csv: str | None = None,
    plot: str | None = None,
    command: Sequence[str] = (),
) -> Scaling:
    """Answers the question, prints the table, and writes what is asked for.

    Parameters
    ----------
    kind : `weak` or `strong`
    machine : as the flags name it, with so many GPUs each time if it is known by name; or a machine
    matmul : m, k, n, of each GPU (weak: m grows with the GPUs) or of all together (strong)
    algorithm : one name, several with commas between, or `all`
    top : grids simulated for each number of GPUs
    json, csv : files, or `-` for stdout, and then no table
    plot : a file for the figure (png, svg, pdf)
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : a study that cannot be, a file that cannot be written, a matmul that fits on none of the machines
    """
    named = machine.machine if isinstance(machine, MachineFlags) else ""
    read = {"--machine": named} if is_file_name(named) else {}
    Destinations(json=json or "", csv=csv or "", plot=plot or "").check(read)
    chosen = cast(ScalingKind, kind)
    m, k, n = matmul or DEFAULT_SIZES.get(chosen, (1, 1, 1))
    problem = Matmul(m, k, n, cast(DType, dtype), cast(Passes, passes), cast(Gathered, gathered), panel)
    question = Question(
        kind=chosen,
        problem=problem,
        gpus=tuple(gpus),
        algorithms=parse_algorithms(algorithm),
        order=parse_order(order),
        overlaps=parse_overlap(overlaps),
        choices=parse_choices(collectives),
        threads=threads,
        top=top,
    )
    found = msgspec.structs.replace(answer(question, machine), provenance=provenance(command))
    for remark in found.remarks:
        print(f"quadrille: {remark}", file=sys.stderr)
    write_outputs(found, json, csv, plot)
    return found


def parse_algorithms(text: str) -> tuple[Algorithm, ...]:
    """The algorithms named in a list; `all` are all.

    >>> [one.name for one in parse_algorithms("4d,3d")]
    ['4d', '3d']

    Raises
    ------
    InputError : an unknown or repeated name
    """
    if text == "all":
        return all_algorithms()
    names = [word.strip() for word in text.split(",")]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise InputError(f"algorithm {text!r} repeats {', '.join(sorted(repeated))}: name each once")
    return tuple(find_algorithm(name) for name in names)


def answer(question: Question, machine: Machine | MachineFlags) -> Scaling:
    """All grids ranked and the best simulated, for each number of GPUs.

    Raises
    ------
    InputError : a machine that has too few GPUs; no grid that fits in memory on any number of them
    """
    largest = _machine(machine, question.gpus[-1])
    # too few GPUs are refused before any work
    Yardstick(largest, question.problem.dtype, question.gpus[-1], question.choices)
    runs: list[Run] = []
    ranked: list[Ranked] = []
    missing: list[str] = []
    for gpus in question.gpus:
        try:
            one = _machine(machine, gpus)
        except InputError as error:
            missing.append(f"{gpus} GPUs: {error}")
            continue
        found = _ranked(question, gpus, one)
        placed = placement(one, gpus)
        fitting = [place for place, grid in enumerate(found) if placed.fits(one, grid.peak_bytes)]
        ranked += [_ranked_row(gpus, grid, fits=place in fitting) for place, grid in enumerate(found)]
        runs += [_run(question, gpus, place + 1, found[place], one) for place in fitting[: question.top]]
        missing += _remarks_at(gpus, found, len(fitting), one, placed)
    if not runs:
        raise InputError(f"scaling {_sizes(question.problem)}: nothing to simulate; {'; '.join(missing)}")
    return Scaling(
        kind=question.kind,
        machine=MachineName(largest.name, largest.sha256, largest.routing, largest.faults),
        matmul=Sizes(m=question.problem.m, k=question.problem.k, n=question.problem.n),
        dtype=question.problem.dtype,
        passes=question.problem.passes,
        algorithms=tuple(one.name for one in question.algorithms),
        order=question.order,
        overlap=tuple(sorted(question.overlaps)),
        gathered=question.problem.gathered,
        collectives=str(question.choices),
        panel=question.problem.panel,
        threads=question.threads,
        runs=tuple(_with_efficiency(runs)),
        ranked=tuple(ranked),
        remarks=(*_remarks_on(largest, question), *missing),
    )


def _machine(machine: Machine | MachineFlags, gpus: int) -> Machine:
    """The machine with so many GPUs, if it is known by name; else as it is.

    Raises
    ------
    InputError : a machine that cannot be, or has no such link or GPU as its faults name
    """
    chosen = chosen_machine(machine, gpus) if isinstance(machine, MachineFlags) else machine
    speeds_of(chosen, network_of(chosen))
    return chosen


def _ranked(question: Question, gpus: int, machine: Machine) -> list[RankedGrid]:
    return rank_grids(
        question.problem_on(gpus),
        question.algorithms,
        gpus,
        machine,
        choices=question.choices,
        overlaps=question.overlaps,
        order=question.order,
        threads=question.threads,
    )


def _ranked_row(gpus: int, grid: RankedGrid, *, fits: bool) -> Ranked:
    return Ranked(
        gpus=gpus,
        algorithm=grid.algorithm,
        grid=grid.grid.lengths,
        closed_form_seconds=grid.closed_form.seconds,
        peak_bytes_per_rank_max=grid.peak_bytes,
        fits=fits,
    )


def _run(question: Question, gpus: int, place: int, ranked: RankedGrid, machine: Machine) -> Run:
    """One grid simulated; its efficiency is not known yet."""
    problem = question.problem_on(gpus)
    schedule = overlap(matmul_schedule(problem, ranked.algorithm, ranked.grid), question.overlaps)
    predicted = simulate(schedule, machine, choices=question.choices, threads=question.threads)
    counted = volumes(schedule, question.choices)
    seconds = predicted.timeline.makespan
    rate = problem.flops / (gpus * seconds)
    peak = machine.device.peak_flops_per_second.get(problem.dtype)
    return Run(
        gpus=gpus,
        algorithm=ranked.algorithm,
        grid=ranked.grid.lengths,
        m=problem.m,
        k=problem.k,
        n=problem.n,
        closed_form_place=place,
        closed_form_seconds=ranked.closed_form.seconds,
        closed_form_compute_seconds=ranked.closed_form.compute_seconds,
        seconds=seconds,
        flops_per_second_per_gpu=rate,
        efficiency=0.0,
        exposed_seconds=_exposed(predicted, ranked.grid),
        fraction_of_peak=rate / peak if peak else None,
        peak_bytes_per_rank_max=counted.peak_bytes_per_rank_max,
        bytes_sent_per_rank_max=counted.sent_per_rank_max,
        extrapolated=bool(predicted.extrapolated),
    )


def _exposed(predicted: Prediction, grid: Grid) -> float:
    """Seconds of communication that no computing hides, mean over ranks."""
    return sum(predicted.timeline.exposed().values()) / grid.size


def _with_efficiency(runs: Sequence[Run]) -> Iterator[Run]:
    """The runs in order, each with its rate over that of the fastest on the fewest GPUs; the fastest first."""
    fewest = min(run.gpus for run in runs)
    base = max(run.flops_per_second_per_gpu for run in runs if run.gpus == fewest)
    for run in sorted(runs, key=lambda run: (run.gpus, float(f"{run.seconds:.9e}"), run.closed_form_place)):
        yield msgspec.structs.replace(run, efficiency=run.flops_per_second_per_gpu / base)


def _remarks_on(machine: Machine, question: Question) -> Iterator[str]:
    """What a user should know of the machine."""
    known = machine.device.peak_flops_per_second
    if question.problem.dtype not in known:
        yield f"{machine.name} gives no speed for {question.problem.dtype}, only for {', '.join(known)}"
    if not machine.device.gemm:
        yield f"{machine.name} has no measured products: they are predicted from data sheets and public measurements"


def _remarks_at(
    gpus: int, found: Sequence[RankedGrid], fitting: int, machine: Machine, placed: Placement
) -> Iterable[str]:
    """Why there are fewer runs than asked for."""
    if not found:
        return [f"{_gpus(gpus)}: no grid; the algorithms asked for do not run on {gpus} ranks"]
    if fitting:
        return []
    least, held = placed.ranks * min(grid.peak_bytes for grid in found), machine.device.memory_bytes
    who = f"the {placed.ranks} ranks of a host need" if placed.ranks > 1 else "a rank needs"
    return [f"{_gpus(gpus)}: no grid fits; {who} at least {format_bytes(least)} of {format_bytes(held)}"]


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _sizes(problem: Matmul) -> str:
    return f"{problem.m},{problem.k},{problem.n}"


if __name__ == "__main__":
    main()
