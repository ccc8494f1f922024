"""The nodes of an allocation: Slurm's list of names, or a file with a name a line, as node numbers of a network."""

from collections.abc import Sequence
from pathlib import Path

from quadrille.algorithms.errors import InputError, unknown_name
from quadrille.algorithms.formats.input_files import is_file, read_text
from quadrille.topologies.files.imported.hostlist import host_names
from quadrille.topologies.network import Network

MOST_BYTES = 1 << 24


def allocated_names(text: str) -> list[str]:
    """The names of the nodes, in order.

    >>> allocated_names("dgx[001-002,008]")
    ['dgx001', 'dgx002', 'dgx008']

    Parameters
    ----------
    text : Slurm's list, or the path of a file with a name or a list on each line; names that follow themselves, as in
        a SLURM_HOSTFILE with a line for each task, count once

    Raises
    ------
    InputError : a list that stands for nothing, or a name twice
    """
    if not text.strip():
        raise InputError(
            "--nodes is missing or empty: a list such as dgx[001-016,020] is accepted; outside of a job, "
            "$SLURM_JOB_NODELIST is empty"
        )
    names: list[str] = []
    for line in _lines(text):
        names += host_names(line) if [line] != names[-1:] else []
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InputError(f"--nodes: {twice!r:.60} is there twice")
    if not names:
        raise InputError(f"--nodes {text!r:.60}: has no names")
    return names


def _lines(text: str) -> list[str]:
    if not ("/" in text or is_file(text)) or "[" in text:
        return [text]
    try:
        lines = read_text(text, MOST_BYTES).split("\n")
    except OSError as error:
        raise InputError(f"--nodes {text}: cannot be read: {error.strerror}") from None
    return [line.split()[0] for line in lines if line.strip() and not line.strip().startswith("#")]


def node_numbers(net: Network, names: Sequence[str]) -> list[int]:
    """The numbers of the nodes with these names.

    Raises
    ------
    InputError : a network without names of nodes, or a name that it does not have
    """
    if not net.node_names:
        raise InputError(
            f"{Path(net.name).name}: has no names of nodes; a file of quadrille import topology has node_names"
        )
    numbers = {name: number for number, name in enumerate(net.node_names)}
    numbers |= {name.partition(".")[0]: number for name, number in numbers.items() if "." in name}
    for name in names:
        if name not in numbers:
            raise unknown_name("--nodes:", name, numbers if len(numbers) <= 20 else list(numbers)[:20], "…")
    return [numbers[name] for name in names]
