"""The commands of `quadrille study` that ask what another network, a fault or another machine costs a training step."""

from dataclasses import replace
from typing import Annotated, Any

import click

from quadrille.cli.app import study
from quadrille.cli.command_declarations import flag, with_report
from quadrille.cli.shared_flags import flags_of, group_values, with_flags
from quadrille.cli.training_study_commands import STUDY_OPTIONS, Gpt, asking, changed_fields

Machine = Annotated[str, flag("--machine", "NAME", "A named machine; by default h100-superpod.")]
Gpus = Annotated[str, flag("--gpus", "N", "How many GPUs.")]
WITHOUT_SEARCH = [parameter for parameter in STUDY_OPTIONS if parameter.name != "top"]
"""The flags of a study that searches no grids."""
OVERSUBSCRIPTION = flags_of(
    machine=(Machine, ""),
    gpt=(Gpt, ""),
    experts=(Annotated[str, flag("--experts", "NAME", "The model with experts; by default the study's own.")], ""),
    gpus=(Gpus, ""),
    rack=(Annotated[str, flag("--rack", "N", "Nodes under a leaf switch.")], ""),
    ratios=(Annotated[str, flag("--ratios", "N,…", "Oversubscriptions; the first is compared with.")], ""),
)


@study.command("oversubscription")
@with_report
@with_flags(OVERSUBSCRIPTION, WITHOUT_SEARCH)
def oversubscription(context: click.Context, **values: Any) -> None:
    """What does a fat tree at 2:1 and 4:1 cost, and which layout forgives it?"""
    from quadrille.studies.oversubscription import study as tree

    defaults = tree.QUICK if values["quick"] else tree.TreeQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, OVERSUBSCRIPTION)))
    tree.oversubscription(question, asking(context, {"top": "1", **values}))
