"""The commands about files for other programs: export, and replay, which reads such files."""

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
    LinksPlot,
    experiment_flags,
    flags_of,
    machine_flags,
    with_flags,
)

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.topologies.machines.machine import Machine

OUT = flags_of(out=(Annotated[str, flag("--out", "FILE", "Where the file goes; - for stdout.")], "-"))
CLASSES = flags_of(
    classes=(
        Annotated[
            bool, switch("--classes", "Write one rank of each class that behaves alike, and a table of all ranks.")
        ],
        False,
    )
)
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
@with_flags(*ON_A_MACHINE, OUT, CLASSES)
def export_goal(context: click.Context, **values: Any) -> None:
    """Write a GOAL file."""
    from quadrille.experiments.export.schedule_files import export_goal as write

    experiment, machine = experiment_on_machine(context, values, values["out"])
    write(experiment, machine, values["out"], classes=values["classes"])


@export_group.command("chakra", text="Write a schedule on a machine as Chakra traces, which ASTRA-sim reads.")
@with_flags(
    *ON_A_MACHINE,
    flags_of(
        out=(Annotated[str, flag("--out", "PREFIX", "The files are PREFIX.RANK.et and PREFIX.groups.json.")], ""),
        messages=(Annotated[bool, switch("--messages", "Write collectives as sends and receives.")], False),
    ),
    CLASSES,
)
def export_chakra(context: click.Context, **values: Any) -> None:
    """Write Chakra traces, one file a rank."""
    from quadrille.experiments.export.schedule_files import export_chakra as write

    experiment, machine = experiment_on_machine(context, values, values["out"])
    write(experiment, machine, values["out"], steps=values["messages"], classes=values["classes"])


@export_group.command("ranks", text="Write the files of ranks from those of their classes (--classes).")
def export_ranks(
    table: Annotated[str, argument("TABLE", "PREFIX.classes.json, beside the files that it names.")],
    out: Annotated[
        str, flag("--out", "FILE|PREFIX", "A GOAL file, - for stdout, or the beginning of PREFIX.RANK.et.")
    ] = "-",
    ranks: Annotated[str, flag("--ranks", "0-7,12", "Ranks to write; by default all.")] = "",
) -> None:
    """Write the files that an export without --classes would write."""
    from quadrille.algorithms.formats.rank_table import load_rank_table
    from quadrille.cli.parsing.runs import parse_ranks
    from quadrille.experiments.export.rank_files import export_ranks as write

    loaded = load_rank_table(table)
    count = len(loaded.ranks)
    write(table, loaded, out, parse_ranks(ranks, count) if ranks else range(count))


@export_group.command("topology", text="Write a network as GraphML, GEXF or SimGrid XML, by the end of the name.")
def export_topology(
    topology: Annotated[str, argument("TOPOLOGY", "A machine, FAMILY:KEY=VALUE,…, or a file (.json, .xml, .toml).")],
    out: Annotated[str, flag("--out", "FILE", "A name that ends in .graphml, .gexf or .xml; needed.")] = "",
    gpus: Annotated[str, flag("--gpus", "N", "GPUs of a named machine; by default all that it has.")] = "",
) -> None:
    """Write a network."""
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.export.network_files import export_topology as write

    write(topology, out, gpus=whole_number(gpus, "--gpus") if gpus else None)


@export_group.command("tuner", text="Write the fastest algorithms as a file of NCCL's example tuner plugin.")
@with_flags(
    flags_of(
        out=(Annotated[str, flag("--out", "FILE", "Where the file goes; - for stdout.")], "-"),
        gpus=(Annotated[str, flag("--gpus", "N", "Ranks of the collectives; by default all GPUs.")], ""),
        collective=(Annotated[str, flag("--collective", "KIND", "One kind; by default the five of the tuner.")], ""),
    ),
    ON_NETWORK,
)
def export_tuner(_context: click.Context, **values: Any) -> None:
    """Write a tuner file: the algorithm and protocol with the least predicted time, by kind, size, nodes and ranks."""
    from quadrille.cli.parsing.collectives import parse_kind
    from quadrille.cli.parsing.network_machines import collective_machine
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.export.tuner_file import WORDS
    from quadrille.experiments.export.tuner_file import export_tuner as write
    from quadrille.experiments.output.destinations import check_paths_differ

    on = machine_flags(values)
    if values["out"] != "-":
        check_paths_differ({"--out": values["out"]}, on.files)
    kinds = (parse_kind(values["collective"]),) if values["collective"] else tuple(WORDS)
    machine, net = collective_machine(on, values["gpus"])
    ranks = whole_number(values["gpus"], "--gpus") if values["gpus"] else net.endpoint_count
    write(machine, net, values["out"], ranks=ranks, kinds=kinds)


@app.command()
@with_flags(
    [
        Parameter(
            "files",
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[
                list[str],
                argument(
                    "FILE…",
                    "A GOAL file, a workload of SimAI, the Chakra traces of all ranks with a JSON file of groups, or "
                    "PREFIX.classes.json.",
                ),
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
        plot=(LinksPlot, ""),
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
        destinations=Destinations(json=values["json"], plot=values["plot"], read=on.files),
        command=context.obj,
    )
