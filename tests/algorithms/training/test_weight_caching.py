"""Weights kept gathered in the first layers: the same bits, fewer bytes sent, more kept."""

import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.weight_caching import cache_weights
from tests.support.trainings import bits, schedule_of, trained, whole_matrices

LAYERS, H = 4, 12
WEIGHTS = 12 * H * H
"""Elements of a layer's four weights."""
GRIDS = [Grid(z=2, x=2), Grid(data=2, z=2), Grid(z=3, y=2)]


def gpt(**given):
    return Gpt(LAYERS, H, 4, 5, 17, 6, dtype="float32", **given)


@pytest.mark.parametrize("grid", GRIDS[:2], ids=str)
def test_kept_weights_change_no_bit(grid):
    again = schedule_of(gpt(steps=2), grid)
    matrices = whole_matrices(again, 17)
    expected = bits(trained(again, matrices))
    assert bits(trained(validate(cache_weights(again, 1)), matrices)) == expected
    kept = overlap(cache_weights(again, 3), ["oar", "ors", "oag"])
    assert bits(trained(validate(kept), matrices)) == expected


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_each_kept_layer_saves_a_gather_and_takes_a_buffer(grid):
    again, all_kept = (schedule_of(gpt(gathered=word), grid) for word in ("again", "keep"))
    found = [volumes(cache_weights(again, layers), Choices()) for layers in range(LAYERS)] + [
        volumes(all_kept, Choices())
    ]
    block = WEIGHTS * 4 // (grid.y * grid.x)
    for layers, one in enumerate(found):
        assert found[0].sent_total - one.sent_total == layers * block * (grid.z - 1) * grid.data * grid.y * grid.x
    for layers, one in enumerate(found[:-1]):
        assert one.peak_bytes_per_rank_max - found[0].peak_bytes_per_rank_max == layers * block
    assert found[-1].peak_bytes_per_rank_max - found[0].peak_bytes_per_rank_max == (LAYERS - 1) * block


def test_recomputed_layers_use_kept_weights_too():
    again = schedule_of(gpt(recompute="full"), Grid(z=2))
    kept = cache_weights(again, 2)
    matrices = whole_matrices(again, 17)
    assert bits(trained(kept, matrices)) == bits(trained(again, matrices))
    sent = [volumes(one, Choices()).sent_total for one in (again, kept)]
    assert sent[0] - sent[1] == 2 * WEIGHTS * 4


def test_stages_of_a_pipeline_keep_their_own_first_layers():
    grid = Grid(pipeline=2, z=2)
    again = schedule_of(gpt(micro_batch=1), grid)
    kept = validate(cache_weights(again, 1))
    matrices = whole_matrices(again, 17)
    assert bits(trained(kept, matrices)) == bits(trained(again, matrices))
    sent = [volumes(one, Choices()).sent_total for one in (again, kept)]
    assert sent[0] - sent[1] == 2 * 3 * WEIGHTS * 4  # a layer of each stage, three microbatches


@pytest.mark.parametrize("layers", [-1, 4, 9])
def test_a_number_of_layers_that_a_stage_has_not_is_refused(layers):
    with pytest.raises(InputError, match=rf"keep_first {layers}: .* accepted"):
        cache_weights(schedule_of(gpt(), Grid(z=2)), layers)


def test_what_is_kept_already_is_refused():
    with pytest.raises(InputError, match="gathers no weights of a layer again"):
        cache_weights(schedule_of(gpt(gathered="keep"), Grid(z=2)), 1)


def test_no_layer_changes_nothing():
    plain = schedule_of(gpt(), Grid(z=2))
    assert cache_weights(plain, 0) is plain
