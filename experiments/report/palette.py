"""The colours of a report: each cause, kind of memory and kind of work has one colour in all charts.

Names that mean the same share a colour: time of computation and products, transfers and bandwidth, all waiting. The
values of the variables are in the style sheet of the page, for light and for dark.
"""

from collections.abc import Sequence

from quadrille.algorithms.figure_style import CAUSES

COLOURS = tuple(f"var(--c{number})" for number in range(1, 16))
"""The palette, as variables of the page's style sheet; charts of unnamed categories use it in this order.

Source: the first eight: Okabe, Ito, "Color universal design", 2008, black replaced by grey, yellow darker; the others:
Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021, scheme muted.
"""
MEMORY = {
    "parameters": 1,
    "gradients": 2,
    "optimizer": 3,
    "activations": 4,
    "buffers": 5,
    "gathered weights": 6,
    "buckets": 8,
    "operands and results": 1,
    "optimizer on host": 13,
}
AXES = {"data": 2, "pipeline": 3, "z": 4, "y": 9, "x": 10, "context": 11, "expert": 12, "expert_tensor": 15}
WORK = {
    "products": 1,
    "waiting for other ranks": 5,
    "attention": 6,
    "others": 7,
    "other local work": 8,
    "waiting and messages between pipeline stages": 3,
    "host copies": 13,
    "updates on the host": 14,
}
NUMBERS = CAUSES | MEMORY | WORK | {f"communication over {axis}": number for axis, number in AXES.items()}
"""Number of the colour of each name."""


def colours_of(names: Sequence[str]) -> list[str]:
    """The colour of each name; names without a colour of their own get colours that no other name has, if there are.

    >>> colours_of(["waiting", "compute"]), colours_of(["compute", "mine"])
    (['var(--c5)', 'var(--c1)'], ['var(--c1)', 'var(--c2)'])
    """
    taken = {NUMBERS[name] for name in names if name in NUMBERS}
    free = [number for number in range(1, len(COLOURS) + 1) if number not in taken] or [1]
    own = {name: free[place % len(free)] for place, name in enumerate(name for name in names if name not in NUMBERS)}
    return [COLOURS[NUMBERS.get(name, own.get(name, 1)) - 1] for name in names]


def axis_colour(axis: str) -> str:
    """The colour of communication over a grid axis.

    >>> axis_colour("data")
    'var(--c2)'
    """
    return COLOURS[AXES.get(axis, 7) - 1]
