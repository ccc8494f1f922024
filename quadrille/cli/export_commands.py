"""The commands about files for other programs: export goal and chakra, and replay, which reads such files."""

from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import click

from quadrille.cli.app import app, export_group
from quadrille.cli.command_declarations import argument, flag, switch
from quadrille.cli.shared_flags import (
    EXECUTION,
    EXPERIMENT,
    FROM_FILE,
    FROM_RECORD,
    ON_MACHINE,
    ON_NETWORK,
    TRAINING,
    Json,
    experiment_flags,
    flags_of,
    machine_flags,
    with_flags,
)

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.topologies.machines.machine import Machine

OUT = flags_of(out=(Annotated[str, flag("--out", "FILE", "Where the file goes; - for stdout.")], "-"))
ON_A_MACHINE = (FROM_FILE, FROM_RECORD, EXPERIMENT, TRAINING, EXECUTION, ON_MACHINE)


def experiment_on_machine(context: click.Context, values: dict[str, Any], out: str) -> "tuple[Experiment, Machine]":
    """The experiment and the machine of the flags; `out` may not be one of their files."""
    from quadrille.algorithms.formats.schema_files import STDOUT
    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.cli.parsing.machines import chosen_machine, with_default_dtype
    from quadrille.experiments.output.destinations import check_paths_differ
    from quadrille.topologies.find_machine import gpus_with_placement

    on = machine_flags(values)
    if out != STDOUT:
        check_paths_differ({"--out": out}, on.files)
    experiment = experiment_of(with_default_dtype(experiment_flags(context, values), on))
    gpus = gpus_with_placement(on.machine, experiment.grid.size, experiment.execution.placement)
    return experiment, chosen_machine(on, gpus)


@export_group.command("goal", text="Write a schedule on a machine as GOAL, which LogGOPSim and ATLAHS read.")
@with_flags(*ON_A_MACHINE, OUT)
def export_goal(context: click.Context, **values: Any) -> None:
    """Write a GOAL file."""
    from quadrille.experiments.export.schedule_files import export_goal as write

    experiment, machine = experiment_on_machine(context, values, values["out"])
    write(experiment, machine, values["out"])


@export_group.command("chakra", text="Write a schedule on a machine as Chakra traces, which ASTRA-sim reads.")
@with_flags(
    *ON_A_MACHINE,
    flags_of(
        out=(Annotated[str, flag("--out", "PREFIX", "The files are PREFIX.RANK.et and PREFIX.groups.json.")], ""),
        messages=(Annotated[bool, switch("--messages", "Write collectives as sends and receives.")], False),
    ),
)
def export_chakra(context: click.Context, **values: Any) -> None:
    """Write Chakra traces, one file a rank."""
    from quadrille.experiments.export.schedule_files import export_chakra as write

    experiment, machine = experiment_on_machine(context, values, values["out"])
    write(experiment, machine, values["out"], steps=values["messages"])


@app.command()
@with_flags(
    [
        Parameter(
            "files",
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[
                list[str],
                argument("FILE…", "A GOAL file, or the Chakra traces of all ranks, with a JSON file of groups."),
            ],
        )
    ],
    flags_of(
        gpus=(
            Annotated[
                str, flag("--gpus", "N", "GPUs of the machine; by default all that it has, or as many as are needed.")
            ],
            "",
        ),
        placement=(
            Annotated[
                str, flag("--placement", "RULE", "Rank placement: packed, scattered, or a file with a place a line.")
            ],
            "packed",
        ),
        collectives=(
            Annotated[str, flag("--collectives", "WHO", "Algorithms of whole collectives: own or own:NAME.")],
            "own",
        ),
        json=(Json, ""),
    ),
    ON_NETWORK,
)
def replay(context: click.Context, **values: Any) -> None:
    """Predict the time of another program's messages and calculations on a machine."""
    from quadrille.algorithms.collectives.collective_choices import parse_choices
    from quadrille.cli.parsing.network_machines import flows_machine
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.output.destinations import Destinations
    from quadrille.experiments.replay.replay import replay as simulate

    on = machine_flags(values)
    count = whole_number(values["gpus"], "--gpus") if values["gpus"] else None
    simulate(
        values["files"],
        lambda needed: flows_machine(on, count, needed),
        placement=values["placement"],
        choices=parse_choices(values["collectives"]),
        destinations=Destinations(json=values["json"], read=on.files),
        command=context.obj,
    )
