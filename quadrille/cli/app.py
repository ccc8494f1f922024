"""The command line `quadrille` and its groups of commands, to which the other modules add their commands."""

from collections.abc import Mapping

from quadrille.cli.command_declarations import Group

app = Group(
    "quadrille",
    "Sharded matrix multiplication and training steps, written once: predicted by a simulator, measured on MPI ranks.",
)
app.panels = {
    "Predict": (
        "simulate",
        "rank",
        "sweep",
        "schedule",
        "explain",
        "report",
        "app",
        "place",
        "collective",
        "flows",
        "replay",
        "check",
    ),
    "Measure": ("launch", "run", "calibrate", "compare", "operands", "lab", "bench"),
    "Look up": ("machines", "models", "topologies", "topology", "schema", "completion"),
    "Bring in": ("import",),
    "Take out": ("export",),
    "Ask": ("study",),
}
study = Group("study", "Run one of the studies that answer what-if questions.")
topology_group = Group("topology", "Show the links, bisection bandwidth and diameter of a network.")
laboratory_group = Group("lab", "Run ranks on an emulated network (Linux, root).")
import_group = Group("import", "Make Quadrille's files from files of other programs.")
export_group = Group("export", "Make files of other programs from Quadrille's experiments and networks.")
for group in (study, topology_group, laboratory_group, import_group, export_group):
    app.add_command(group)


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether the launcher calls this process rank 0, or did not start it.

    >>> is_first({}), is_first({"PMI_RANK": "0"}), is_first({"PMI_RANK": "3"})
    (True, True, False)
    """
    from quadrille.runtime.host.world import RANK_VARIABLES  # with MPI's names, which --help does not need

    return all(environment.get(name, "0") == "0" for name in RANK_VARIABLES)
