"""The commands about laboratories, the emulated networks of namespaces on this machine: up, run, down, status."""

import shutil
from typing import Annotated

import click

from quadrille.algorithms.errors import InputError
from quadrille.cli.app import laboratory_group
from quadrille.cli.command_declarations import argument, flag
from quadrille.cli.host_commands import LAUNCHABLE
from quadrille.cli.shared_flags import Json

Topology = Annotated[str, argument("TOPOLOGY", "star:hosts=4, a family of hosts, or a file.")]
Rate = Annotated[
    str, flag("--rate", "RATE", "Rate of the hosts' links, such as 200mbit; other links follow in proportion.")
]
Rule = Annotated[
    str,
    flag(
        "--routing",
        "RULE",
        "shortest, minimal, ecmp[:SEED] or valiant[:SEED]; by default a machine file's, else shortest.",
    ),
]
Name = Annotated[str, flag("--name", "NAME", "Name of the laboratory; several laboratories can be up at once.")]


@laboratory_group.command()
def up(topology: Topology, rate: Rate = "", routing: Rule = "", name: Name = "lab") -> None:
    """Build a topology as a real network of namespaces on this machine; it stays until `lab down`."""
    from quadrille.experiments.laboratory.laboratory_commands import bring_up

    bring_up(topology, rate=rate, routing=routing, name=name)


@laboratory_group.command(usage="-n RANKS [OPTIONS]")
def run(
    topology: Topology,
    command: Annotated[list[str], argument("-- COMMAND …", "run …, calibrate …, rank … or any program.")],
    ranks: Annotated[str, flag("-n", "RANKS", "Number of ranks, spread evenly over the hosts.")] = "",
    rate: Rate = "",
    routing: Rule = "",
    name: Name = "",
) -> int:
    """Bring a laboratory up, run a command on ranks on its hosts, and take it down whatever happens."""
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.laboratory.laboratory_commands import run_in_laboratory
    from quadrille.runtime.launching import launch as launching

    is_program = not command[0].startswith("-") and command[0] not in LAUNCHABLE
    if is_program and shutil.which(command[0]) is None:
        raise InputError(
            f"lab run: {command[0]!r} is neither {', '.join(LAUNCHABLE)} nor a program that is found on the path"
        )
    launcher_options, words = ([], command) if is_program else launching.split_launcher_options(command, LAUNCHABLE)
    if not ranks:
        raise InputError("lab run: the number of ranks is missing: quadrille lab run TOPOLOGY -n RANKS -- COMMAND …")
    count = whole_number(ranks, "-n")
    return run_in_laboratory(
        topology, count, words, launcher_options, rate=rate, routing=routing, name=name, is_program=is_program
    )


@laboratory_group.command()
def down(name: Annotated[str, argument("[NAME]", "Name of the laboratory.")] = "lab") -> None:
    """Take a laboratory down, and whatever killed ones have left."""
    from quadrille.experiments.laboratory.laboratory_commands import take_down

    take_down(name)


@laboratory_group.command()
def status(context: click.Context, json: Json = "") -> None:
    """List the laboratories that stand on this machine."""
    from quadrille.experiments.laboratory.laboratory_commands import show_laboratories

    show_laboratories(json=json, command=context.obj)
