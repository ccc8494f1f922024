"""Checkpoints: what is saved on one grid goes on on another; what is damaged, foreign or killed harms nothing."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from quadrille.algorithms.errors import InputError
from quadrille.runtime.files.checkpoint_reader import open_checkpoint
from tests.support.quadrille import ROOT, called
from tests.support.training_jobs import SMALL, ended, losses, verdict

GPT = {"gpt": SMALL, "batch": "6", "dtype": "float64"}
GRIDS = [
    {"grid": "y=3"},
    {"grid": "z=3,y=2", "overlap": "oar,ors,oag"},
    {"grid": "x=3", "scheme": "megatron", "sequence_parallel": True},
    {"grid": "z=2,x=3", "scheme": "optimus"},
    {"grid": "z=2,y=2,x=2", "scheme": "bian"},
    {"grid": "pipeline=3,z=2", "micro_batch": "1"},
    {"grid": "data=2,z=3", "zero": "3"},
    {"grid": "data=3,y=2", "zero": "1"},
]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def unbroken():
    return losses(ended(**GPT, steps="5"))


def test_a_resumed_run_drops_the_elements_that_an_unbroken_run_drops(tmp_path):
    path, dropout = tmp_path / "dropout.ckpt", {**GPT, "dropout": "0.2"}
    ended(**dropout, steps="2", save=path)
    continued = losses(ended(**dropout, steps="1", load=path, grid="z=3"))
    np.testing.assert_allclose(continued, losses(ended(**dropout, steps="3"))[2:], rtol=1e-11)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "three.ckpt"
    ended(**GPT, steps="3", grid="z=2,x=2", save=path)
    return path


@pytest.mark.parametrize("other", GRIDS, ids=str)
def test_training_goes_on_from_any_grid_and_scheme_as_if_there_had_been_no_break(unbroken, saved, other):
    run = ended(**GPT, steps="2", load=saved, **other)
    np.testing.assert_allclose(losses(run), unbroken[3:], rtol=1e-11)
    assert verdict(run).ok


@pytest.mark.parametrize("other", GRIDS, ids=str)
def test_what_any_grid_and_scheme_saves_goes_on(unbroken, tmp_path, other):
    path = tmp_path / "two.ckpt"
    ended(**GPT, steps="2", save=path, **other)
    ended(**GPT, steps="1", load=path, save=path, grid="z=3")
    np.testing.assert_allclose(losses(ended(**GPT, steps="2", load=path, grid="x=2")), unbroken[3:], rtol=1e-11)


LLAMA = {**GPT, "gpt": "layers=3,hidden=24,heads=6,sequence=7,vocabulary=127,inner=14,architecture=llama,key_heads=3"}


def test_a_llama_goes_on_on_other_grids_too(tmp_path):
    alone = losses(ended(**LLAMA, steps="4"))
    ended(**LLAMA, steps="1", save=tmp_path / "0", grid="z=2,x=3")
    others = [
        {"grid": "pipeline=3,z=2", "micro_batch": "1"},
        {"grid": "z=2,y=2,x=3", "scheme": "bian"},
        {"grid": "data=2,z=3", "scheme": "optimus", "zero": "2", "recompute": "full"},
    ]
    for step, other in enumerate(others, 1):
        run = ended(**LLAMA, steps="1", load=tmp_path / str(step - 1), save=tmp_path / str(step), **other)
        assert losses(run) == pytest.approx(alone[step : step + 1], rel=1e-11)
        assert verdict(run).ok


def test_a_plain_model_is_named_as_in_older_files_and_another_by_what_differs():
    assert ended(**GPT).experiment.model == "gpt layers=3,hidden=30,heads=6,sequence=7,vocabulary=127"
    assert ended(**LLAMA).experiment.model == (
        "gpt layers=3,hidden=24,heads=6,sequence=7,vocabulary=127,key_heads=3,gated=True,norm=rms,biases=False,"
        "positions=rotary,shared_table=False"
    )


def test_the_file_does_not_depend_on_the_grid_where_sums_do_not(tmp_path):
    """One step of one row on each rank: nothing is added in another order than alone."""
    for name, grid in (("a", "x=1"), ("b", "data=1")):
        ended(mlp="5,7,3", batch="4", save=tmp_path / name, grid=grid)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_layout_is_that_of_safetensors(saved):
    """Read by its published description, with nothing of ours."""
    content = saved.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values())
    assert metadata["steps"] == "3" and metadata["schema"] == "quadrille/checkpoint/1"
    ends = sorted(tuple(one["data_offsets"]) for one in header.values())
    assert ends[0][0] == 0 and ends[-1][1] == len(content) - 8 - length
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    one = header["norm1 γ layer 1"]
    values = np.frombuffer(content, np.float64, 30, 8 + length + one["data_offsets"][0])
    assert one["dtype"] == "F64" and one["shape"] == [1, 30] and np.abs(values - 1).max() < 0.01


# What is refused


def damaged(saved, tmp_path, change):
    path = tmp_path / "damaged.ckpt"
    path.write_bytes(change(saved.read_bytes()))
    return path


def flipped(position):
    def change(content):
        changed = bytearray(content)
        changed[position] ^= 1
        return bytes(changed)

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (flipped(-1), "the checksum of 'up b layer 2' is wrong"),
        (flipped(-2000), "the checksum of "),
        (flipped(100), "is wrong: the file is damaged"),
        (flipped(0), "is no checkpoint"),
        (lambda content: content[:-1], "is truncated: it has "),
        (lambda content: content[:200], "is truncated: its header alone has "),
        (lambda content: content + b"x", "is longer than it should be"),
        (lambda _: b"", "is no checkpoint"),
        (lambda content: content.replace(b"checkpoint/1", b"checkpoint/2", 1), "quadrille/checkpoint/1 is accepted"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(saved, tmp_path, change, line):
    with pytest.raises(InputError) as refused:
        ended(**GPT, load=damaged(saved, tmp_path, change))
    assert line in str(refused.value) and "\n" not in str(refused.value), refused.value


def resealed(saved, folder, change):
    """A copy of a checkpoint whose header is changed and has a right checksum again."""
    content = saved.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = change(header) or header
    zeros = "0" * 64
    header["__metadata__"] = {**header["__metadata__"], "sha256": zeros} if "__metadata__" in header else {}
    text = json.dumps(header).encode()
    text = text.replace(zeros.encode(), sha256(text).hexdigest().encode(), 1)
    path = folder / "resealed.ckpt"
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    return str(path)


def entry(**changes):
    """A change of what the header says of its first tensor."""

    def change(header):
        name = next(name for name in header if name != "__metadata__")
        header[name] |= changes

    return change


def metadata(**changes):
    def change(header):
        header["__metadata__"] |= changes

    return change


def without(key):
    def change(header):
        (header["__metadata__"] if key in header["__metadata__"] else header).pop(key)

    return change


def swapped(header):
    first, second = [name for name in header if name != "__metadata__"][:2]
    header[first]["data_offsets"] = header[second]["data_offsets"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (entry(dtype="F16"), "holds 'F16': accepted are F64, F32"),
        (entry(dtype=3), "Expected `str`"),
        (entry(shape=[-1, 8]), ">= 0"),
        (entry(shape=["8", 8]), "Expected `int`"),
        (entry(shape=[2, 2, 2]), "length <= 2"),
        (entry(shape=[]), "length >= 1"),
        (entry(shape=[10**30, 8]), "are accepted"),
        (entry(shape=[7, 8]), "are accepted"),
        (entry(data_offsets=[8, 16]), "are accepted"),
        (entry(data_offsets=[0]), "what cannot be"),
        (entry(more=1), "unknown field"),
        (swapped, "are accepted"),
        (metadata(steps="-5"), "steps are done: a whole number of up to 12 digits is accepted"),
        (metadata(steps=str(10**18)), "steps are done"),
        (metadata(steps="٣"), "steps are done"),
        (metadata(steps="many"), "steps are done"),
        (metadata(steps=3), "is no checkpoint"),
        (without("steps"), "steps are done"),
        (without("sha256 of up b layer 2"), "has no checksum of 'up b layer 2'"),
        (without("schema"), "safetensors file of another program"),
        (without("__metadata__"), "is no checkpoint|another program"),
        (without("up b layer 2"), "are accepted|longer than it should be|has no"),
    ],
)
def test_a_header_with_a_right_checksum_and_wrong_content_is_refused(saved, tmp_path, change, line):
    with pytest.raises(InputError, match=line) as refused:
        ended(**GPT, load=resealed(saved, tmp_path, change))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_the_order_of_keys_and_vectors_of_one_dimension_make_no_difference(saved, tmp_path, unbroken):
    def change(header):
        for tensor in header.values():
            if tensor.get("shape", [0])[0] == 1:
                tensor["shape"] = tensor["shape"][1:]
        return dict(reversed(header.items()))

    assert losses(ended(**GPT, steps="1", load=resealed(saved, tmp_path, change)))[0] == unbroken[3]


@given(data=strategies.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_change_of_a_header_ends_in_an_exception_of_python(saved, tmp_path, data):
    values = strategies.one_of(
        strategies.none(),
        strategies.booleans(),
        strategies.integers(-(2**70), 2**70),
        strategies.floats(),
        strategies.text(max_size=5),
        strategies.lists(strategies.integers(-9, 2**64), max_size=4),
        strategies.dictionaries(strategies.text(max_size=3), strategies.integers(), max_size=2),
    )

    def change(header):
        table = header[data.draw(strategies.sampled_from(sorted(header)))]
        key = data.draw(strategies.sampled_from(sorted(table)))
        if data.draw(strategies.booleans()):
            table[key] = data.draw(values)
        else:
            del table[key]

    path = resealed(saved, tmp_path, change)
    try:
        opened = open_checkpoint(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert opened.stored == open_checkpoint(str(saved)).stored and opened.steps >= 0


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"gpt": SMALL.replace("layers=3", "layers=2")}, "layers=3"),
        ({"gpt": SMALL.replace("hidden=30", "hidden=36")}, "hidden=30"),
        ({"dtype": "float32"}, "holds float64; float32 is needed"),
        ({"gpt": SMALL + ",norm=rms"}, "one of gpt .*,norm=rms is accepted"),
        ({"gpt": SMALL + ",inner=14"}, "has shape .* is needed"),
    ],
)
def test_another_model_is_refused_naming_what_differs(saved, flags, line):
    with pytest.raises(InputError, match=line):
        ended(**GPT | flags, load=saved)


def test_no_file_a_folder_and_a_matrix_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 3)))
    refused = ((tmp_path / "none", "no such file"), (tmp_path, "not a regular file"), (tmp_path / "a.npy", "is no"))
    for path, line in refused:
        with pytest.raises(InputError, match=line):
            open_checkpoint(str(path))


# On the command line


TINY = ("run", "--mlp", "5,7,3", "--batch", "4", "--repeats", "1", "--warmups", "0", "--json", os.devnull)


def test_a_run_saves_and_another_goes_on(capsys, tmp_path):
    path = tmp_path / "w.ckpt"
    assert called(capsys, *TINY, "--steps", "2", "--save", path).status == 0
    words = [word if word != os.devnull else "-" for word in TINY]
    went_on = json.loads(called(capsys, *words, "--load", path, "--verify").out)
    at_once = json.loads(called(capsys, *words, "--steps", "3").out)
    assert went_on["losses"][0] == at_once["losses"][2] and went_on["verified"]["ok"]
    assert names(tmp_path) == ["w.ckpt"]
    refused = called(capsys, *TINY, "--save", tmp_path / "no" / "w.ckpt")
    assert refused.status == 2 and "there is no folder" in refused.line


def test_a_checkpoint_that_does_not_fit_ends_a_run_with_one_line_and_status_2(capsys, tmp_path):
    path = tmp_path / "w.ckpt"
    assert called(capsys, *TINY, "--save", path).status == 0
    other = [word if word != "5,7,3" else "5,8,3" for word in TINY]
    for words, change, line in (
        (TINY, flipped(-1), "the checksum of "),
        (TINY, lambda content: content[:-1], "is truncated"),
        (other, lambda content: content, "mlp 5,7,3"),
    ):
        refused = called(capsys, *words, "--load", damaged(path, tmp_path, change))
        assert refused.status == 2 and line in refused.line, refused.err


KILLED = """
import os, signal, sys
from quadrille.runtime.files.checkpoint import CheckpointWriter
sealed = CheckpointWriter.seal
CheckpointWriter.seal = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from quadrille.cli.main import main
main(sys.argv[1:])
"""


def test_a_killed_save_leaves_the_one_before(capsys, tmp_path):
    path = tmp_path / "w.ckpt"
    assert called(capsys, *TINY, "--save", path).status == 0
    before = path.read_bytes()
    words = [sys.executable, "-c", KILLED, *TINY, "--steps", "2", "--save", str(path)]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=60)
    assert done.returncode == -9 and path.read_bytes() == before
    assert len(names(tmp_path)) == 2, "the killed one leaves its hidden file"
    assert called(capsys, *TINY, "--load", path, "--save", path).status == 0
    assert names(tmp_path) == ["w.ckpt"] and path.read_bytes() != before
