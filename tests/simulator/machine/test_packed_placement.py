"""The rule `packed:N` uses the first N GPUs of each node."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.simulator.machine.placement import place_ranks
from quadrille.topologies.find_machine import find_machine, gpus_with_placement


def test_each_rack_has_as_many_ranks_as_the_rule_says():
    gpus = gpus_with_placement("gb200-nvl72", 100, "packed:48")
    placed = place_ranks(find_machine("gb200-nvl72", gpus=gpus), 100, "packed:48").of_rank
    assert gpus == 3 * 72
    assert placed.tolist() == [*range(48), *range(72, 120), *range(144, 148)]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("packed:0", "N from 1 to 8"),
        ("packed:9", "N from 1 to 8"),
        ("packed:half", "N from 1 to 8"),
        ("packed:4", "4 nodes are needed, and .* has 2"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rule, line):
    with pytest.raises(InputError, match=line):
        place_ranks(find_machine("h100-superpod", gpus=16), 16, rule)
