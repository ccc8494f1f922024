"""The commands about files of other programs: import job, import topology, import machine."""

from typing import Annotated

import click

from quadrille.cli.app import import_group
from quadrille.cli.command_declarations import argument, flag, switch

MOST_NAME = 60
"""Most characters of a printed name of a key."""


@import_group.command("job", text="Make an experiment file from the configuration of a training job.")
def import_job(
    files: Annotated[
        list[str],
        argument("FILE…", "A launch script, a log, arguments, or a configuration of another program; - for stdin."),
    ],
    out: Annotated[str, flag("--out", "FILE.toml", "Where the experiment goes; - for stdout.")] = "-",
    model: Annotated[str, flag("--model", "NAME|FILE", "Its model, as --gpt takes it, if no file has one.")] = "",
    gpus: Annotated[str, flag("--gpus", "N", "How many; by default those that the file names.")] = "",
    batch: Annotated[str, flag("--batch", "N", "Sequences of a batch; by default those of the file.")] = "",
    sequence: Annotated[str, flag("--sequence", "N", "Tokens of a sequence; by default those of the file.")] = "",
    vocabulary: Annotated[str, flag("--vocabulary", "N", "Entries of the tokenizer, if no argument says it.")] = "",
    approximate: Annotated[bool, switch("--approximate", "Go on without what an experiment cannot express.")] = False,
) -> None:
    """Make an experiment file from a job."""
    from quadrille.algorithms.errors import InputError, shortened
    from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
    from quadrille.algorithms.training.model_files import find_shape
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.import_.file_kinds import other_kinds_named
    from quadrille.experiments.import_.imported_job import Asked
    from quadrille.experiments.import_.job_formats import ACCEPTED, read_job
    from quadrille.experiments.output.destinations import check_paths_differ
    from quadrille.runtime.host.console import remark

    if out != STDOUT:
        for path in files:
            check_paths_differ({"--out": out}, {"FILE": path})
        check_writable(out)
    numbers = {"gpus": gpus, "batch": batch, "sequence": sequence, "vocabulary": vocabulary}
    chosen = {name: whole_number(value, f"--{name}") for name, value in numbers.items() if value}
    asked = Asked(**chosen, shape=find_shape(model, chosen.get("sequence")) if model else None)
    with other_kinds_named("import job", files, ACCEPTED):
        job = read_job(files, asked)
    if job.differences and not approximate:
        raise InputError(f"{files[0]}: {'; '.join(job.differences)}: --approximate goes on all the same")
    text = job.text
    if job.ignored:
        names = ", ".join(shortened(name, MOST_NAME, MOST_NAME) for name in job.ignored)
        remark(f"{files[0]}: ignored, for they change neither sizes nor layout: {names}")
    if job.differences:
        remark(f"{files[0]}: the experiment differs from the job: {'; '.join(job.differences)}")
    for words in job.remarks:
        remark(f"{files[0]}: {words}")
    write_text(out, text)


@import_group.command("topology")
def import_topology(
    files: Annotated[list[str], argument("FILE…", "Output or configuration of other programs.")],
    out: Annotated[str, flag("--out", "FILE.json", "Where the network goes; - for stdout.")] = "-",
    kind: Annotated[str, flag("--kind", "KIND", "Kind of the files; found by itself.")] = "",
    node: Annotated[str, flag("--node", "NAME", "Kind of every node, such as hgx-h100; it names the GPU.")] = "",
    bandwidth: Annotated[str, flag("--bandwidth", "RATE", "Of a host's or NIC's cable without a rate.")] = "",
    latency: Annotated[str, flag("--latency", "TIME", "Of the cable of a host or NIC.")] = "1.35us",
    switch_latency: Annotated[str, flag("--switch-latency", "TIME", "Of a cable between switches.")] = "130ns",
    oversubscription: Annotated[
        str, flag("--oversubscription", "R", "Bandwidth below a switch / upwards, of cables without a rate.")
    ] = "1",
) -> None:
    """Make a network file from descriptions of a fabric and of a node.

    The kinds are ibnetdiscover, Slurm's topology.conf and topology.yaml (slurm), topograph, NCCL's XML (nccl),
    nvidia-smi topo -m, GraphML, ASTRA-sim, SimAI and hwloc. A fabric and a node are merged.
    """
    from quadrille.algorithms.units import LARGEST_RATE, LEAST_RATE, LONGEST_SECONDS
    from quadrille.cli.parsing.numbers import measure
    from quadrille.experiments.import_.topology import write_topology
    from quadrille.topologies.files.imported.fabric_network import Rates

    rates = Rates(
        bandwidth=measure(bandwidth, "--bandwidth", "bandwidth", LEAST_RATE, LARGEST_RATE) if bandwidth else None,
        latency=measure(latency, "--latency", "latency", 0.0, LONGEST_SECONDS),
        switch_latency=measure(switch_latency, "--switch-latency", "latency", 0.0, LONGEST_SECONDS),
        oversubscription=measure(oversubscription, "--oversubscription", "ratio", 1e-6, 1e6),
    )
    write_topology(files, out, kind=kind, node=node, rates=rates)


@import_group.command("machine", text="Make a machine file from measured times of collectives.")
def import_machine(
    context: click.Context,
    logs: Annotated[list[str], argument("LOG…", "Output of nccl-tests, rccl-tests, NCCL Inspector or OSU.")],
    into: Annotated[str, flag("--into", "FILE.toml", "Where the machine goes; - for stdout.")],
    machine: Annotated[
        str, flag("--machine", "NAME|FILE", "The base; by default a node with the GPUs that the logs name.")
    ] = "",
    collective: Annotated[str, flag("--collective", "NAME", "The collective, where the files do not tell it.")] = "",
    gpus: Annotated[str, flag("--gpus", "N", "How many ranks; by default as in the files.")] = "",
    nodes: Annotated[str, flag("--nodes", "N", "How many nodes; by default as in the files, or full ones.")] = "",
) -> None:
    """Make a machine file from measured times of collectives.

    Bandwidths between GPUs and of network cards are fitted to large sizes, the time of a call to small ones. Every
    second size is fitted; the others judge the fit.
    """
    from quadrille.algorithms.formats.schema_files import STDOUT, check_writable
    from quadrille.cli.parsing.collectives import parse_kind
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.calibrate.machine_from_logs import (
        AskedLogs,
        base_of_devices,
        machine_from_logs,
        print_fit,
        save_fit,
    )
    from quadrille.experiments.output.destinations import check_paths_differ
    from quadrille.topologies.find_machine import find_machine

    if into != STDOUT:
        for path in logs:
            check_paths_differ({"--into": into}, {"LOG": path})
        check_writable(into)
    ranks, node_count = (
        whole_number(text, name) if text else None for text, name in ((gpus, "--gpus"), (nodes, "--nodes"))
    )
    asked = AskedLogs(logs, ranks, node_count, parse_kind(collective) if collective else None)
    base = find_machine(machine or base_of_devices(logs))
    fit = machine_from_logs(base, asked, context.obj)
    save_fit(fit, into)
    if into != STDOUT:
        print_fit(base, fit)
