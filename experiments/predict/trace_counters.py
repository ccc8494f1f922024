"""Counters of a predicted timeline for `--trace`: memory of its ranks."""

from quadrille.algorithms.timelines.counters import Counter
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.records.memory_counters import memory_counters


def trace_counters(prepared: PreparedExperiment, timeline: Timeline) -> list[Counter]:
    """The counters of a predicted timeline.

    Parameters
    ----------
    prepared : experiment with the collectives that were predicted
    timeline : timeline with every iteration of every loop
    """
    return memory_counters(prepared.experiment, prepared.schedule, timeline)
