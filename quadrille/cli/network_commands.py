"""The commands about networks and machines: collective, flows, machines, topology show."""

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, cast, get_args

import click

from quadrille.cli.app import app, topology_group
from quadrille.cli.command_declarations import argument, flag, switch, with_report
from quadrille.cli.parsing.flags import CollectiveFlags
from quadrille.cli.shared_flags import (
    ON_NETWORK,
    Json,
    LinksPlot,
    NoFold,
    NoFoldTime,
    NoLocal,
    flags_from,
    flags_of,
    group_values,
    machine_flags,
    with_flags,
)

COLLECTIVE = flags_from(
    CollectiveFlags(),
    bytes=Annotated[
        str,
        flag("--bytes", "SIZE", "Size of the whole buffer, such as 1GiB: what a rank holds after an all-gather."),
    ],
    gpus=Annotated[str, flag("--gpus", "N", "How many; by default all that the machine has.")],
    group=Annotated[str, flag("--group", "G", "Ranks of a group; by default all that the stride reaches.")],
    stride=Annotated[str, flag("--stride", "S", "How far apart neighbours of a group are.")],
    concurrent=Annotated[str, flag("--concurrent", "all|one", "All groups of that kind at once, or the first.")],
    collectives=Annotated[
        str,
        flag(
            "--collectives",
            "WHO",
            "auto, own[:NAME[:PIECE]], nccl[:ALGORITHM[:PROTOCOL]]; by default nccl on GPUs, own on hosts.",
        ),
    ],
    channels=Annotated[str, flag("--channels", "N|all", "Rings on different links, of own:ring; all that pay.")],
    shards=Annotated[
        str, flag("--shards", "exact|even", "Shard sizes: exact, or even (the default above 4,096 ranks).")
    ],
    dtype=Annotated[str, flag("--dtype", "NAME", "Element type, for exact shard sizes; by default single bytes.")],
    root=Annotated[str, flag("--root", "R", "Root of broadcast and reduce, numbered within the group.")],
    placement=Annotated[
        str, flag("--placement", "RULE", "Rank placement: packed, scattered, or a file with a place a line.")
    ],
)
"""The flags of a collective of groups, besides its kind."""
COLLECTIVE_SWITCHES = flags_of(
    no_fold=(NoFold, False),
    no_fold_time=(NoFoldTime, False),
    no_memory=(Annotated[bool, switch("--no-memory", "Changes nothing here: no states are remembered.")], False),
    no_local=(NoLocal, False),
)


@app.command()
@with_report
@with_flags(
    [
        Parameter(
            "traffic",
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[str, argument("TRAFFIC.csv", "source,destination,bytes,start_s")],
        )
    ],
    flags_of(
        gpus=(
            Annotated[
                str, flag("--gpus", "N", "GPUs of the machine; by default all that it has, or as many as are needed.")
            ],
            "",
        ),
        weights=(
            Annotated[
                str,
                flag(
                    "--weights",
                    "NAME",
                    "Weights of the flows: none, or latency (shares proportional to 1 / latency of the route).",
                ),
            ],
            "none",
        ),
        no_local=(NoLocal, False),
        json=(Json, ""),
        plot=(LinksPlot, ""),
    ),
    ON_NETWORK,
)
def flows(context: click.Context, **values: Any) -> None:
    """Predict when flows between GPUs end.  Each flow has a size and a start."""
    from quadrille.cli.parsing.network_machines import flows_machine
    from quadrille.cli.parsing.numbers import one_of, whole_number
    from quadrille.experiments.network.flows_command import Weights
    from quadrille.experiments.network.flows_command import flows as simulate
    from quadrille.experiments.output.destinations import Destinations

    count = whole_number(values["gpus"], "--gpus") if values["gpus"] else None
    on = machine_flags(values)
    simulate(
        values["traffic"],
        lambda needed: flows_machine(on, count, needed),
        weights=cast(Weights, one_of(values["weights"], "weights", get_args(Weights))),
        local=not values["no_local"],
        destinations=Destinations(json=values["json"], plot=values["plot"], read=on.files),
        command=context.obj,
    )


def collective_command() -> Callable[..., None]:
    """The function of the command `collective`, whose parameters are composed from groups of flags."""
    kind = Parameter(
        "kind",
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, argument("KIND", "all-gather, all-reduce, broadcast, …")],
    )

    plot = flags_of(
        plot=(
            Annotated[
                str, flag("--plot", "FILE", "Draw time and bus bandwidth by size (.png, .svg, .pdf).", "--figure")
            ],
            "",
        )
    )

    @with_report
    @with_flags([kind], COLLECTIVE, flags_of(json=(Json, "")), plot, ON_NETWORK, COLLECTIVE_SWITCHES)
    def command(context: click.Context, **values: Any) -> None:
        from quadrille.cli.parsing.collectives import parse_kind, parse_question
        from quadrille.cli.parsing.network_machines import collective_machine
        from quadrille.cli.parsing.runs import files_read
        from quadrille.experiments.network.collective_command import collective as predict
        from quadrille.experiments.output.destinations import Destinations
        from quadrille.simulator.collectives.collective import SimulationOptions

        words, on = CollectiveFlags(kind=values["kind"], **group_values(values, COLLECTIVE)), machine_flags(values)
        off = {name.removeprefix("no_"): not value for name, value in group_values(values, COLLECTIVE_SWITCHES).items()}
        no_memory = not off.pop("memory")
        options = SimulationOptions(causes=True, **off)
        parse_kind(words.kind)
        machine, net = collective_machine(on, words.gpus)
        question = parse_question(words, net.endpoint_count, options)
        destinations = Destinations(json=values["json"], plot=values["plot"], read=on.files | files_read(words))
        predict(question, machine, no_memory=no_memory, destinations=destinations, command=context.obj)

    return command


app.command("collective", text="Predict one collective, and what bounds it.")(collective_command())


@app.command()
@with_report
@with_flags(
    [
        Parameter(
            "log",
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[str, argument("LOG", "Output of nccl-tests, rccl-tests, NCCL Inspector or OSU.")],
        )
    ],
    flags_of(
        collective=(
            Annotated[str, flag("--collective", "NAME", "The collective, where the file does not tell it.")],
            "",
        ),
        gpus=(Annotated[str, flag("--gpus", "N", "How many ranks; by default as in the file.")], ""),
        nodes=(Annotated[str, flag("--nodes", "N", "How many nodes; by default as in the file, or full ones.")], ""),
        json=(Json, ""),
        plot=(
            Annotated[str, flag("--plot", "FILE", "Draw measured beside expected (.png, .svg, .pdf).", "--figure")],
            "",
        ),
    ),
    ON_NETWORK,
)
def check(context: click.Context, **values: Any) -> None:
    """Say whether measured collectives are normal.

    Each measured time is shown beside the time that the machine should have; causes of a gap are simulated.
    """
    from quadrille.cli.parsing.collectives import parse_kind
    from quadrille.cli.parsing.network_machines import collective_machine
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.check.check import check as compare
    from quadrille.experiments.check.check import layout_of
    from quadrille.experiments.import_.file_kinds import read_measured
    from quadrille.experiments.output.destinations import Destinations

    path, on = values["log"], machine_flags(values)
    kind = parse_kind(values["collective"]) if values["collective"] else None
    ranks, nodes = (whole_number(values[name], f"--{name}") if values[name] else None for name in ("gpus", "nodes"))
    log = read_measured(path)
    _, one_node = collective_machine(on)
    layout = layout_of(log, one_node.per_node, ranks, nodes)
    machine, _ = collective_machine(on, str(layout.gpus))
    destinations = Destinations(json=values["json"], plot=values["plot"], read=on.files | {"LOG": path})
    named = log.of_kind(kind) if kind else log
    compare(named, machine, layout, name=path, destinations=destinations, command=context.obj)


def machines_known() -> list[str]:
    """The names of the machines that --machine accepts."""
    from quadrille.topologies.machines.machine_catalogue import MACHINES

    return list(MACHINES)


@app.command()
def machines(
    name: Annotated[str, argument("[NAME]", "One machine, with every number.", complete=machines_known)] = "",
    gpus: Annotated[str, flag("--gpus", "N", "GPUs of the file that --toml writes; by default all.")] = "",
    toml: Annotated[str, flag("--toml", "FILE|-", "Write the machine as a machine file to edit; - is stdout.")] = "",
    verbose: Annotated[bool, switch("--verbose", "Print whole lines on a terminal.")] = False,
) -> None:
    """List the named machines, or every number of one machine.

    Each number is shown with its source and its path for --set.
    """
    from quadrille.algorithms.errors import InputError
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.output.terminal_lines import print_lines
    from quadrille.topologies.find_machine import describe_machines
    from quadrille.topologies.machines.machine_catalogue import as_machine_file
    from quadrille.topologies.machines.machine_file import save_machine

    if not toml:
        print_lines(describe_machines(name), "--verbose shows whole lines", whole=verbose)
        return
    if not name:
        raise InputError("machines --toml: a name is needed, as in quadrille machines perlmutter --toml -")
    save_machine(as_machine_file(name, whole_number(gpus, "--gpus") if gpus else None), toml)


@topology_group.command("show")
def topology_show(
    context: click.Context,
    topology: Annotated[
        str,
        argument("TOPOLOGY", "A machine, FAMILY:KEY=VALUE,…, or a file (.json, .xml, .toml)."),
    ],
    gpus: Annotated[str, flag("--gpus", "N", "GPUs of a named machine; by default all that it has.")] = "",
    json: Annotated[str, flag("--json", "FILE|-", "Write the network as node-link JSON; - is stdout.")] = "",
    figure: Annotated[
        str, flag("--plot", "FILE", "Draw it (.png, .svg, .pdf), up to a few hundred nodes.", "--figure")
    ] = "",
) -> None:
    """Show a network: counts, diameter, bisection bandwidth, oversubscription, and a sketch."""
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.network.topology_show import show_topology

    count = whole_number(gpus, "--gpus") if gpus else None
    show_topology(topology, gpus=count, json=json, figure=figure, command=context.obj)
