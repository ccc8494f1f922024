import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.basic import host
from quadrille.topologies.routes.routing import Routes


def test_a_host_is_one_place_with_cores_and_no_links():
    net = host(cores=3)
    assert (net.node_count, net.endpoint_count, net.link_count) == (1, 1, 0)
    assert net.cores.tolist() == [3]


@pytest.mark.parametrize("rule", ["shortest", "spray"])
def test_a_flow_from_a_host_to_itself_has_no_links(rule):
    from quadrille.topologies.routes.routing import Routing

    paths = Routes(host(), Routing(rule)).between([0, 0], [0, 0])
    assert (paths.offsets.tolist(), len(paths.links), paths.latency.tolist()) == ([0, 0, 0], 0, [0.0, 0.0])


def test_a_host_without_cores_is_refused():
    with pytest.raises(InputError, match="host: cores=0"):
        host(cores=0)
