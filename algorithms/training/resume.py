"""Resumed training: the schedule of a run that continues from stored parameters and Adam moments.

It is a pass over the schedule of a step; the numbers of the steps continue.  The state carried between runs is
parameters, moments and the number of the first step.  The loops and ops of a step do not change.
"""

from dataclasses import replace

from quadrille.algorithms.passes.rewriting import filter_ops
from quadrille.algorithms.schedule.ops import Op, Pointwise
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import STEP, is_moment
from quadrille.algorithms.training.adam import moment_names as moment_names
from quadrille.algorithms.training.layers import index_name


def training_state(schedule: Schedule) -> tuple[str, ...]:
    """Tensors that carry the state from one step to the next: parameters, then their moments."""
    parameters = parameter_names(schedule)
    return (*parameters, *(name for parameter in parameters for name in moment_names(parameter)))


def parameter_names(schedule: Schedule) -> tuple[str, ...]:
    """Names of the parameters of a model, as the optimizer stores them."""
    return tuple(name for name in schedule.state if not is_moment(name) and schedule.tensors[name].value_of is None)


def checkpoint_names(schedule: Schedule) -> tuple[str, ...]:
    """Tensors that a checkpoint holds: the state, and the indices of pruned parameters."""
    state = training_state(schedule)
    indices = {index_name(name) for name in state}
    return (*state, *(name for name in schedule.inputs if name in indices))


def resume_schedule(schedule: Schedule, first_step: int) -> Schedule:
    """The schedule of steps `first_step`, `first_step` + 1, …, which starts from parameters and moments."""
    moments = set(training_state(schedule)) - set(schedule.state)
    zeroing_ops = _zeroing_ops(schedule, moments)
    resumed_schedule = schedule.with_program(
        lambda program: _from_step(filter_ops(program, lambda op: op.name not in zeroing_ops), first_step),
        state=tuple(dict.fromkeys((*training_state(schedule), *schedule.state))),
    )
    return replace(
        resumed_schedule,
        tensors={name: _with_first_index(tensor, first_step) for name, tensor in schedule.tensors.items()},
    )


def with_state_outputs(schedule: Schedule) -> Schedule:
    """The schedule with the state of the next step among its outputs."""
    outputs = dict.fromkeys((*schedule.outputs, *training_state(schedule)))
    return replace(schedule, outputs=tuple(outputs))


def _zeroing_ops(schedule: Schedule, moments: set[str]) -> set[str]:
    """Ops that zero the moments before the first step."""
    names: set[str] = set()
    for role in schedule.roles:
        for op in _ops_before_steps(role.program):
            if isinstance(op, Pointwise) and op.function == "zero" and op.into in moments:
                names.add(op.name)
    return names


def _ops_before_steps(program: Program) -> list[Op]:
    ops_before: list[Op] = []
    for entry in program:
        if isinstance(entry, Repeat):
            ops_before += [] if entry.loop == STEP else _ops_before_steps(entry.body)
        else:
            ops_before.append(entry)
    return ops_before


def _from_step(program: Program, first_step: int) -> Program:
    return tuple(
        replace(entry, first=first_step) if isinstance(entry, Repeat) and entry.loop == STEP else entry
        for entry in program
    )


def _with_first_index(tensor: Tensor, first_step: int) -> Tensor:
    """The tensor with its copies for steps numbered from the first step."""
    if STEP not in dict(tensor.copies) or not first_step:
        return tensor
    return replace(tensor, first_indices=(*tensor.first_indices, (STEP, first_step)))
