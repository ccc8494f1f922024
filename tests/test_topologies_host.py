import pytest

from algorithms.errors import InputError
from topologies.graph import places
from topologies.host import host


def test_a_host_is_one_place_with_cores_and_no_links():
    net = host(cores=3)
    assert places(net) == list(net) == ["host:0"]
    assert net.nodes["host:0"]["cores"] == 3
    assert net.number_of_edges() == 0


def test_a_host_without_cores_is_refused():
    with pytest.raises(InputError, match="host: cores=0"):
        host(cores=0)
