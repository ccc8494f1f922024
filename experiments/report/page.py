"""The page of a report: its parts as one HTML file that needs no network.

Everything from a record is text to the template, which escapes it. Specifications are JSON inside a script tag, in
which `<`, `>` and `&` are escaped, so that no text can end the tag.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from quadrille.experiments.report.elements import Chart, Part
from quadrille.experiments.report.scripts import chart_scripts

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
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    charts = [chart for part in parts for section in part.sections for chart in section.charts]
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        parts=parts,
        title=title,
        made_by=made_by,
        number_of={id(chart): number for number, chart in enumerate(charts)},
        identity=id,
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        script=(FOLDER / "page.js").read_text(encoding="utf-8"),
        scripts=script_text(chart_scripts()) if charts else "",
        specs=json_text([_entry(chart) for chart in charts]),
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
