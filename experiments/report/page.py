"""The page of a report: its parts as one HTML file that needs no network.

Everything from a record is text to the template, which escapes it. Specifications are JSON inside a script tag, in
which `<`, `>` and `&` are escaped, so that no text can end the tag.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.experiments.report.elements import Chart, Part, Section
from quadrille.experiments.report.scripts import chart_scripts

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).resolve().parent
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that mean something to HTML or to old scripts, and how JSON writes them."""


def page_text(parts: Sequence[Part], *, title: str, made_by: str) -> str:
    """The HTML of a report.

    Parameters
    ----------
    parts : parts, in their order
    title : title of the page
    made_by : line at the end that says which command made the page, and when
    """
    charts = [chart for part in parts for section in part.sections for chart in section.charts]
    return (
        _templates()
        .get_template("page.html.jinja")
        .render(
            parts=parts,
            title=title,
            made_by=made_by,
            number_of={id(chart): number for number, chart in enumerate(charts)},
            identity=id,
            style=page_style(),
            script=drawing_script() + (FOLDER / "page.js").read_text(encoding="utf-8"),
            scripts=script_text(chart_scripts()) if charts else "",
            specs=json_text([_entry(chart) for chart in charts]),
        )
    )


def sections_html(sections: Sequence[Section], prefix: str) -> tuple[str, list[dict[str, object]]]:
    """The HTML of sections for a page that draws their charts itself, and the charts to draw.

    Parameters
    ----------
    prefix : beginning of the numbers of the charts, whose elements are called `chart-PREFIX0`, `chart-PREFIX1`, …
    """
    charts = [chart for section in sections for chart in section.charts]
    number_of = {id(chart): number for number, chart in enumerate(charts)}
    body = _templates().get_template("sections.html.jinja").module.section_body  # type: ignore[attr-defined]
    html = "".join(f"<section>{body(section, number_of, id, prefix)}</section>" for section in sections)
    return html, [_entry(chart) for chart in charts]


def page_style(within: str = "") -> str:
    """The style sheet of a report: its colours, which every element may use, and its rules.

    Parameters
    ----------
    within : selector of the element to which the rules are limited; empty for the whole page
    """
    colours, rules = ((FOLDER / name).read_text(encoding="utf-8") for name in ("palette.css", "page.css"))
    return f"{colours}{within} {{\n{rules}}}\n" if within else colours + rules


def drawing_script() -> str:
    """The script that draws charts in the colours of the page; it needs `vegaEmbed`."""
    return (FOLDER / "charts.js").read_text(encoding="utf-8")


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _entry(chart: Chart) -> dict[str, object]:
    return {"spec": chart.spec, "zoom": chart.zoom}


def json_text(value: object) -> str:
    r"""JSON that is safe inside a script tag.

    >>> json_text("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = msgspec.json.encode(value).decode()
    return "".join(ESCAPES.get(letter, letter) for letter in text) if set(text) & set(ESCAPES) else text


def script_text(script: str) -> str:
    """A script whose strings cannot end its tag."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
