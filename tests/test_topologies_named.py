import pytest

from algorithms.errors import InputError
from topologies.graph import place_count, places
from topologies.links import links
from topologies.named import MACHINES, machine
from topologies.routes import Routes

DEVICE = ("peak_flops_per_second", "memory_bytes_per_second", "memory_bytes", "overhead_seconds")


@pytest.fixture(params=MACHINES)
def named(request):
    return machine(request.param)


def test_every_number_has_a_source(named):
    assert all(len(quantity.source) > 20 for quantity in named.quantities)


def test_the_numbers_listed_are_the_numbers_used(named):
    listed = {quantity.quantity: quantity.value for quantity in named.quantities}
    for dtype, peak in named.peak_flops_per_second.items():
        assert listed[f"peak_flops_per_second.{dtype}"] == peak
    for name in ("gpus", "gpus_per_node", *DEVICE[1:]):
        assert listed[name] == getattr(named, name)
    used = {(link.bandwidth, link.latency) for link in links(named.topology(named.gpus_per_node))}
    assert (listed["nic_bandwidth_bytes_per_second"], listed["nic_latency_seconds"]) in used


def test_every_bandwidth_of_the_wiring_is_listed(named):
    text = " ".join(f"{quantity.value}" for quantity in named.quantities if "bandwidth" in quantity.quantity)
    used = {link.bandwidth for link in links(named.topology(named.gpus_per_node))}
    listed = {float(word) for word in text.split() if word != "or"}
    assert used == listed


@pytest.mark.parametrize("gpus", [1, 3, 8, 13, 64])
def test_any_number_of_gpus_can_be_modelled(named, gpus):
    net = named.topology(gpus)
    assert place_count(net) == len(places(net)) == gpus
    assert all(place in net for place in places(net))
    assert Routes(net).between(0, gpus - 1) or gpus == 1


def test_a_node_injects_what_its_four_nics_do(named):
    net = named.topology(named.gpus_per_node)
    leaving = [link.bandwidth for link in links(net) if link.target == "leaf:0"]
    assert leaving == [25e9] * 4


def test_no_gpus_and_unknown_machines_are_refused(named):
    with pytest.raises(InputError, match=f"{named.name}: gpus=0"):
        named.topology(0)
    with pytest.raises(InputError, match="machine 'summit' is unknown; there are perlmutter, frontier"):
        machine("summit")
