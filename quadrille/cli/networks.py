"""Commands about networks: collective, flows, machines, topology."""

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any

import click

from quadrille.cli.app import app, topology_group
from quadrille.cli.commands import argument, flag, switch
from quadrille.cli.options import (
    ON_WIRING,
    Json,
    NoFold,
    NoFoldTime,
    NoLocal,
    flags_of,
    machine_words,
    taken,
    with_flags,
)

COLLECTIVE = flags_of(
    bytes=(
        Annotated[str, flag("--bytes", "SIZE", "Of the whole buffer, such as 1GiB: what a rank has after a gather.")],
        "",
    ),
    gpus=(Annotated[str, flag("--gpus", "N", "How many; by default all that the machine has.")], ""),
    group=(Annotated[str, flag("--group", "G", "Ranks of a group; by default all that the stride reaches.")], ""),
    stride=(Annotated[str, flag("--stride", "S", "How far apart neighbours of a group are.")], "1"),
    concurrent=(
        Annotated[str, flag("--concurrent", "all|one", "All groups of that kind at once, or the first.")],
        "one",
    ),
    collectives=(
        Annotated[str, flag("--collectives", "WHO", "auto, own, own:NAME[:PIECE], nccl, nccl:ALGORITHM[:PROTOCOL].")],
        "own",
    ),
    channels=(Annotated[str, flag("--channels", "N|all", "Rings on different links, of own:ring; all that pay.")], "1"),
    shards=(Annotated[str, flag("--shards", "exact|even", "Sizes of pieces; even above 4,096 ranks.")], ""),
    dtype=(Annotated[str, flag("--dtype", "NAME", "Of the elements, for exact pieces; by default bytes.")], ""),
    root=(Annotated[str, flag("--root", "R", "Of broadcast and reduce, numbered within the group.")], "0"),
    placement=(Annotated[str, flag("--placement", "RULE", "packed, scattered or a file: a place a line.")], "packed"),
)
"""What names a collective of groups, besides its kind."""
COLLECTIVE_SWITCHES = flags_of(
    no_fold=(NoFold, False),
    no_fold_time=(NoFoldTime, False),
    no_memory=(Annotated[bool, switch("--no-memory", "Changes nothing here: no states are remembered.")], False),
    no_local=(NoLocal, False),
)


@app.command()
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
            Annotated[str, flag("--gpus", "N", "GPUs of the machine; by default what it has, or what is needed.")],
            "",
        ),
        weights=(
            Annotated[str, flag("--weights", "NAME", "none, or latency: shares as 1 / latency of the route.")],
            "none",
        ),
        no_local=(NoLocal, False),
        json=(Json, ""),
    ),
    ON_WIRING,
)
def flows(context: click.Context, **given: Any) -> None:
    """Predict when many flows between GPUs, each of its own size and start, end on a machine."""
    from quadrille.experiments.network.flows import flows as simulate
    from quadrille.experiments.words.numbers import whole_number

    count = whole_number(given["gpus"], "--gpus") if given["gpus"] else None
    chosen = {name: given[name] for name in ("traffic", "weights", "json")}
    simulate(**chosen, on=machine_words(given), gpus=count, local=not given["no_local"], command=context.obj)


def collective_command() -> Callable[..., None]:
    """`collective`: its flags come in groups, after the kind."""
    kind = Parameter(
        "kind",
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, argument("KIND", "all-gather, all-reduce, broadcast, …")],
    )

    @with_flags([kind], COLLECTIVE, flags_of(json=(Json, "")), ON_WIRING, COLLECTIVE_SWITCHES)
    def command(context: click.Context, **given: Any) -> None:
        from quadrille.experiments.network.collective_command import collective as predict
        from quadrille.experiments.network.collective_flags import CollectiveFlags
        from quadrille.simulator.collectives.collective import SimulationOptions

        flags = CollectiveFlags(kind=given["kind"], **taken(given, COLLECTIVE))
        off = {name.removeprefix("no_"): not value for name, value in taken(given, COLLECTIVE_SWITCHES).items()}
        no_memory = not off.pop("memory")
        options = SimulationOptions(causes=True, **off)
        predict(
            flags, machine_words(given), options=options, no_memory=no_memory, json=given["json"], command=context.obj
        )

    return command


app.command("collective", text="Predict one collective of many groups on a machine, and what holds it back.")(
    collective_command()
)


@app.command()
def machines(name: Annotated[str, argument("[NAME]", "One of them only.")] = "") -> None:
    """List the machines known by name, and the source of every number."""
    from quadrille.topologies.find_machine import describe_machines

    print(describe_machines(name))


@topology_group.command("show")
def topology_show(
    context: click.Context,
    topology: Annotated[
        str,
        argument("TOPOLOGY", "A machine, FAMILY:KEY=VALUE,…, or a file (.json, .xml, .toml)."),
    ],
    gpus: Annotated[str, flag("--gpus", "N", "Of a named machine; by default all that it has.")] = "",
    json: Annotated[str, flag("--json", "FILE|-", "Write the network as node-link JSON; - is stdout.")] = "",
    figure: Annotated[
        str, flag("--plot", "FILE", "Draw it (.png, .svg, .pdf), up to a few hundred nodes.", "--figure")
    ] = "",
) -> None:
    """Show a network: counts, diameter, bisection bandwidth, oversubscription, and a sketch."""
    from quadrille.experiments.network.topology import show

    show(topology, gpus=gpus, json=json, figure=figure, command=context.obj)
