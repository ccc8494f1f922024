"""The units of the keys of answers that a report shows as tables, by the schema of the answer."""

from collections.abc import Callable

import msgspec

from quadrille.algorithms.field_units import unit_of_path, units_of
from quadrille.algorithms.units import unit_by_name
from quadrille.experiments.compare.compare_steps import SCHEMA as STEPS
from quadrille.experiments.compare.compare_steps import StepComparison
from quadrille.experiments.compare.compare_traces import SCHEMA as TRACES
from quadrille.experiments.compare.compare_traces import TraceComparison
from quadrille.experiments.laboratory.laboratory_commands import SCHEMA as LABORATORIES
from quadrille.experiments.laboratory.laboratory_commands import LaboratoryList
from quadrille.experiments.network.collective_command import SCHEMA as COLLECTIVE
from quadrille.experiments.network.collective_command import CollectiveAnswer
from quadrille.experiments.network.flows_command import SCHEMA as FLOWS
from quadrille.experiments.network.flows_command import FlowsAnswer
from quadrille.experiments.place.place_report import SCHEMA as NODE_ORDERS
from quadrille.experiments.place.place_report import NodeOrders
from quadrille.experiments.replay.replay import SCHEMA as REPLAY
from quadrille.experiments.replay.replay import ReplayAnswer
from quadrille.experiments.traces.trace_summary import SCHEMA as TRACE
from quadrille.experiments.traces.trace_summary import TraceSummary

ANSWERS: dict[str, type[msgspec.Struct]] = {
    STEPS: StepComparison,
    TRACES: TraceComparison,
    LABORATORIES: LaboratoryList,
    COLLECTIVE: CollectiveAnswer,
    FLOWS: FlowsAnswer,
    NODE_ORDERS: NodeOrders,
    REPLAY: ReplayAnswer,
    TRACE: TraceSummary,
}
"""The type of each answer, whose fields declare their units."""


def unit_of_key(schema: str) -> Callable[[str], str]:
    """The function from the path of a key, such as `links.busy_s`, to the unit of its values; empty for plain numbers.

    >>> unit = unit_of_key("quadrille/flows/1")
    >>> unit("links.busy_s"), unit("links.utilisation"), unit("seconds_by_part.latency"), unit("events")
    ('s', 'share', 's', '')

    Answers of other schemas, such as those of studies, have no type that declares units.  There the last name of the
    path says the unit.
    """
    if schema not in ANSWERS:
        return lambda path: unit_by_name(path.rpartition(".")[2])
    units = units_of(ANSWERS[schema])
    return lambda path: unit_of_path(units, path)
