"""Damaged descriptions of fabrics and nodes: each is read, or refused in one line with its file."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.fabric_network import Rates
from quadrille.topologies.files.imported.import_topology import import_topology
from tests.fuzzing.mutations import mutated_lines
from tests.support.fabric_files import FABRICS

SMALL = 5000
"""Links of a network that is also written and read again; a changed number may mean a million."""


@pytest.mark.parametrize("name", FABRICS)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused_in_one_line(name, seed, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"damaged-{name}"
    path.write_bytes(mutated_lines(random.Random(seed), FABRICS[name]))
    try:
        net, remarks = import_topology([str(path)], rates=Rates(bandwidth=50e9))
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert not any("\n" in line for line in remarks)
        if net.link_count < SMALL:
            node_link.parse(node_link.dumps(net), "again.json")


@pytest.mark.parametrize("name", FABRICS)
def test_a_valid_file_is_read_by_its_content_alone(name, tmp_path):
    (tmp_path / "input").write_text(FABRICS[name])
    net, _ = import_topology([str(tmp_path / "input")], rates=Rates(bandwidth=50e9))
    assert net.endpoint_count > 1
