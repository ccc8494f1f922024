"""Matrices in files: what is refused, and writing complete or not at all."""

import os
import subprocess
import sys

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.atomic_files import writer_token
from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.files.matrix_files import (
    MatrixWriter,
    check_writable,
    commit_all,
    discard_all,
    file_dtype,
    open_matrix,
    open_operands,
)
from quadrille.runtime.operands.rectangles import Rectangle, whole

VALUES = np.random.default_rng(0).random((5, 7))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


@pytest.fixture
def saved(tmp_path):
    def save(array, name="a.npy"):
        np.save(tmp_path / name, array)
        return tmp_path / name

    return save


@pytest.mark.parametrize("array", [VALUES, np.asfortranarray(VALUES), VALUES.astype(">f8")])
def test_a_matrix_is_mapped_in_either_order_of_elements_and_bytes(saved, array):
    opened = open_matrix(saved(array), (5, 7), "float64")
    assert isinstance(opened, np.memmap)
    assert not opened.flags.writeable
    np.testing.assert_array_equal(opened, VALUES)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (VALUES.T, "shape 7 x 5"),
        (VALUES[:, :6], "shape 5 x 6"),
        (VALUES[0], "shape 7;"),
        (VALUES[None], "shape 1 x 5 x 7"),
        (VALUES.astype("f4"), "float32 elements"),
        (VALUES.astype(int), "int64 elements"),
        (VALUES.astype(complex), "complex128 elements"),
        (np.array([[{}]], object), "not a plain array"),
    ],
)
def test_another_array_is_refused_with_what_it_holds_and_what_is_accepted(saved, array, says):
    path = saved(array)
    with pytest.raises(InputError) as refused:
        open_matrix(path, (5, 7), "float64", "--b")
    message = str(refused.value)
    assert message.startswith(f"--b {path} ")
    assert says in message
    assert "5 x 7 matrix of float64 is accepted" in message
    assert "\n" not in message


@pytest.mark.filterwarnings("error")
def test_a_header_that_python_2_wrote_is_read_without_a_warning(saved):
    path = saved(VALUES)
    content = path.read_bytes().replace(b"(5, 7), }  ", b"(5L, 7L), }")
    path.write_bytes(content)
    assert b"5L" in content
    np.testing.assert_array_equal(open_matrix(path, (5, 7), "float64"), VALUES)


@pytest.mark.parametrize("keep", [0, 3, 6, 9, 20, 64, 127, 128, 200, -1])
def test_a_truncated_file_is_refused_wherever_it_ends(saved, keep):
    path = saved(VALUES)
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    with pytest.raises(InputError, match=r"is truncated|is empty|is not a .npy file"):
        open_matrix(path, (5, 7), "float64")


@pytest.mark.parametrize(
    "content", [b"1,2,3\n" * 50, b"\x93NUMPY\x01\x00\x10\x00{'descr': (((  \n", b"\x93NUMPY\x09\x00"]
)
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "a.npy"
    path.write_bytes(content + b"\n" * 200)
    with pytest.raises(InputError, match=r"is not a .npy file|is truncated, or not a plain array"):
        open_matrix(path, (5, 7), "float64")


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused = {
        "none.npy": "no such file",
        "": "not a regular file",
        "pipe": "not a regular file",
        "c" * 300: "too long",
    }
    for name, says in refused.items():
        with pytest.raises(InputError, match=says):
            open_matrix(tmp_path / name, (5, 7), "float64")


def test_operands_are_opened_by_name_and_generated_otherwise(saved):
    operands = open_operands(3, 5, 7, "float64", seed=2, paths={"A": None, "B": saved(VALUES)})
    assert list(operands.files) == ["B"]
    np.testing.assert_array_equal(operands.block("B", whole((5, 7))), VALUES)
    with pytest.raises(InputError, match=r"--dc .*shape 5 x 7.* 3 x 7 matrix"):
        open_operands(3, 5, 7, "float64", paths={"dC": saved(VALUES)})


def test_integers_are_refused_where_any_product_of_the_passes_sums_too_long():
    assert open_operands(3, 5, 2**20, "float32", kind="integers").exact
    with pytest.raises(InputError, match="n=1048576"):
        open_operands(3, 5, 2**20, "float32", kind="integers", training=True)


def test_many_ranks_write_one_file_that_numpy_reads(tmp_path):
    ranks = [MatrixWriter(tmp_path / "c.npy", (5, 7), "float64", token="9") for _ in range(3)]
    check_writable(ranks[:1])
    assert names(tmp_path) == []
    ranks[0].create()
    ranks[0].write(Rectangle(0, 5, 0, 3), VALUES[:, :3])
    ranks[1].write(Rectangle(0, 2, 3, 7), VALUES[:2, 3:])
    ranks[2].write(Rectangle(2, 5, 3, 7), VALUES[2:, 3:])
    for rank in ranks:
        rank.close()
    assert not (tmp_path / "c.npy").exists()
    commit_all(ranks[:1])
    assert names(tmp_path) == ["c.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), VALUES)
    np.save(tmp_path / "again.npy", VALUES)
    assert (tmp_path / "again.npy").read_bytes() == (tmp_path / "c.npy").read_bytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_pieces_views_and_other_dtypes_are_written_in_their_place(tmp_path, dtype):
    writer = MatrixWriter(tmp_path / "c.npy", (5, 7), file_dtype(dtype))
    writer.create()
    flat = VALUES[1:, 2:].ravel()
    writer.write_block(Block((1, 5), (2, 7), (0, 8)), flat[:8])
    writer.write_block(Block((1, 5), (2, 7), (8, 20)), flat[8:])
    writer.write(Rectangle(0, 5, 0, 2), VALUES.T[:2].T)
    writer.write(Rectangle(0, 1, 2, 7), VALUES[:1, 2:])
    writer.close()
    writer.commit()
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), VALUES.astype(dtype))


def test_an_aborted_run_leaves_the_target_as_it_was(saved, tmp_path):
    path = saved(VALUES, "c.npy")
    before = path.read_bytes()
    writer = MatrixWriter(path, (2, 3), "float32")
    writer.create()
    writer.write(Rectangle(0, 1, 0, 3), np.ones((1, 3), np.float32))
    writer.discard()
    writer.discard()
    assert names(tmp_path) == ["c.npy"]
    assert path.read_bytes() == before


def test_several_outputs_appear_together_or_not_at_all(tmp_path):
    writers = [MatrixWriter(tmp_path / name, (2, 3), "float32") for name in ("c.npy", "da.npy")]
    writers[0].create()
    with pytest.raises(RunError, match=r"da\.npy was not written"):
        commit_all(writers)
    assert names(tmp_path) == []
    for writer in writers:
        writer.create()
    commit_all(writers)
    assert names(tmp_path) == ["c.npy", "da.npy"]
    discard_all(writers)
    assert len(names(tmp_path)) == 2


def test_two_outputs_in_one_file_are_refused(tmp_path):
    writers = [MatrixWriter(tmp_path / "c.npy", (2, 3), "float32", flag=flag) for flag in ("--c", "--da")]
    with pytest.raises(InputError, match="--c and --da both name"):
        check_writable(writers)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none/c.npy", "there is no folder"),
        ("", "not the name of a file"),
        ("pipe", "not a regular file"),
        ("file/c.npy", "no folder"),
        ("c" * 256 + ".npy", "File name too long"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_run(tmp_path, name, says):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    before = names(tmp_path)
    with pytest.raises(InputError, match=f"--da .*{says}"):
        MatrixWriter(tmp_path / name, (2, 3), "float32", flag="--da").check_writable()
    assert names(tmp_path) == before


def test_an_output_larger_than_its_disk_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"needs [0-9]+ bytes and its disk has [0-9]+ free"):
        MatrixWriter(tmp_path / "c.npy", (2**30, 2**30), "float64").check_writable()


def test_what_a_killed_process_of_this_host_left_is_removed_by_the_next_writer(saved, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = writer_token()
    dead = own.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    elsewhere = f"00000000-{ended.pid}-{dead[-8:]}"
    left = {word: tmp_path / f".c.npy.{word}.partial" for word in (dead, own, elsewhere, "quadrille", "dead")}
    other = tmp_path / f".d.npy.{dead}.partial"
    for path in (*left.values(), other):
        path.write_bytes(b"half")
    writer = MatrixWriter(tmp_path / "c.npy", (3, 5), np.float64, token=writer_token())
    writer.create()
    writer.discard()
    assert not left.pop(dead).exists()
    assert all(path.exists() for path in (*left.values(), other))


def test_a_process_that_nobody_waits_for_or_that_has_anothers_number_left_what_it_wrote(tmp_path):
    """A rank whose launcher was killed, too, is a zombie where process 1 waits for nobody."""
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        own = writer_token()
        host, process, begun, word = own.split("-")
        unburied, reused = f"{host}-{zombie.pid}-{begun}-{word}", f"{host}-{process}-{int(begun) - 1}-{word}"
        left = [tmp_path / f".c.npy.{token}.partial" for token in (unburied, reused, own)]
        for path in left:
            path.write_bytes(b"half")
        writer = MatrixWriter(tmp_path / "c.npy", (3, 5), np.float64, token=writer_token())
        writer.create()
        writer.discard()
        assert [path.exists() for path in left] == [False, False, True]


@not_as_root
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        MatrixWriter(tmp_path / "c.npy", (2, 3), "float32").check_writable()


def test_a_link_stays_a_link_and_its_target_is_replaced(saved, tmp_path):
    path = saved(VALUES, "real.npy")
    (tmp_path / "c.npy").symlink_to(path)
    writer = MatrixWriter(tmp_path / "c.npy", (1, 1), "float64")
    writer.create()
    writer.close()
    writer.commit()
    assert (tmp_path / "c.npy").is_symlink()
    assert np.load(path).shape == (1, 1)


def test_a_full_disk_ends_the_run_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    writer = MatrixWriter(tmp_path / "c.npy", (2, 3), "float32")
    writer.create()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"--c .*No space left on device"):
        writer.write(Rectangle(0, 2, 0, 3), np.zeros((2, 3)))
    writer.discard()
    assert names(tmp_path) == []
