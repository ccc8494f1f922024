"""The command `report`: records and answers as one HTML file."""

from typing import Annotated

import click

from quadrille.cli.app import app
from quadrille.cli.command_declarations import argument, flag


@app.command()
def report(
    context: click.Context,
    records: Annotated[
        list[str], argument("RECORD…", "JSON of simulate, run, compare, rank, sweep, explain or collective.")
    ] = [],  # noqa: B006 - click passes a new list
    out: Annotated[str, flag("--out", "FILE.html", "Where the report goes.")] = "report.html",
) -> None:
    """Write a report of records in one HTML file, which opens without a network.

    The timeline of NAME.json is NAME.timeline.json beside it. A predicted and a measured record of one problem are
    compared.

    As: quadrille report predicted.json measured.json --out report.html
    """
    from quadrille.cli.experiment_commands import recorded_roofline
    from quadrille.experiments.report.report import report as make_report
    from quadrille.runtime.host.console import remark

    make_report(records, out, context.obj, recorded_roofline)
    remark(f"wrote {out}")
