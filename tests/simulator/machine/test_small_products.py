"""Products in small numbers on one device."""

from msgspec import structs

from quadrille.simulator.machine.small_products import SmallProducts
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import NO_TABLE

SIZES = 8192, 4096, 8192


def test_without_a_table_a_product_takes_a_share_of_the_peak_and_is_extrapolated():
    machine = find_machine("h100-node")
    without = structs.replace(machine, device=structs.replace(machine.device, kernel_table=NO_TABLE))
    at_peak = 2 * 8192 * 4096 * 8192 / 1978.9e12
    measured, by_share = (SmallProducts(each, "bfloat16").seconds(SIZES, "fp8") for each in (machine, without))
    assert not measured[1] and by_share[1]
    assert at_peak < by_share[0] < 2 * at_peak
