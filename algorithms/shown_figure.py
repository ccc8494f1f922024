"""`ShownFigure`: a figure of matplotlib that a notebook shows as the last line of a cell; it imports matplotlib."""

from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from quadrille.algorithms.figure_settings import SETTINGS

SVG_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "quadrille", "svg.fonttype": "none", "font.family": "sans-serif"}
"""Settings of an inline SVG: equal figures are equal texts, and letters stay letters."""
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


class ShownFigure(Figure):
    """A figure that shows itself in a notebook, without pyplot and without `%matplotlib inline`."""

    def _repr_svg_(self) -> str:
        """The figure as an SVG file, which IPython calls for."""
        text = StringIO()
        with rc_context(SETTINGS | SVG_SETTINGS):
            self.savefig(text, format="svg", metadata=NO_METADATA)
        return text.getvalue()
