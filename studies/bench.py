"""`quadrille bench`, which is `make bench`: the figures that the project must reach, measured here in one run.

what                       how
error of products          every algorithm, pass and dtype on 2 ranks, against a serial product
bytes                      predicted from the schedule against counted, in the same runs
order                      the fastest by prediction against the fastest by measurement
fidelity                   the cases of `study host-fidelity`
executor overhead          pairs of the executor and the same calls by hand
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from algorithms import files
from algorithms.machine import Machine, load_machine
from algorithms.matmul import algorithms
from algorithms.provenance import Provenance, provenance
from algorithms.record import Record, load_record
from studies.batch import Case, measure
from studies.executor_overhead import Overhead, executor_overhead
from studies.experiment import Flags, parse_experiment
from studies.grids import grids
from studies.host_fidelity import Fidelity, calibrated, host_fidelity
from studies.predict import prediction_of
from studies.run import RunFlags
from studies.tables import percent, print_tables, table

SCHEMA = "quadrille/bench/1"
RANKS = 2
SMALL = "401,307,503"
ORDERED = Flags(matmul="2048,2048,2048", dtype="float64")
SEED, CASES = 1, 24


class Order(msgspec.Struct, frozen=True):
    """The measured seconds of the predicted fastest, over those of the measured fastest, less one."""

    predicted_fastest: str
    measured_fastest: str
    loss: float


class Figures(msgspec.Struct, frozen=True):
    """Everything that the table shows, in full."""

    runs: int
    largest_error_over_bound: float
    runs_with_other_bytes: int
    integers_bit_for_bit: bool
    order: Order
    overhead: Overhead
    fidelity: Fidelity
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Pair:
    """A prediction and the run beside it."""

    predicted: Record
    measured: Record


def bench(*, json: str | None = None, command: Sequence[str] = ()) -> None:
    """Measure all figures and print them in one table; `json` is where they go in full."""
    if json is not None:
        files.check_writable(json)
    with tempfile.TemporaryDirectory() as folder:
        path = calibrated(folder)
        figures = _figures(path, load_machine(path), Path(folder), provenance(list(command)))
    if json is not None:
        files.write_json(json, figures, SCHEMA)
    if json != files.STDOUT:
        print_table(figures)


def _figures(path: str, machine: Machine, folder: Path, made: Provenance) -> Figures:
    _say("executor overhead")
    overhead = executor_overhead(RANKS)
    _say("fidelity")
    fidelity = host_fidelity(seed=SEED, cases=CASES, machine=path)
    _say("every algorithm, pass and dtype")
    verified = _pairs(_variants(SMALL), machine, folder / "small", RunFlags(verify=True, repeats="1"))
    exact = _pairs(_variants(SMALL), machine, folder / "exact", RunFlags(verify=True, repeats="1", operands="integers"))
    _say("order")
    ordered = _pairs(_forward(ORDERED), machine, folder / "order", RunFlags(repeats="7"))
    return Figures(
        runs=len(verified) + len(exact),
        largest_error_over_bound=max(_error_over_bound(pair.measured) for pair in verified),
        runs_with_other_bytes=sum(_other_bytes(pair) for pair in verified + exact),
        integers_bit_for_bit=all(pair.measured.verified and pair.measured.verified.max_error == 0 for pair in exact),
        order=_order(ordered),
        overhead=overhead,
        fidelity=fidelity,
        provenance=made,
    )


def _variants(sizes: str) -> list[Flags]:
    """Every algorithm on every grid of two ranks, both passes and dtypes."""
    return [
        replace(flags, passes=passes, dtype=dtype)
        for flags in _forward(Flags(matmul=sizes, panel="64"))
        for passes in ("forward", "training")
        for dtype in ("float32", "float64")
    ]


def _forward(flags: Flags) -> list[Flags]:
    return [
        replace(flags, algorithm=algorithm.name, grid=str(grid))
        for algorithm in algorithms()
        for grid in grids(RANKS, algorithm)
    ]


def _pairs(flags: Sequence[Flags], machine: Machine, folder: Path, run_flags: RunFlags) -> list[Pair]:
    folder.mkdir()
    cases = [Case(one, str(folder / f"{number}.json"), run_flags) for number, one in enumerate(flags)]
    measure(RANKS, cases)
    return [Pair(prediction_of(parse_experiment(case.flags), machine)[0], load_record(case.record)) for case in cases]


def _error_over_bound(made: Record) -> float:
    verdict = made.verified
    if verdict is None or verdict.max_error is None:
        return float("inf")
    return verdict.max_error / verdict.bound


def _other_bytes(pair: Pair) -> bool:
    predicted, measured = pair.predicted, pair.measured
    return (predicted.bytes_sent_per_rank_max, predicted.bytes_sent_total) != (
        measured.bytes_sent_per_rank_max,
        measured.bytes_sent_total,
    )


def _order(pairs: Sequence[Pair]) -> Order:
    chosen = min(pairs, key=lambda pair: pair.predicted.seconds)
    fastest = min(pairs, key=lambda pair: pair.measured.seconds)
    loss = chosen.measured.seconds / fastest.measured.seconds - 1
    return Order(_name(chosen.measured), _name(fastest.measured), loss)


def _name(made: Record) -> str:
    lengths = ",".join(f"{axis}={length}" for axis, length in made.grid.items() if length > 1)
    return f"{made.algorithm} on {lengths}"


def print_table(figures: Figures) -> None:
    """Each figure beside the floor that it must reach."""
    low, high = figures.overhead.ratio_low, figures.overhead.ratio_high
    rows = [
        ("error of products / bound", f"{figures.largest_error_over_bound:.3f}", "at most 1", f"{figures.runs} runs"),
        ("whole numbers bit for bit", "yes" if figures.integers_bit_for_bit else "no", "yes", ""),
        ("runs whose counted bytes differ", str(figures.runs_with_other_bytes), "0", f"of {figures.runs}"),
        (
            "executor over calls by hand",
            f"{figures.overhead.ratio:.3f}",
            "interval ends at 1.05",
            f"95 % interval {low:.3f} to {high:.3f}, {len(figures.overhead.executor)} pairs",
        ),
        (
            "predicted fastest over fastest",
            percent(figures.order.loss),
            "+10 %",
            f"{figures.order.predicted_fastest}; fastest {figures.order.measured_fastest}",
        ),
    ]
    floors = {"1": ("4 %", "10 %"), "2": ("6 %", "15 %")}
    for ranks, group in figures.fidelity.judged.items():
        half, most = floors[ranks]
        for label, found in (("raw", group.raw), ("drift removed", group.drift_removed)):
            if found is not None:
                text = (
                    f"median {percent(found.median, signed=False)}, 90th {percent(found.percentile_90, signed=False)}"
                )
                floor = f"{half}, 90th {most}"
                rows.append((f"fidelity, P={ranks}, {label}", text, floor, f"{found.cases} cases, seed {SEED}"))
    print_tables(table("Figures of this run", ("what", "found", "floor", "how"), rows, names=4))


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr, flush=True)
