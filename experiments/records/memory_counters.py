"""Memory counters of a timeline: bytes of each shown rank over the step, by kind, for `--trace`."""

from collections import defaultdict
from typing import TYPE_CHECKING

from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.counters import Counter
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.workloads.matmul import MatmulExperiment

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment


def memory_counters(experiment: "Experiment", schedule: Schedule, timeline: Timeline) -> list[Counter]:
    """The memory counter of each rank of a timeline of training; none for a matmul or the memory of other software.

    Parameters
    ----------
    schedule : schedule whose ops are in the timeline
    timeline : timeline with every iteration of every loop
    """
    if isinstance(experiment, MatmulExperiment) or experiment.software:
        return []
    from quadrille.algorithms.training.memory_over_time import memory_counter

    spans: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[span.rank].append(span)
    choices = experiment.execution.choices
    counters = (memory_counter(schedule, choices, rank, spans_of_rank) for rank, spans_of_rank in sorted(spans.items()))
    return [counter for counter in counters if counter is not None]
