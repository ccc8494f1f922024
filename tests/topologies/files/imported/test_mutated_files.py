"""Damaged descriptions of fabrics and nodes: each is read, or refused in one line with its file."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.fabric_network import Rates
from quadrille.topologies.files.imported.import_topology import import_topology
from tests.fuzzing.mutations import mutated_bytes, mutated_words
from tests.support.fabric_files import GRAPHML, HWLOC, SAMPLES, SLURM_YAML, ibnetdiscover, nccl_xml, nvidia_smi

VALID = {
    "ibnetdiscover": ibnetdiscover(4, 2, 2),
    "slurm-conf": (SAMPLES / "tree_topology.conf").read_text(),
    "slurm-block": (SAMPLES / "block_topology.conf").read_text(),
    "slurm-yaml": SLURM_YAML,
    "topograph": (SAMPLES / "topograph_model_medium.yaml").read_text(),
    "nccl": nccl_xml(4),
    "nvidia-smi": nvidia_smi(4),
    "graphml": GRAPHML,
    "astra-sim": (SAMPLES / "astra_hgx_h100_16gpu.yml").read_text(),
    "astra-json": '{"logical-dims": ["8", "2"]}',
    "hwloc": HWLOC,
}
SMALL = 5000
"""Links of a network that is also written and read again; a changed number may mean a million."""


def damaged(draw, text):
    """The text with lines lost, doubled or exchanged, words replaced, or bytes changed."""
    kind = draw.random()
    if kind < 0.3:
        return mutated_bytes(draw, text.encode())
    lines = text.split("\n")
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(lines))
        if kind < 0.75:
            lines[place] = mutated_words(draw, lines[place])
        elif kind < 0.85:
            del lines[place]
            lines = lines or [""]
        elif kind < 0.95:
            lines.insert(place, draw.choice(lines))
        else:
            other = draw.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", VALID)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused_in_one_line(name, seed, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"damaged-{name}"
    path.write_bytes(damaged(random.Random(seed), VALID[name]))
    try:
        net, remarks = import_topology([str(path)], rates=Rates(bandwidth=50e9))
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert not any("\n" in line for line in remarks)
        if net.link_count < SMALL:
            node_link.parse(node_link.dumps(net), "again.json")


@pytest.mark.parametrize("name", VALID)
def test_a_valid_file_is_read_by_its_content_alone(name, tmp_path):
    (tmp_path / "input").write_text(VALID[name])
    net, _ = import_topology([str(tmp_path / "input")], rates=Rates(bandwidth=50e9))
    assert net.endpoint_count > 1
