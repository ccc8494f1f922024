"""Training steps of small transformers, and machines to predict them on."""

from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults
from tests.support.toy_machines import leaf_spine, star

FEW = {"memory": 1e10, "overhead": 1e-6}
MACHINES = {
    "star": lambda n: star(n, **FEW),
    "leaves": lambda n: leaf_spine(-(-n // 4), 4, spines=2, **FEW),
    "a slow host": lambda n: with_faults(star(n, **FEW), slow=["host:1=0.5"]),
    "perlmutter": lambda _: find_machine("perlmutter"),
}
LAYERS = 12
EACH_SHORTCUT_OFF = {"fold": False}, {"fold_time": False}, {"memory": False}, {"local": False}
"""Arguments of `Shortcuts`."""


def scheduled(grid, overlaps="none", *, layers=LAYERS, batch=12, **options):
    """One training step of a GPT with this grid and these overlaps."""
    problem = Gpt(layers, 24, 4, 6, 34, batch, **options)
    schedule = gpt_schedule(problem, parse_grid(grid), Scheme4D())
    return schedule if overlaps == "none" else overlap(schedule, set(overlaps.split(",")))
