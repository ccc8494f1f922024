"""Checkpoints of pruned training: kept elements and one index, from any grid to any other, dense or compressed."""

import json
from hashlib import sha256

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.runtime.files.checkpoint import ZERO_CHECKSUM
from quadrille.runtime.files.checkpoint_reader import open_checkpoint
from tests.support.training_jobs import ended, losses, verdict

SIZES = "layers=2,hidden=36,heads=6,sequence=7,vocabulary=127"
GPT = {"gpt": SIZES, "batch": "6", "dtype": "float64", "sparsity": "0.8"}
GRIDS = [
    {"grid": "y=3", "sparse_states": True},
    {"grid": "z=3,y=2"},
    {"grid": "data=2,z=2,y=2", "sparse_states": True, "zero": "1", "overlap": "oar,ors,oag"},
    {"grid": "z=2,x=3", "scheme": "optimus", "sparse_states": True},
    {"grid": "pipeline=2,z=2", "micro_batch": "1", "sparse_states": True},
    {"grid": "data=2,x=3", "zero": "3", "sparse_states": True},
    {"grid": "data=2,x=3", "zero": "3"},
]


@pytest.fixture(scope="module", params=["magnitude", "random"])
def prune(request):
    return request.param


@pytest.fixture(scope="module")
def unbroken(prune):
    return losses(ended(**GPT, prune=prune, steps="4", sparse_states=True))


@pytest.fixture(scope="module", params=[True, False], ids=["compressed", "dense"])
def saved(tmp_path_factory, prune, request):
    """A checkpoint, and the grids that go on from it: those of pruning by magnitude and the states take turns."""
    path = tmp_path_factory.mktemp("saved") / "two.ckpt"
    ended(**GPT, prune=prune, sparse_states=request.param, steps="2", grid="data=2,z=2,x=2", zero="1", save=path)
    return path, GRIDS[request.param :: 2] if prune == "magnitude" else GRIDS[request.param : 2 : 2]


def test_pruned_training_goes_on_from_any_grid(unbroken, saved, prune):
    path, grids = saved
    for other in grids:
        run = ended(**GPT, prune=prune, steps="2", load=path, **other)
        np.testing.assert_allclose(losses(run), unbroken[2:], rtol=1e-11)
        assert verdict(run).ok


def test_the_mask_of_a_checkpoint_counts_and_not_that_of_the_flags(tmp_path):
    path = tmp_path / "magnitude.ckpt"
    ended(**GPT, steps="1", sparse_states=True, save=path)
    expected = losses(ended(**GPT, steps="1", sparse_states=True, load=path))
    other = ended(**GPT, steps="1", prune="random", sparse_states=True, load=path, grid="x=2")
    np.testing.assert_allclose(losses(other), expected, rtol=1e-11)


def test_a_checkpoint_has_the_kept_elements_only(tmp_path):
    path = tmp_path / "one.ckpt"
    ended(**GPT, steps="1", sparse_states=True, grid="x=2", save=path)
    stored = open_checkpoint(str(path)).stored
    kept = 36 * 144 - sum(int(0.8 * rows * columns + 0.5) for rows in (16, 16, 4) for columns in (64, 64, 16))
    for name in ("up W layer 0", "mean of up W layer 0", "square of up W layer 0"):
        assert (stored[name].shape, stored[name].dtype) == ((1, kept), "float64")
    assert (stored["up W index layer 0"].shape, stored["up W index layer 0"].dtype) == ((1, kept), "int32")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"sparsity": "0.5"}, "a sparsity of 0.8"),
        ({"sparsity": "0"}, "has 'QKV W index layer 0', which"),
        ({"gpt": SIZES.replace("36", "48")}, "is of gpt"),
    ],
)
def test_a_checkpoint_of_another_mask_is_refused(tmp_path, flags, line):
    path = tmp_path / "one.ckpt"
    ended(**GPT, steps="1", save=path)
    with pytest.raises(InputError, match=line):
        ended(**GPT | flags, load=path)


def test_a_checkpoint_without_a_mask_is_refused(tmp_path):
    path = tmp_path / "dense.ckpt"
    ended(**GPT | {"sparsity": "0"}, save=path)
    with pytest.raises(InputError, match="has no 'QKV W index layer 0'"):
        ended(**GPT, load=path)


def with_index(path, change):
    """Changes the first index of a checkpoint, with correct checksums."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    name = "QKV W index layer 0"
    start, stop = header[name]["data_offsets"]
    index = np.frombuffer(bytes(body[start:stop]), np.int32).copy()
    change(index)
    body[start:stop] = index.tobytes()
    header["__metadata__"][f"sha256 of {name}"] = sha256(bytes(body[start:stop])).hexdigest()
    header["__metadata__"]["sha256"] = ZERO_CHECKSUM
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 8)
    text = text.replace(ZERO_CHECKSUM.encode(), sha256(text).hexdigest().encode(), 1)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(body))


def swapped(index):
    index[[0, 1]] = index[[1, 0]]


def outside(index):
    index[0] = 36 * 108


def negative(index):
    index[0] = -1


def in_another_tile(index):
    index[0] = 64


@pytest.mark.parametrize("change", [swapped, outside, negative, in_another_tile])
def test_an_index_outside_of_its_tiles_is_refused(tmp_path, change):
    path = tmp_path / "one.ckpt"
    ended(**GPT, steps="1", save=path)
    with_index(path, lambda index: None)
    ended(**GPT, load=path)
    with_index(path, change)
    with pytest.raises(InputError, match="'QKV W index layer 0' has positions that do not rise inside of their tiles"):
        ended(**GPT, load=path)
