"""`Ranking`: the fields that both answers of `quadrille rank` share, about grids and about configurations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from quadrille.algorithms.field_units import (
    BytesPerSecond,
    FlopsPerSecond,
    Percent,
    Ratio,
    Seconds,
    Share,
    WholeBytes,
    units_of,
)
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import Granularity, Shards
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.tabular import Tabular
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.disagreements import Cause
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ring_bandwidths import Ring
from quadrille.experiments.workloads.training import TrainingExperiment, gpt_workload
from quadrille.experiments.workloads.training_figures import flop_rates

SCHEMA = "quadrille/rank/1"


class CauseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A cost that the model leaves out: the time that it adds [s], and Kendall's tau of the model with that time."""

    name: str
    seconds_least: Seconds
    seconds_most: Seconds
    kendall_tau: Ratio | None


class SimulatedRing(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated bandwidth of rings of `length` ranks with distance `stride`, which no table has."""

    stride: int
    length: int
    bytes_per_second: BytesPerSecond


class SimulatedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated grid or configuration: one training iteration on it.

    The time of an iteration is compute + latency + transfer - hidden + waiting.  With
    `granularity` collective, `layers_simulated` layers represent all layers.

    Parameters
    ----------
    seconds : time of an iteration [s], without setup: `seconds_per_iteration` of a record
    analytical_place : position in the model's order of all entries that fit, from 1
    analytical_seconds : time of an iteration by the model [s]
    model_flops_per_second_per_gpu, hardware_flops_per_second_per_gpu, percent_of_peak : as in a record
        (`quadrille.experiments.workloads.training_figures` has the formulas)
    shards : even if all shards have the mean size, as in `--shards`
    command : command line that simulates the entry in full; empty in Python
    """

    grid: dict[str, int]
    order: list[str]
    seconds: Seconds
    analytical_place: int
    analytical_seconds: Seconds
    compute_seconds: Seconds
    latency_seconds: Seconds
    transfer_seconds: Seconds
    hidden_seconds: Seconds
    waiting_seconds: Seconds
    contention_seconds: Seconds
    exposed_seconds_by_axis: dict[str, Seconds]
    model_flops_per_second_per_gpu: FlopsPerSecond
    hardware_flops_per_second_per_gpu: FlopsPerSecond
    percent_of_peak: Percent | None
    memory_bytes: WholeBytes
    granularity: Granularity
    layers_simulated: int
    shards: Shards
    command: str = ""


OPTIONS = (
    "scheme",
    "sequence_parallel",
    "micro_batch",
    "zero",
    "interleave",
    "pipeline_schedule",
    "recompute",
    "gathered",
    "overlap",
    "offload",
)
"""Options of an entry, which notebooks and reports show where they differ."""
Entry = TypeVar("Entry", bound=SimulatedEntry)


class DenseStates(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest entry of the same question with dense states, and the gain of compressed states.

    Parameters
    ----------
    reason : why no grid fits with dense states; empty if one fits
    grid : grid of the fastest entry
    seconds : time of an iteration [s]
    memory_bytes : largest memory of a rank [B]
    gain : share of the time that compressed states save; below 0 if they cost time
    """

    reason: str = ""
    grid: dict[str, int] = {}
    seconds: Seconds | None = None
    memory_bytes: WholeBytes | None = None
    gain: Share | None = None


class Ranking(Tabular, msgspec.Struct, Generic[Entry], frozen=True, kw_only=True):
    """The answer that `--json` writes.

    A file also has the provenance; the JSON on stdout has none, so that it is the same in every run.

    Parameters
    ----------
    simulated : simulated entries, the fastest first
    kendall_tau : Kendall's tau of the model's order and the simulated order
    bandwidths_measured : whether the bandwidths of rings come from a table of measurements
    bandwidths_simulated : bandwidths that the table lacks
    causes : costs that the model leaves out
    why : sentences about the causes
    dense_states : the same question with dense states, where states are compressed
    """

    simulated: list[Entry]
    kendall_tau: Ratio | None
    workload: Workload
    model: str
    machine: str
    gpus: int
    options: dict[str, str | int | float]
    bandwidths_measured: bool
    bandwidths_simulated: list[SimulatedRing]
    causes: list[CauseEntry]
    why: list[str]
    dense_states: DenseStates | msgspec.UnsetType = msgspec.UNSET
    provenance: Provenance | None = None

    def rows(self) -> list[dict[str, object]]:
        """A row for each simulated entry, the fastest first; the grid and the order are texts."""
        return [_flat(msgspec.to_builtins(entry)) for entry in self.simulated]

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column of the rows, as the fields of entries declare it."""
        units = units_of(type(self.simulated[0]))
        axes = {axis for entry in self.simulated for axis in entry.exposed_seconds_by_axis}
        return units | {f"exposed_seconds_{axis}": units["exposed_seconds_by_axis"] for axis in axes}

    @property
    def heading(self) -> str:
        """The question, and the fastest grid with its time, in one line."""
        best = self.simulated[0]
        question = f"{self.model} on {self.gpus} GPUs of {self.machine}"
        return (
            f"{question}: fastest of {len(self.simulated)} is {lengths_text(best.grid)}, {format_seconds(best.seconds)}"
        )

    @property
    def shown(self) -> tuple[str, ...]:
        """The grid, the options that differ between rows, the time and the memory."""
        rows = self.rows()
        differ = [name for name in ("order", *OPTIONS) if len({str(row.get(name)) for row in rows}) > 1]
        return ("grid", *differ, "seconds", "analytical_seconds", "percent_of_peak", "memory_bytes")


def _flat(entry: dict[str, Any]) -> dict[str, object]:
    """An entry without tables: lengths and order as texts, and a column for the exposed time of each axis."""
    exposed = {f"exposed_seconds_{axis}": seconds for axis, seconds in entry.pop("exposed_seconds_by_axis").items()}
    return {**entry, "grid": lengths_text(entry["grid"]), "order": ",".join(entry["order"]), **exposed}


def order_by_seconds(steps: Sequence[TrainingStep]) -> list[int]:
    """Indices of the simulated steps, the fastest first; equally fast steps keep the model's order."""
    return sorted(range(len(steps)), key=lambda place: (steps[place].seconds, place))


def question_fields(
    question: RankQuestion, bandwidths: Mapping[Ring, float], why: Sequence[Cause], *, from_table: bool
) -> dict[str, Any]:
    """The fields that both answers share: the question, the bandwidths of rings, and the causes of differences.

    Parameters
    ----------
    bandwidths : bus bandwidth of each ring that was simulated [B/s]
    why : causes of the differences between the model's and the simulated order
    from_table : whether the bandwidths of the other rings were measured
    """
    return {
        "workload": gpt_workload(question.problem),
        "model": question.shape.name,
        "machine": question.machine.name,
        "gpus": question.gpus,
        "options": _options_of(question),
        "bandwidths_measured": from_table,
        "bandwidths_simulated": [
            SimulatedRing(stride=stride, length=length, bytes_per_second=rate)
            for (stride, length), rate in bandwidths.items()
        ],
        "causes": [
            CauseEntry(name=cause.name, seconds_least=cause.least, seconds_most=cause.most, kendall_tau=cause.tau)
            for cause in why
        ],
    }


def step_fields(
    question: RankQuestion, experiment: TrainingExperiment, step: TrainingStep, *, place: int, modelled_seconds: float
) -> dict[str, Any]:
    """The fields of a simulated entry, without its names and its memory.

    Parameters
    ----------
    step : simulated training step
    place : index in the model's order, from 0
    modelled_seconds : time of an iteration by the model [s]
    """
    flop_rates_of_step = flop_rates(experiment, step.seconds, question.machine, experiment.execution.threads or 1)
    return {
        "analytical_place": place + 1,
        "analytical_seconds": modelled_seconds,
        "seconds": step.seconds,
        "compute_seconds": step.compute,
        "latency_seconds": step.latency,
        "transfer_seconds": step.transfer,
        "hidden_seconds": step.hidden,
        "waiting_seconds": step.waiting,
        "contention_seconds": step.contention,
        "exposed_seconds_by_axis": {str(axis): seconds for axis, seconds in step.exposed_seconds_by_axis.items()},
        "model_flops_per_second_per_gpu": flop_rates_of_step.model_flops_per_second_per_gpu,
        "hardware_flops_per_second_per_gpu": flop_rates_of_step.hardware_flops_per_second_per_gpu,
        "percent_of_peak": flop_rates_of_step.percent_of_peak,
        "granularity": "collective" if step.bounded else "exact",
        "layers_simulated": step.layers,
        "shards": "even" if step.even else "exact",
    }


def _options_of(question: RankQuestion) -> dict[str, str | int | float]:
    """The options of the question that are the same for every entry."""
    training, problem = question.training, question.problem
    return {
        "dtype": training.dtype,
        "overlap": ",".join(sorted(training.execution.overlaps)) or "none",
        "attention": problem.attention,
        "recompute": problem.recompute,
        "gathered": problem.gathered,
        "gradient_bytes": problem.gradient_bytes,
        **({"dropout": problem.dropout} if problem.dropout else {}),
        **(_pruning_options(problem) if problem.sparsity else {}),
        **({"products": problem.products} if problem.products != "dtype" else {}),
        **({"fp8_param_gather": "yes"} if problem.fp8_param_gather else {}),
        **({"approximate": "; ".join(question.shape.approximations)} if question.shape.approximations else {}),
        "collectives": "auto" if training.execution.choices.auto else str(training.execution.choices),
    }


def _pruning_options(problem: Gpt) -> dict[str, str | int | float]:
    return {
        "sparsity": problem.sparsity,
        "prune": problem.prune,
        "states": "compressed" if problem.sparse_states else "dense",
    }


def write_answer(answer: Ranking[Any], json: str, command: Sequence[str], show: Callable[[], None]) -> None:
    """Writes the answer as JSON if there is a path, and prints the answer unless the JSON is on stdout.

    Parameters
    ----------
    json : path of the JSON file; `-` for stdout, without provenance; empty for no file
    command : words of the command line, for provenance
    show : function that prints the answer
    """
    if json == schema_files.STDOUT:
        schema_files.write_json(json, answer, SCHEMA)
        return
    if json:
        schema_files.write_json(json, msgspec.structs.replace(answer, provenance=provenance(command)), SCHEMA)
    show()
