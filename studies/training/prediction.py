"""One training step predicted: seconds, flop/s, exposed communication and memory, as records name them."""

from collections.abc import Mapping
from dataclasses import dataclass

from algorithms.collectives.choices import Choices
from algorithms.formats.machine import Machine
from algorithms.grid import AXES, Axis
from algorithms.ops import Kernel
from algorithms.schedule import Repeat, Schedule, all_ops, ops
from algorithms.timelines.op_times import OpTimes
from algorithms.training.adam import STEP
from algorithms.training.flops import flops_per_second_per_gpu, step_flops
from algorithms.training.gpt import Gpt
from algorithms.training.memory import Kind, fullest
from algorithms.training.models import ModelShape
from algorithms.training.recompute import Recompute
from simulator.folding.even_shards import evenly
from simulator.simulate import EVERYTHING, Asked, Prediction, Simulation, simulate


@dataclass(frozen=True, slots=True)
class TrainingPrediction:
    """What a training step takes on a machine.

    Parameters
    ----------
    seconds : of one iteration, without what happens once before the first
    model_flops_per_second_per_gpu : 72 B s L h² (1 + s/(6 h) + V/(12 L h)) for a GPT, by seconds and GPUs
    hardware_flops_per_second_per_gpu : with what is computed again: 96 B s L h² (1 + s/(6 h) + V/(16 L h)) if all is
    percent_of_peak : hardware flop/s, as the papers have it, of the dtype's peak; None where that is not known
    exposed_seconds_by_axis : communication while the compute lane is idle, of one iteration, means over ranks
    memory_bytes_by_kind : of the GPU that needs most
    fits : whether this is no more than the device has
    prediction : all that the simulator says
    """

    seconds: float
    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None
    exposed_seconds_by_axis: Mapping[Axis, float]
    memory_bytes_by_kind: Mapping[Kind, int]
    fits: bool
    prediction: Prediction

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory_bytes_by_kind.values())


def predict_training(
    schedule: Schedule,
    problem: Gpt,
    machine: Machine,
    *,
    choices: Choices | None = None,
    placement: str = "packed",
    granularity: Asked = "auto",
    even_shards: bool = True,
) -> TrainingPrediction:
    """What the schedule of a problem's steps, `gpt_schedule` with or without overlaps, takes on a machine.

    Parameters
    ----------
    even_shards : give every member of a group a shard of the mean size, so that ranks whose shards differ by an
        element may be simulated as one; bytes counted for memory are exact all the same

    Raises
    ------
    InputError : more ranks than GPUs, an unknown topology, a network that faults have cut in two
    """
    chosen = choices or Choices("library")
    shards = evenly(schedule) if even_shards else schedule
    found = _simulated(shards, machine, chosen, placement, granularity)
    times = found.timeline.op_times()
    seconds = (found.timeline.makespan - _once(schedule, times)) / problem.steps
    shape = ModelShape(
        schedule.name, problem.layers, problem.hidden, problem.heads, problem.sequence, problem.vocabulary
    )
    flops, gpus = step_flops(shape, problem.batch, recompute_of(schedule)), schedule.grid.size
    rate = flops_per_second_per_gpu(flops.hardware, seconds, gpus)
    peak = machine.device.peak_flops_per_second.get(problem.dtype)
    memory = fullest(schedule, chosen)
    return TrainingPrediction(
        seconds,
        flops_per_second_per_gpu(flops.model, seconds, gpus),
        rate,
        100 * rate / peak if peak else None,
        _exposed(schedule, times, problem.steps),
        memory,
        sum(memory.values()) <= machine.device.memory_bytes,
        found,
    )


def _simulated(schedule: Schedule, machine: Machine, choices: Choices, placement: str, asked: Asked) -> Prediction:
    """The simulation: exact without a look at how long it will take where ranks are simulated as one."""
    exact = Simulation(
        schedule,
        machine,
        choices=choices,
        threads=None,
        placement=placement,
        switches=EVERYTHING,
        granularity="exact",
    )
    if asked == "exact" or (asked == "auto" and not exact.why_not):
        return exact.run()
    return simulate(schedule, machine, choices=choices, placement=placement, granularity=asked)


def recompute_of(schedule: Schedule) -> Recompute:
    """What a schedule computes again, told by its ops: whole layers, attention's weights, or nothing."""
    written = list(all_ops(schedule))
    if any(op.name.startswith("again ") for op in written):
        return "full"
    keeping = any(isinstance(op, Kernel) and op.function == "attention_keeping" for op in written)
    return "none" if keeping else "selective"


def _once(schedule: Schedule, times: Mapping[str, OpTimes]) -> float:
    """Seconds of the ops before the first step, of the rank that has most of them."""
    return max(
        sum(
            times[op.name].seconds
            for entry in role.program
            if not (isinstance(entry, Repeat) and entry.loop == STEP)
            for op in ops((entry,))
            if op.name in times
        )
        for role in schedule.roles
    )


def _exposed(schedule: Schedule, times: Mapping[str, OpTimes], steps: int) -> dict[Axis, float]:
    """Of one iteration, by the axes along which there is more than one rank."""
    return {
        axis: sum(one.exposed_seconds for one in times.values() if one.axis == axis) / steps
        for axis in AXES
        if schedule.grid.length(axis) > 1
    }
