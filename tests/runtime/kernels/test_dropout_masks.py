"""Dropout masks: the generator's published numbers, shares of kept elements, and independence of the rank's block."""

import numpy as np
import pytest

from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.kernels.dropout_masks import kept_elements, philox
from quadrille.runtime.kernels.layer_kernels import KERNELS, KernelArguments

SCALARS = {"dropout": 0.25, "place": 2.0, "tokens": 40.0}


@pytest.mark.parametrize(
    ("counter", "key", "word"),
    [
        ((0, 0, 0, 0), (0, 0), 0x6627E8D5),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 0x408F276D),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), 0xD16CFE09),
    ],
)
def test_philox_gives_the_published_numbers(counter, key, word):
    """Source: Salmon et al., Random123, `kat_vectors`, philox4x32 with 10 rounds."""
    arrays = tuple(np.full((2, 3), value, np.uint64) for value in counter)
    np.testing.assert_array_equal(philox(np, arrays, key), np.full((2, 3), word))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_is_the_one_asked_for(share):
    kept = kept_elements(np, np.arange(500)[:, None], np.arange(400)[None, :], share=share, place=1)
    deviation = np.sqrt(share * (1 - share) / kept.size)
    assert 1 - kept.mean() == pytest.approx(share, abs=5 * deviation)


def test_masks_of_places_layers_and_steps_are_independent():
    rows, columns = np.arange(200)[:, None], np.arange(100)[None, :]
    masks = [
        kept_elements(np, rows, columns, share=0.5, place=place, layer=layer, step=step)
        for place in (0, 3)
        for layer in (0, 1)
        for step in (0, 1)
    ]
    for index, mask in enumerate(masks):
        for other in masks[:index]:
            assert (mask == other).mean() == pytest.approx(0.5, abs=0.02)


def drop(x, rows, columns, indices):
    """The array after dropout, and its mask."""
    mask, values = np.full(x.shape, 9, np.uint8), x.copy()
    block = Block(rows, columns)
    KERNELS["dropout"](KernelArguments(np, (mask,), (values,), (), (block,), SCALARS, 3, indices))
    return values, mask


def test_a_block_has_its_part_of_the_mask_of_the_batch():
    """Rows 40 to 79 of the batch are the second microbatch of 40 rows."""
    x = np.random.default_rng(0).standard_normal((80, 30))
    whole, mask = drop(x, (0, 80), (0, 30), {"layer": 5})
    part, part_mask = drop(x[50:60, 7:19], (10, 20), (7, 19), {"layer": 5, "microbatch": 1})
    np.testing.assert_array_equal(part, whole[50:60, 7:19])
    np.testing.assert_array_equal(part_mask, mask[50:60, 7:19])
    np.testing.assert_allclose(whole, np.where(mask, x / 0.75, 0.0), rtol=1e-15)
    assert set(np.unique(mask)) == {0, 1}


def test_the_gradient_passes_where_an_element_was_kept():
    g, mask = np.random.default_rng(1).standard_normal((4, 5)), np.arange(20).reshape(4, 5) % 3 > 0
    into = np.full(g.shape, np.nan)
    KERNELS["dropout_gradient"](KernelArguments(np, (into,), (), (g, mask.astype(np.uint8)), (), SCALARS, 0))
    np.testing.assert_allclose(into, np.where(mask, g / 0.75, 0.0), rtol=1e-15)
