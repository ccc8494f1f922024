"""The chart of the Pareto front of time, memory and GPUs, with filters for the options by which points differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quadrille.algorithms.units import TimeUnit, format_bytes, time_unit
from quadrille.experiments.output.pareto import pareto_front
from quadrille.experiments.output.tables import duration
from quadrille.experiments.report.amounts import compact, memory_unit
from quadrille.experiments.report.charts import INK, LEGEND, PAGE_WIDTH, with_filters
from quadrille.experiments.report.elements import Chart, Section, Spec, Table
from quadrille.experiments.report.palette import COLOURS

MOST_POINTS = 800
"""Number of points of a chart: the Pareto front, then the fastest."""
MOST_CHOICES = 12
"""Number of different values up to which an option has a filter."""
MOST_FILTERS = 5
FRONT, BEHIND, TOO_LARGE = "on the Pareto front", "another point is better", "does not fit in memory"
SHAPES = {FRONT: "diamond", BEHIND: "circle", TOO_LARGE: "cross"}


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a search: its time [s], its memory [B], its GPUs, and what tells it from others."""

    name: str
    seconds: float
    memory_bytes: float
    gpus: int
    options: Mapping[str, str] = field(default_factory=dict)
    fits: bool = True


def pareto_section(points: Sequence[Point], title: str) -> Section:
    """The section with the Pareto front of time, memory and GPUs, of the points that fit in memory.

    If no point fits, the front is of all points.
    """
    fitting = [place for place, point in enumerate(points) if point.fits] or list(range(len(points)))
    amounts_of = [(points[place].seconds, points[place].memory_bytes, points[place].gpus) for place in fitting]
    front = {fitting[place] for place in pareto_front(amounts_of)}
    order = sorted(range(len(points)), key=lambda place: (place not in front, points[place].seconds))
    shown = [(points[place], place in front) for place in order[:MOST_POINTS]]
    several_gpus = len({point.gpus for point in points}) > 1
    hidden = len(points) - len(shown)
    lines = (
        [f"The chart shows {len(shown):,} of {len(points):,} points: the front, then the fastest."] if hidden else []
    )
    on_front = sorted((points[place] for place in front), key=lambda point: point.seconds)
    amounts = "time, memory and GPUs" if several_gpus else "time and memory"
    too_large = sum(not point.fits for point in points)
    who = "The large diamond is the point" if len(front) == 1 else f"Large diamonds are the {len(front)} points"
    that_fits = " that fits in memory" if 0 < too_large < len(points) else ""
    label = (
        f"Time over memory of {len(shown):,} points. {who} on the Pareto front: no other point{that_fits} is better in "
        f"{amounts}. The fastest is {on_front[0].name}."
    )
    label += f" Crosses do not fit in memory: {too_large} of {len(points)}." if that_fits else ""
    columns = ("point on the front", "time", "memory", "GPUs")
    rows = [
        (point.name, duration(point.seconds), format_bytes(int(point.memory_bytes)), f"{point.gpus:,}")
        for point in on_front
    ]
    unit = time_unit(point.seconds for point, _ in shown)
    memory = memory_unit(max(point.memory_bytes for point, _ in shown))
    spec = _spec([_value(*pair, unit, memory[0]) for pair in shown], unit, memory[1], several_gpus=several_gpus)
    chart = Chart(with_filters(spec, filters([point for point, _ in shown])), label, Table(columns, rows))
    return Section(title, lines, [chart])


def _value(point: Point, is_on_front: bool, unit: TimeUnit, memory_factor: float) -> dict[str, Any]:
    return {
        "time": compact(unit.number(point.seconds)),
        "memory": compact(memory_factor * point.memory_bytes),
        "GPUs": point.gpus,
        "point": point.name,
        "place": FRONT if is_on_front else BEHIND if point.fits else TOO_LARGE,
        "fits": "yes" if point.fits else "no",
        **point.options,
    }


def filters(points: Sequence[Point]) -> dict[str, list[str]]:
    """The values of each option by which the points differ; of GPUs too."""
    choices: dict[str, list[str]] = {}
    gpus = sorted({point.gpus for point in points})
    has_key = any("gpus" in point.options for point in points)
    if 1 < len(gpus) <= MOST_CHOICES and not has_key:
        choices["GPUs"] = [str(count) for count in gpus]
    for name in dict.fromkeys(name for point in points for name in point.options):
        values = sorted({point.options.get(name, "") for point in points}, key=_by_number)
        if 1 < len(values) <= MOST_CHOICES and len(choices) < MOST_FILTERS:
            choices[name] = values
    return choices


def _by_number(text: str) -> tuple[bool, float, str]:
    return (False, float(text), text) if text.replace(".", "", 1).isdigit() else (True, 0.0, text)


def _spec(values: Sequence[Mapping[str, Any]], unit: TimeUnit, memory_unit_name: str, *, several_gpus: bool) -> Spec:
    """Points of time over memory; the shape says what is on the front, the colour the number of GPUs."""
    tooltip = [{"field": name} for name in values[0] if name != "place"]
    scale = {"zero": False, "nice": True}
    times = [value["time"] for value in values]
    if min(times) > 0 and max(times) > 8 * min(times):
        scale = {"type": "log", "nice": False}  # type: ignore[dict-item]
    colour: Spec = {"value": COLOURS[0]}
    if several_gpus:
        counts = sorted({value["GPUs"] for value in values})
        colours = [COLOURS[number % len(COLOURS)] for number in range(len(counts))]
        colour = {"field": "GPUs", "type": "ordinal", "scale": {"domain": counts, "range": colours}}
        colour["legend"] = {**LEGEND, "title": "GPUs"}
    present = {value["place"] for value in values}
    shapes = {place: shape for place, shape in SHAPES.items() if place in present}
    return {
        **PAGE_WIDTH,
        "height": 340,
        "data": {"values": list(values)},
        "mark": {"type": "point", "filled": True, "opacity": 0.9, "stroke": INK, "strokeWidth": 0.5},
        "encoding": {
            "x": {
                "field": "memory",
                "type": "quantitative",
                "title": f"memory of a rank [{memory_unit_name}]",
                "scale": {"zero": False},
            },
            "y": {"field": "time", "type": "quantitative", "title": f"time [{unit.name}]", "scale": scale},
            "color": colour,
            "shape": {
                "field": "place",
                "type": "nominal",
                "scale": {"domain": list(shapes), "range": list(shapes.values())},
                "legend": LEGEND,
            },
            "size": {
                "condition": [
                    {"test": f"datum.place == '{FRONT}'", "value": 190},
                    {"test": f"datum.place == '{TOO_LARGE}'", "value": 110},
                ],
                "value": 45,
            },
            "tooltip": tooltip,
        },
    }
