"""Rows of tokens that share a place: the mean number against draws of experts, and against counting all draws."""

from itertools import combinations

import numpy as np
import pytest

from quadrille.algorithms.schedule.routed_rows import RoutedRows


@pytest.mark.parametrize(
    ("routed", "experts"),
    [(RoutedRows(8, 2), 4), (RoutedRows(8, 3, 4, 2), 2), (RoutedRows(8, 3, 4, 2), 4), (RoutedRows(9, 2, 3, 2), 1)],
)
def test_the_share_is_that_of_all_draws(routed, experts):
    of_group = routed.experts // routed.groups
    tokens = rows = draws = 0
    for groups in combinations(range(routed.groups), routed.chosen_groups):
        allowed = [group * of_group + expert for group in groups for expert in range(of_group)]
        for chosen in combinations(allowed, routed.chosen):
            here = sum(expert < experts for expert in chosen)
            tokens, rows, draws = tokens + (here > 0), rows + here, draws + 1
    assert routed.distinct_share(experts) == pytest.approx(tokens / rows)
    assert rows / draws == pytest.approx(routed.chosen * experts / routed.experts)


def test_a_token_visits_no_more_nodes_than_groups_that_it_chose():
    """DeepSeek-V3: 4 of 8 groups; with a group a node, fewer than 4 of 8 nodes get a token."""
    visited = RoutedRows(256, 8, 8, 4).distinct_share(32) * 8
    assert 3.5 < visited < 4
    draws = np.random.default_rng(1).permuted(np.tile(np.arange(128), (20_000, 1)), axis=1)[:, :8] // 32
    assert visited == pytest.approx(np.mean([len({*row}) for row in draws.tolist()]), rel=0.01)


def test_one_expert_of_a_place_saves_nothing_and_all_experts_leave_one_row():
    assert RoutedRows(8, 2).distinct_share(1) == 1
    assert RoutedRows(8, 2).distinct_share(8) == pytest.approx(1 / 2)
    assert RoutedRows(12, 2, 3, 2).distinct_share(6) == RoutedRows(12, 2).distinct_share(6)  # cuts a group
