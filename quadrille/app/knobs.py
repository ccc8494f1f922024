"""The knobs of the page: an element for each setting, with the line of a fault beside it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from nicegui import ui

from quadrille.algorithms.errors import unknown_name
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.algorithms.training.recompute import Recompute
from quadrille.app.settings import OVERLAPS, SCHEMES, Settings, knob_at_fault
from quadrille.topologies.machines.machine_catalogue import MACHINES

GPU_COUNTS = tuple(2**power for power in range(15))
MICRO_BATCHES = tuple(range(1, 17))
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
LAYOUT = {
    "tensor": "tensor (x)",
    "pipeline": "pipeline",
    "depth": "sharded weights (z)",
    "context": "context",
    "expert": "expert",
    "expert_tensor": "expert tensor",
}
OVERLAP_NAMES = {
    "oar": "all-reduce",
    "ors": "reduce-scatter",
    "oag": "all-gather",
    "ogr": "gradients over data",
    "opg": "weights over data",
}
NUMBERS = {"batch": "sequences of a step", "interleave": "chunks of a stage"}
CHOICES: Mapping[str, tuple[str, Mapping[Any, str | None]]] = {
    "model": ("model", dict.fromkeys(SHAPES)),
    "machine": ("machine", dict.fromkeys(MACHINES)),
    "scheme": ("scheme", SCHEMES),
    "zero": ("ZeRO stage", {stage: str(stage) for stage in range(4)}),
    "products": (
        "precision of products",
        {"dtype": "that of the machine", "fp8": "FP8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"},
    ),
    "recompute": ("recompute", dict.fromkeys(get_args(Recompute))),
    "pipeline_schedule": ("order of passes", dict.fromkeys(get_args(PipelineSchedule))),
}
TITLE = (
    "<div class='top'><h1>Quadrille</h1><button data-fold='settings' aria-controls='settings' aria-expanded='false'>"
    "Settings</button></div>"
)
"""The title, and the button that unfolds the settings on a phone."""
WHOLE_NUMBER = "a whole number from 1 is accepted"


def check_choices(settings: Settings) -> None:
    """Raises InputError for a position that is no choice of its knob."""
    for name, (_, options) in CHOICES.items():
        value = getattr(settings, name)
        if value not in options:
            raise unknown_name(name, str(value)[:40], map(str, options))


class Knobs:
    """The elements of all settings.

    Parameters
    ----------
    settings : first positions
    changed : function that is called with the settings after each change
    """

    def __init__(self, settings: Settings, changed: Callable[[Settings], None]) -> None:
        self.settings, self._changed = settings, changed
        self._faults: dict[str, ui.label] = {}
        self._places: dict[str, ui.element] = {}
        self._setters: dict[str, Callable[[Any], object]] = {}
        self._quiet = False
        self._build()
        self._hide_lacking()

    def set_all(self, settings: Settings) -> None:
        """Turn all knobs to these positions."""
        self._move_to(settings, self._setters)
        self._changed(settings)

    def _move_to(self, settings: Settings, names: Iterable[str]) -> None:
        """Turn some knobs to their positions in the settings, and tell nobody."""
        self._quiet = True
        for name in names:
            self._setters[name](getattr(settings, name))
        self._quiet = False
        self.settings = settings
        self._hide_lacking()

    def _hide_lacking(self) -> None:
        """Hide the knobs that the machine or the model lacks; one that an address has turned stays, for its fault."""
        first = Settings()
        for name, place in self._places.items():
            is_turned = getattr(self.settings, name) != getattr(first, name)
            place.set_visibility(name not in self.settings.lacking or is_turned)

    def show_fault(self, line: str) -> None:
        """Show the line of a refused setting beside its knob; an empty line shows none."""
        place = knob_at_fault(line) if line else ""
        for name, label in self._faults.items():
            label.set_text(line if name == place else "")
            label.set_visibility(name == place)

    def _take(self, name: str, value: Any) -> None:
        """Take a new position, and tell the page."""
        if self._quiet or value is None or getattr(self.settings, name) == value:
            return
        settings = replace(self.settings, **{name: value})
        if name in ("model", "machine"):
            settings = settings.without_lacking()
        self._move_to(settings, settings.lacking)
        self._changed(self.settings)

    def _build(self) -> None:
        ui.html(TITLE, sanitize=False).classes("w-full")
        with ui.element("div").classes("settings").props("id=settings"):
            self._build_settings()

    def _build_settings(self) -> None:
        for name in ("model", "machine"):
            self._choice(name)
        self._gpus()
        ui.html("<h2>Layout</h2>", sanitize=False)
        with ui.element("div").classes("pair"):
            for name, caption in LAYOUT.items():
                self._number(name, caption)
        for name in ("scheme", "zero"):
            self._choice(name)
        ui.html("<h2>Step</h2>", sanitize=False)
        self._number("batch", NUMBERS["batch"])
        self._slider("micro_batch", "microbatch", MICRO_BATCHES, lambda value: f"{value}")
        self._overlap()
        for name in ("recompute", "products"):
            self._choice(name)
        ui.html("<h2>What if</h2>", sanitize=False)
        for name, caption in (("network", "bandwidth of the network"), ("node", "bandwidth in a node")):
            self._slider(name, caption, FACTORS, lambda value: f"× {value:g}")
        with ui.expansion("More").classes("w-full"):
            self._choice("pipeline_schedule")
            self._number("interleave", NUMBERS["interleave"])
        self._more()

    def _knob(self, name: str) -> ui.element:
        """The place of a knob: its elements, and below them the line of its fault."""
        whole = ui.element("div").classes("knob").props(f'data-knob="{name}"')
        with whole:
            inside = ui.element("div")
            label = ui.label("").classes("fault").props("role=alert")
            label.set_visibility(False)
        self._faults[name] = label
        self._places[name] = whole
        return inside

    def _choice(self, name: str) -> None:
        caption, options = CHOICES[name]
        shown = {value: text or value for value, text in options.items()}
        with self._knob(name):
            select = ui.select(
                shown,
                label=caption,
                value=getattr(self.settings, name),
                with_input=len(shown) > 8,
                on_change=lambda event: self._take(name, event.value),
            ).props(f'dense options-dense aria-label="{caption}"')
        self._setters[name] = select.set_value

    def _number(self, name: str, caption: str) -> None:
        with self._knob(name):
            number = ui.number(
                caption,
                value=getattr(self.settings, name),
                min=1,
                precision=0,
                on_change=lambda event: self._typed(name, event.value),
            ).props(f'dense debounce=200 aria-label="{caption}"')
        self._setters[name] = number.set_value

    def _typed(self, name: str, value: float | None) -> None:
        """Take a typed number, or show what is accepted."""
        if value is None or value < 1 or value != int(value):
            self._faults[name].set_text(WHOLE_NUMBER)
            self._faults[name].set_visibility(True)
            return
        self._faults[name].set_visibility(False)
        self._take(name, int(value))

    def _slider(self, name: str, caption: str, values: Sequence[float], text: Callable[[Any], str]) -> ui.slider:
        with self._knob(name):
            with ui.element("div").classes("caption"):
                ui.label(caption)
                shown = ui.label(text(getattr(self.settings, name)))

            def move(event: Any) -> None:
                value = values[int(event.value)]
                shown.set_text(text(value))
                slider.props(f'aria-valuetext="{text(value)}"')
                self._take(name, value)

            place = nearest(values, getattr(self.settings, name))
            slider = ui.slider(min=0, max=len(values) - 1, step=1, value=place, on_change=move)
            slider.props(f'dense snap aria-label="{caption}"')

        def set_place(value: float) -> None:
            shown.set_text(text(value))
            slider.set_value(nearest(values, value))

        self._setters[name] = set_place
        return slider

    def _gpus(self) -> None:
        """The number of GPUs: a slider over powers of two, and a number beside it."""
        with self._knob("gpus"), ui.row().classes("w-full no-wrap items-center"):
            powers = len(GPU_COUNTS) - 1
            slider = ui.slider(min=0, max=powers, step=1, value=nearest(GPU_COUNTS, self.settings.gpus))
            slider.props('dense snap aria-label="GPUs, powers of two"')
            number = ui.number("GPUs", value=self.settings.gpus, min=1, precision=0)
            number.props('dense debounce=200 aria-label="GPUs"').classes("w-24")
        slider.on_value_change(lambda event: number.set_value(GPU_COUNTS[int(event.value)]))
        number.on_value_change(lambda event: self._typed("gpus", event.value))
        self._setters["gpus"] = number.set_value

    def _overlap(self) -> None:
        with self._knob("overlap"):
            ui.label("communication beside products").classes("caption")
            with ui.element("div").classes("boxes"):
                boxes = {
                    name: ui.checkbox(OVERLAP_NAMES[name], value=name in self.settings.overlap).props("dense size=sm")
                    for name in OVERLAPS
                }

        def turn_overlap() -> None:
            self._take("overlap", tuple(name for name, box in boxes.items() if box.value))

        def turn_boxes(chosen: Sequence[str]) -> None:
            for name, box in boxes.items():
                box.set_value(name in chosen)

        for box in boxes.values():
            box.on_value_change(turn_overlap)
        self._setters["overlap"] = turn_boxes

    def _more(self) -> None:
        with self._knob("more"):
            caption = "further flags of simulate"
            text = (
                ui.input(
                    caption,
                    value=self.settings.more,
                    placeholder="--attention flash3",
                    on_change=lambda event: self._take("more", event.value or ""),
                )
                .props(f'dense debounce=500 aria-label="{caption}"')
                .classes("w-full")
            )
        self._setters["more"] = text.set_value


def nearest(values: Sequence[float], value: float) -> int:
    """The place of the nearest of some values.

    >>> nearest((1, 2, 4, 8), 5)
    2
    """
    return min(range(len(values)), key=lambda place: abs(values[place] - value))
