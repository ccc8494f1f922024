"""`export_topology`: a network as a file for other programs."""

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
from quadrille.experiments.network.topology_show import find_topology
from quadrille.experiments.output.destinations import check_paths_differ
from quadrille.topologies.files.exported import FORMATS, exported_text
from quadrille.topologies.files.topology_file import is_topology_file


def export_topology(topology: str, out: str, *, gpus: int | None = None) -> None:
    """Writes a network as GraphML, GEXF or SimGrid XML, by the end of the name.

    Parameters
    ----------
    topology : as `topology show` takes it
    gpus : number of GPUs of a named machine; by default all

    Raises
    ------
    InputError : an unknown topology, a name with another end, or a path that cannot be written
    """
    if out in ("", STDOUT) or not out.endswith(FORMATS):
        raise InputError(f"--out {out!r:.60}: a name that ends in .graphml, .gexf or .xml (SimGrid) is needed")
    check_paths_differ({"--out": out}, {"TOPOLOGY": topology} if is_topology_file(topology) else {})
    check_writable(out)
    write_text(out, exported_text(find_topology(topology, gpus), out))
