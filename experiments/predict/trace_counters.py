"""Counters of a predicted timeline for `--trace`: memory of the shown ranks, and load of the busiest links."""

from quadrille.algorithms.formats.record import Granularity
from quadrille.algorithms.timelines.counters import Counter
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import format_bytes_per_second
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.records.memory_counters import memory_counters
from quadrille.simulator.link_rates import LinkRates, busiest_links

BUSIEST = 8
"""Number of links with a counter; links that carry the same count once."""
MOST_SPANS = 300_000
"""Largest number of spans of all ranks for which loads of links are counted; more take longer than most simulations."""


def trace_counters(
    prepared: PreparedExperiment, granularity: Granularity, timeline: Timeline, shown: Timeline
) -> list[Counter]:
    """The counters of a trace of a prediction.

    Parameters
    ----------
    prepared : experiment with the collectives that were predicted
    granularity : granularity of the simulation
    timeline : timeline of the prediction
    shown : timeline of the shown ranks, with every iteration of every loop
    """
    return [
        *memory_counters(prepared.experiment, prepared.schedule, shown),
        *_link_counters(prepared, granularity, timeline),
    ]


def _link_counters(prepared: PreparedExperiment, granularity: Granularity, timeline: Timeline) -> list[Counter]:
    """The counters of the busiest links."""
    unrolled, copies = timeline.unrolled(), timeline.copies or {}
    if sum(copies.get(span.rank, 1) for span in unrolled.spans) > MOST_SPANS:
        return []
    choices = prepared.experiment.execution.choices
    rates = busiest_links(
        prepared.simulated_schedule,
        choices,
        prepared.placement,
        unrolled.expanded(prepared.experiment.grid),
        by_model=choices.implementation == "nccl" and granularity != "exact",
        most=BUSIEST,
    )
    return [Counter(_name(each), tuple((time, {"share": share}) for time, share in each.shares)) for each in rates]


def _name(rates: LinkRates) -> str:
    """The name of a link's counter.

    >>> _name(LinkRates("gpu:0>nic:0", 4, 25e9, 0.0, ()))
    'gpu:0>nic:0 and 3 like it: share of 25 GB/s'
    """
    more = f" and {rates.links - 1} like it" if rates.links > 1 else ""
    return f"{rates.link}{more}: share of {format_bytes_per_second(rates.bandwidth)}"
