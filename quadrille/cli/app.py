"""The program `quadrille` and its groups of commands, to which the modules beside this one add theirs."""

from quadrille.cli.commands import Group

app = Group(
    "quadrille",
    "Sharded matrix multiplication and training steps, written once: predicted by a simulator, measured on MPI ranks.",
)
app.panels = {
    "Predict": ("simulate", "rank", "sweep", "schedule", "explain", "collective", "flows"),
    "Measure": ("launch", "run", "calibrate", "compare", "operands", "lab", "bench"),
    "Look up": ("machines", "models", "topologies", "topology", "schema", "completion"),
    "Ask": ("study",),
}
study = Group("study", "Questions asked of the simulator and of this machine.")
topology_group = Group("topology", "Networks: their links, their bisection bandwidth, their diameter.")
laboratory_group = Group("lab", "A topology as a network of namespaces on this machine (Linux, root).")
for group in (study, topology_group, laboratory_group):
    app.add_command(group)
