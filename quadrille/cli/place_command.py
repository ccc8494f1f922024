"""The command `place`: the order of ranks on the nodes of an allocation."""

from typing import TYPE_CHECKING, Annotated, Any

import click

from quadrille.cli.app import app
from quadrille.cli.command_declarations import flag
from quadrille.cli.shared_flags import (
    EXECUTION,
    EXPERIMENT,
    FROM_FILE,
    FROM_RECORD,
    NO_PROGRESS,
    ON_MACHINE,
    TRAINING,
    Json,
    Plot,
    flags_of,
    machine_flags,
    with_flags,
)

if TYPE_CHECKING:
    from quadrille.cli.parsing.machines import MachineFlags
    from quadrille.topologies.machines.machine import Machine

PLACE = flags_of(
    nodes=(Annotated[str, flag("--nodes", "LIST|FILE", 'The allocated nodes: "$SLURM_JOB_NODELIST"; needed.')], ""),
    topology=(Annotated[str, flag("--topology", "FILE.json", "The fabric; --machine then names the GPUs.")], ""),
    out=(Annotated[str, flag("--out", "FILE", "Where the best order goes; - for stdout.")], ""),
    form=(
        Annotated[str, flag("--form", "FORM", "Form of the file: rankfile, hostfile, slurm or placement.")],
        "hostfile",
    ),
    top=(Annotated[str, flag("--top", "N", "Orders that are simulated; by default 4, and 1 from 512 ranks on.")], ""),
    json=(Json, ""),
    plot=(Plot, ""),
)
"""The flags of the allocation and of the file with the order."""


@app.command("place", text="Find the order of ranks on the nodes of an allocation with the least predicted time.")
@with_flags(FROM_FILE, FROM_RECORD, PLACE, EXPERIMENT, TRAINING, EXECUTION, ON_MACHINE, NO_PROGRESS)
def place(context: click.Context, **values: Any) -> None:
    """Order the nodes of an allocation."""
    from dataclasses import replace

    from quadrille.algorithms.errors import InputError
    from quadrille.algorithms.formats.schema_files import STDOUT
    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.cli.parsing.machines import with_default_dtype
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.cli.shared_flags import experiment_flags
    from quadrille.experiments.output.destinations import Destinations, check_paths_differ
    from quadrille.experiments.place import place as placing
    from quadrille.experiments.place.allocation import allocated_names
    from quadrille.experiments.place.place_report import report

    on = machine_flags(values)
    if values["topology"] and not values["topology"].endswith((".json", ".xml")):
        words = "a node-link file (.json) is accepted; quadrille import topology makes one"
        raise InputError(f"--topology {values['topology']}: {words}")
    placing.check_form(values["out"], values["form"])
    named = replace(on, machine=on.machine or values["topology"])
    read = {**on.files, **({"--topology": values["topology"]} if values["topology"] else {})}
    written = {f"--{name}": values[name] for name in ("out", "json", "plot") if values[name] not in ("", STDOUT)}
    if values["out"] == values["json"] == STDOUT:
        raise InputError("--out -, --json -: only one of them goes to stdout")
    check_paths_differ(written, read)
    Destinations(json=values["json"], plot=values["plot"]).check()
    experiment = experiment_of(with_default_dtype(experiment_flags(context, values), named))
    if experiment.execution.any_order:
        raise InputError("--order auto: place orders nodes, not axes; name the axes, such as z,y,x,data")
    names = allocated_names(values["nodes"])
    machine = machine_of(on, values["topology"])
    top = whole_number(values["top"], "--top", most=64) if values["top"] else None
    placed = placing.place(experiment, machine, names, top=top, quiet=values["quiet"])
    report(placed, values["json"], context.obj, shown=values["out"] != STDOUT)
    if values["out"]:
        placing.write(placed, values["out"], values["form"])
    if values["plot"]:
        from quadrille.experiments.output.pictures import write_figure
        from quadrille.experiments.place.place_figure import place_figure, place_setting

        write_figure(place_figure(placed, place_setting(experiment, machine)), values["plot"])


def machine_of(on: "MachineFlags", topology: str) -> "Machine":
    """The machine of the flags, on the fabric of a file if there is one.

    Parameters
    ----------
    topology : path of a node-link file; empty for the machine's own network

    Raises
    ------
    InputError : an unknown machine, or a fabric without a kind of nodes and no machine
    """
    from dataclasses import replace

    import msgspec

    from quadrille.cli.parsing.machines import chosen_machine
    from quadrille.topologies.files.topology_file import default_routing
    from quadrille.topologies.machines.what_if import with_faults
    from quadrille.topologies.routes.routing import parse_routing

    if not topology:
        return chosen_machine(on)
    if not on.machine:
        return chosen_machine(replace(on, machine=topology))
    own = chosen_machine(replace(on, routing="", fail=(), degrade=(), slow=()))
    routing = str(parse_routing(on.routing or default_routing(topology)))
    moved = msgspec.structs.replace(own, topology={"file": topology}, routing=routing)
    return with_faults(moved, fail=on.fail, degrade=on.degrade, slow=on.slow)
