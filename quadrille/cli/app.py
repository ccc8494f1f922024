"""The program `quadrille` and its groups of commands, to which the modules beside this one add theirs."""

import typer

HELP = (
    "Sharded matrix multiplication and training steps, written once: predicted by a simulator, measured on MPI ranks."
)

app = typer.Typer(
    name="quadrille",
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
study = typer.Typer(help="Questions asked of the simulator and of this machine.", rich_markup_mode=None)
app.add_typer(study, name="study")
topology_group = typer.Typer(
    help="Networks: what they are made of, how wide and how far they are.", rich_markup_mode=None
)
app.add_typer(topology_group, name="topology")
laboratory_group = typer.Typer(
    help="A topology as a real network of namespaces on this machine (Linux, root).", rich_markup_mode=None
)
app.add_typer(laboratory_group, name="lab")
