"""Bars of relative gains: a group of bars for each case, a colour for each choice, words for missing gains."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP_WIDTH = 0.84
"""Width of a group of bars; the distance of two groups is 1."""
MISSING_COLOUR = "#666666"
"""Colour of the words in place of a bar."""


def draw_gain_bars(
    axes: "Axes",
    groups: Sequence[str],
    gains: Mapping[str, Sequence[float | None]],
    colours: Mapping[str, str],
    *,
    missing: str = "no answer",
) -> None:
    """Draws a vertical bar for each gain, with its number of percent at the end.

    Parameters
    ----------
    groups : names of the groups
    gains : gain in each group by the name of the choice, as a share; None where it is not known
    colours : colour of each choice
    missing : words in place of a bar whose gain is not known
    """
    width = GROUP_WIDTH / len(gains)
    for index, (name, shares) in enumerate(gains.items()):
        places = [group + width * (index - (len(gains) - 1) / 2) for group in range(len(groups))]
        axes.bar(places, [100 * (share or 0.0) for share in shares], width=width, color=colours[name], label=name)
        for group, (place, share) in enumerate(zip(places, shares, strict=True)):
            if share is not None:
                _write(axes, place, 100 * share, gain_text(share))
            elif not any(column[group] is not None for column in gains.values()):
                if index == 0:
                    _write(axes, group, 0.0, missing, color=MISSING_COLOUR)
            else:
                _write(axes, place, 0.0, missing, color=MISSING_COLOUR, rotation=90)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(y=0.1)
    axes.grid(visible=False, axis="x")


def gain_text(share: float) -> str:
    """A gain as a number of percent, with a sign unless it rounds to zero.

    >>> gain_text(0.052), gain_text(-0.487), gain_text(-1e-12)
    ('+5.2', '-49', '0')
    """
    percent = round(100 * share, 1)
    return (f"{percent:+.1f}" if abs(percent) < 10 else f"{percent:+.0f}") if percent else "0"


def _write(axes: "Axes", place: float, percent: float, text: str, **style: Any) -> None:
    """Writes a text above the end of a bar, or below that of a negative bar."""
    axes.annotate(
        text,
        (place, percent),
        xytext=(0, -2 if percent < 0 else 2),
        textcoords="offset points",
        ha="center",
        va="top" if percent < 0 else "bottom",
        fontsize=6.5,
        **style,
    )
