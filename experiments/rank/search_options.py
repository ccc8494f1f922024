"""Options of a training step that `rank` can search beside the grid: a table with one entry for each option.

An entry says which fields of the model the option sets, which value `rank` takes if the option is not searched, and
which values a search tries.  The grid itself, the number of pipeline stages, the scheme and the microbatch depend on
each other, so `configurations.py` enumerates them.

The usual values are what users of Megatron-LM run: the distributed optimizer (ZeRO 1), 1F1B, and selective
recomputation, which does nothing if attention is fused.

Source: NVIDIA Megatron-LM, README ("Distributed Optimizer", "Activation checkpointing") and examples/gpt3
(`--use-distributed-optimizer`, `--recompute-activations`); Korthikanti et al., arXiv 2205.05198, section 5.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.offload import Offload
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine

Value = tuple[Any, ...]
"""The values of the fields of an option."""
STATIC_SCHEDULES: tuple[PipelineSchedule, ...] = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v")
"""Schedules that `--search` tries; message-driven, whose predictions take longer, has to be named."""
NO_OVERLAP, ALL_OVERLAPS = (frozenset[OverlapName](),), (frozenset[OverlapName](get_args(OverlapName)),)
NO_OFFLOAD, OPTIMIZER_OFFLOAD = (None,), (Offload(),)
INTERLEAVES = (2, 3, 4)
"""Chunks of layers of a stage that `--search` tries."""


@dataclass(frozen=True, slots=True)
class SearchOption:
    """An option of a training step that `rank` can search.

    Parameters
    ----------
    fields : fields that the option sets
    usual : value by default
    tried : values that `--search` tries
    by_default : values that `rank` tries without `--search`
    idle : value without which the step is the same, where no other value changes it
    changes : function that says whether a value changes the step of an experiment
    of_execution : whether the fields are of the execution, and not of the model
    needs_host_link : whether all values but `idle` need a machine with a host link
    """

    fields: tuple[str, ...]
    usual: Value
    tried: tuple[Value, ...]
    by_default: tuple[Value, ...]
    idle: Value
    changes: Callable[[TrainingExperiment, Value], bool]
    of_execution: bool = False
    needs_host_link: bool = False

    def applied(self, experiment: TrainingExperiment, value: Value) -> TrainingExperiment:
        """The experiment with a value of the option."""
        assert isinstance(experiment.problem, Gpt)
        chosen = dict(zip(self.fields, value, strict=True))
        if self.of_execution:
            return replace(experiment, execution=replace(experiment.execution, **chosen))
        return replace(experiment, problem=replace(experiment.problem, **chosen))

    def exists_on(self, machine: Machine) -> bool:
        """Whether a machine has what the option needs."""
        return not self.needs_host_link or machine.host_link is not None

    def values_on(self, experiment: TrainingExperiment, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The values among these that make different steps of an experiment."""
        return tuple(value for value in values if value == self.idle or self.changes(experiment, value)) or (self.idle,)


def value_text(value: Value) -> str:
    """A value as text.

    >>> value_text(("interleaved", 2, 0)), value_text((0,)), value_text((frozenset({"ors", "oag"}),))
    ('interleaved 2', '0', 'ors,oag')
    >>> value_text((None,)), value_text((Offload(4096),))
    ('none', 'optimizer:4096')
    """
    first, *more = value
    if isinstance(first, frozenset):
        return ",".join(name for name in get_args(OverlapName) if name in first) or "none"
    if first is None:
        return "none"
    return " ".join([str(first), *(str(number) for number in more if number > 1)])


def pass_orders(
    schedules: tuple[PipelineSchedule, ...], interleaves: tuple[int, ...], limit: int = 0
) -> tuple[Value, ...]:
    """The values of the option `pipeline-schedule`: schedule, chunks of layers of a stage, and limit.

    Several chunks are always interleaved, so 1F1B with several chunks is the schedule `interleaved`.

    >>> pass_orders(("1f1b", "interleaved", "zb-h1"), (2, 4))
    (('1f1b', 1, 0), ('interleaved', 2, 0), ('interleaved', 4, 0), ('zb-h1', 1, 0))
    """
    return tuple(
        (schedule, chunks, limit if schedule == "message-driven" else 0)
        for schedule in schedules
        for chunks in (interleaves if schedule == "interleaved" else (1,))
    )


def _shards_over_data(experiment: TrainingExperiment, _: Value) -> bool:
    return experiment.grid.data * experiment.grid.context > 1


def _recomputes(experiment: TrainingExperiment, value: Value) -> bool:
    assert isinstance(experiment.problem, Gpt)
    return value == ("full",) or experiment.problem.attention == "unfused"


def _orders_passes(experiment: TrainingExperiment, _: Value) -> bool:
    return experiment.grid.pipeline > 1


def _communicates(experiment: TrainingExperiment, _: Value) -> bool:
    return experiment.grid.size > experiment.grid.pipeline


def _gathers_weights(experiment: TrainingExperiment, _: Value) -> bool:
    assert isinstance(experiment.problem, Gpt)
    return experiment.grid.z > 1 or (
        experiment.problem.zero == 3 and experiment.grid.data * experiment.grid.context > 1
    )


def _offloads(experiment: TrainingExperiment, _: Value) -> bool:
    assert isinstance(experiment.problem, Gpt)
    return experiment.problem.products == "dtype"  # no schedule casts offloaded weights to small numbers


ZERO_STAGES: tuple[Value, ...] = ((0,), (1,), (2,), (3,))
RECOMPUTATIONS: tuple[Value, ...] = (("none",), ("selective",), ("full",))
PASS_ORDERS = pass_orders(STATIC_SCHEDULES, INTERLEAVES)
SEARCH_OPTIONS: dict[str, SearchOption] = {
    "zero": SearchOption(("zero",), (1,), ZERO_STAGES, ZERO_STAGES, (0,), _shards_over_data),
    "recompute": SearchOption(("recompute",), ("selective",), RECOMPUTATIONS, RECOMPUTATIONS, ("none",), _recomputes),
    "pipeline-schedule": SearchOption(
        ("pipeline_schedule", "interleave", "pipeline_limit"),
        ("1f1b", 1, 0),
        PASS_ORDERS,
        PASS_ORDERS,
        ("1f1b", 1, 0),
        _orders_passes,
    ),
    "gathered": SearchOption(
        ("gathered",), ("again",), (("again",), ("keep",)), (("again",),), ("again",), _gathers_weights
    ),
    "overlap": SearchOption(
        ("overlaps",),
        NO_OVERLAP,
        (NO_OVERLAP, ALL_OVERLAPS),
        (ALL_OVERLAPS,),
        NO_OVERLAP,
        _communicates,
        of_execution=True,
    ),
    "offload": SearchOption(
        ("offload",),
        NO_OFFLOAD,
        (NO_OFFLOAD, OPTIMIZER_OFFLOAD),
        (NO_OFFLOAD,),
        NO_OFFLOAD,
        _offloads,
        needs_host_link=True,
    ),
}
"""The options by name, in the order in which they are set; a further searched option is a further entry."""
SEARCHED_BY_DEFAULT = ("zero", "recompute", "pipeline", "pipeline-schedule", "sequence-parallel")
"""Names of `--search` that `rank` searches by default: options, pipelines, and Megatron-LM's sequence parallelism.

All overlaps are taken without a search: they cost no memory to speak of, and hardly ever time.
"""
