"""The commands of `quadrille study` that ask what another network, a fault or another machine costs a training step."""

from dataclasses import replace
from typing import Annotated, Any

import click

from quadrille.cli.app import study
from quadrille.cli.command_declarations import flag, with_report
from quadrille.cli.shared_flags import flags_of, group_values, with_flags
from quadrille.cli.training_study_commands import STUDY_OPTIONS, WITHOUT_SEARCH, Gpt, asking, changed_fields

Machine = Annotated[str, flag("--machine", "NAME", "A named machine; by default h100-superpod.")]
Gpus = Annotated[str, flag("--gpus", "N", "How many GPUs.")]
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
    tree.oversubscription(question, asking(context, values))


FAULT_COST = flags_of(
    machine=(Annotated[str, flag("--machine", "NAME", "A machine with rails; by default h100-superpod.")], ""),
    gpt=(Gpt, ""),
    gpus=(Gpus, ""),
    stages=(Annotated[str, flag("--stages", "N", "Stages of the pipeline; 1 leaves it out.")], ""),
    slower=(Annotated[str, flag("--slower", "PERCENT,…", "Percent of its speed that the slow GPU lacks.")], ""),
)


@study.command("fault-cost")
@with_report
@with_flags(FAULT_COST, WITHOUT_SEARCH)
def fault_cost(context: click.Context, **values: Any) -> None:
    """What do a slow GPU, a slow or flapping NIC and a lost rail cost, by layout?"""
    from quadrille.studies.fault_cost import study as faults

    defaults = faults.QUICK if values["quick"] else faults.FaultQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, FAULT_COST)))
    faults.fault_cost(question, asking(context, values))


BANDWIDTH_OR_MEMORY = flags_of(
    machines=(Annotated[str, flag("--machines", "NAME,…", "Named machines.", "--machine")], ""),
    gpt=(Annotated[str, flag("--gpt", "NAME,…", "The models that are trained.")], ""),
    gpus=(Gpus, ""),
    each=(Annotated[str, flag("--each", "N", "Sequences of each GPU.")], ""),
)


@study.command("bandwidth-or-memory")
@with_report
@with_flags(BANDWIDTH_OR_MEMORY, STUDY_OPTIONS)
def bandwidth_or_memory(context: click.Context, **values: Any) -> None:
    """What does twice the network, NVLink, memory or peak gain, each with its own best layout?"""
    from quadrille.studies.bandwidth_or_memory import study as resources

    defaults = resources.QUICK if values["quick"] else resources.ResourceQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, BANDWIDTH_OR_MEMORY)))
    resources.bandwidth_or_memory(question, asking(context, values))
