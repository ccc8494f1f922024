import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.leaf_spine import add_rail_optimised, rail_optimised
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.routes.routing import Routes

CABLE = {"bandwidth": 4.0, "latency": 1e-6}


@pytest.fixture
def net():
    """Seven nodes of three rails in units of four; the last unit has three nodes."""
    return rail_optimised(7, 3, 4, 2, uplink_bandwidth=6.0, **CABLE)


def test_counts_are_those_of_the_formula(net):
    assert net.kinds == {"host": (0, 21), "rail": (21, 6), "spine": (27, 2)}
    assert net.link_count == 2 * (21 + 6 * 2)
    assert net.bandwidths[net.link_numbers("rail:5-spine:1")].tolist() == [6.0, 6.0]


def test_a_rail_switch_has_one_nic_of_every_node_of_its_unit(net):
    for host in range(21):
        node, rail = divmod(host, 3)
        assert net.link_numbers(f"host:{host}-rail:{node // 4 * 3 + rail}")


def test_a_rail_within_a_unit_is_two_hops_and_all_else_four(net):
    sources, targets = np.divmod(np.arange(21 * 21), 21)
    hops = np.diff(Routes(net).between(sources, targets).offsets)
    near = (sources % 3 == targets % 3) & (sources // 12 == targets // 12)
    assert hops.tolist() == np.where(sources == targets, 0, np.where(near, 2, 4)).tolist()


def test_endpoints_come_a_node_at_a_time():
    builder = Builder("", {})
    with pytest.raises(InputError, match="rails=3 must divide the number of endpoints, 7"):
        add_rail_optimised(builder, builder.nodes("nic", 7), rails=3, nodes_per_unit=2, spines=1, **CABLE)
