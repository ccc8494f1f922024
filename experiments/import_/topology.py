"""`write_topology`: files of other programs become one node-link file, and remarks on stderr."""

from collections.abc import Sequence

from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
from quadrille.experiments.import_.file_kinds import other_kinds_named
from quadrille.experiments.output.destinations import check_paths_differ
from quadrille.runtime.host.console import remark_all
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.fabric_network import Rates
from quadrille.topologies.files.imported.import_topology import KINDS, import_topology

ACCEPTED = f"a description of a fabric or a node is accepted ({', '.join(KINDS)})"


def write_topology(paths: Sequence[str], out: str, *, kind: str = "", node: str = "", rates: Rates) -> None:
    """Writes the network that files of other programs describe, and says what was not used.

    Parameters
    ----------
    paths : the files, a fabric or a node first
    out : path of the node-link file; `-` for stdout
    kind, node, rates : as in `import_topology`

    Raises
    ------
    InputError : a path that cannot be written, or as `import_topology`
    """
    if out != STDOUT:
        check_paths_differ({"--out": out}, {f"FILE {number}": path for number, path in enumerate(paths, 1)})
        check_writable(out)
    with other_kinds_named("import topology", paths, ACCEPTED):
        net, remarks = import_topology(paths, node=node, kind=kind, rates=rates)
    text = node_link.dumps(net)
    remark_all(remarks)
    write_text(out, text)
