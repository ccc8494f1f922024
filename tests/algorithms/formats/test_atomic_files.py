"""Files while they are written: what another user planted, permissions, and what killed writers leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.atomic_files import (
    HiddenFile,
    open_folder,
    remove_abandoned,
    replace_file,
    target_of,
    writer_token,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


@pytest.fixture
def shared(tmp_path):
    """A folder that everybody can write, as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize(
    ("links", "path", "means"),
    [
        ({}, "c.npy", "c.npy"),
        ({"link": "c.npy"}, "link", "c.npy"),
        ({"link": "sub/../deeper"}, "link/c.npy", "deeper/c.npy"),
        ({"link": "sub/inner", "sub/inner": "../c.npy"}, "link", "c.npy"),
        ({"link": "sub"}, "link/../c.npy", "c.npy"),
        ({"sub/inner": "../deeper/bottom"}, "sub/inner/../c.npy", "deeper/c.npy"),
        ({"gone": "nowhere/c.npy"}, "gone", "nowhere/c.npy"),
    ],
)
def test_a_target_is_where_the_system_would_write(tmp_path, links, path, means):
    for folder in ("sub", "deeper/bottom"):
        (tmp_path / folder).mkdir(parents=True)
    for link, pointed in links.items():
        (tmp_path / link).symlink_to(pointed)
    assert target_of(tmp_path / path) == tmp_path / means
    assert str(target_of(tmp_path / path)) == os.path.realpath(tmp_path / path)


def test_links_in_a_circle_a_zero_byte_and_a_folder_that_is_gone_are_refused(tmp_path, monkeypatch):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(InputError, match="circle"):
        target_of(tmp_path / "one")
    with pytest.raises(InputError, match="zero byte"):
        target_of("a\0b")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match="working folder is gone"):
        target_of("c.npy")


@as_root
@pytest.mark.parametrize("path", ["link", "folder/c.json", "deep/er/link"])
def test_a_link_that_another_user_planted_is_refused_and_its_target_stays(shared, tmp_path, path):
    victim = tmp_path / "victim.json"
    victim.write_text("precious")
    (shared / "deep/er").mkdir(parents=True)
    for link, pointed in (("link", victim), ("folder", tmp_path), ("deep/er/link", victim)):
        (shared / link).symlink_to(pointed)
        os.lchown(shared / link, NOBODY, NOBODY)
    with pytest.raises(InputError, match="link that another user made"):
        schema_files.write_text(shared / path, "new")
    with pytest.raises(InputError, match="link that another user made"):
        schema_files.check_writable(shared / path)
    assert victim.read_text() == "precious" and not (tmp_path / "c.json").exists()


def test_a_folder_that_becomes_a_link_after_the_check_is_not_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    hidden = HiddenFile(target_of(tmp_path / "folder/c.npy"), writer_token())
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").symlink_to("elsewhere")
    with pytest.raises(OSError):
        hidden.create()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("planted", ["file", "link", "hard link"])
def test_a_hidden_file_is_neither_made_over_nor_opened_through_what_another_put_there(tmp_path, planted):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    hidden = HiddenFile(target_of(tmp_path / "c.npy"), writer_token())
    if planted == "file":
        hidden.path.write_text("theirs")
    elif planted == "link":
        hidden.path.symlink_to(victim)
    else:
        hidden.path.hardlink_to(victim)
    with pytest.raises(FileExistsError):
        hidden.create()
    if planted != "file":
        with pytest.raises(OSError):
            hidden.open()
    assert victim.read_text() == "precious"


def test_a_folder_through_which_one_may_only_pass_is_passed(tmp_path):
    (tmp_path / "passed/below").mkdir(parents=True)
    (tmp_path / "passed").chmod(0o311)
    replace_file(target_of(tmp_path / "passed/below/c.json"), b"new")
    (tmp_path / "passed").chmod(0o755)
    assert (tmp_path / "passed/below/c.json").read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o666, 0o755])
def test_a_replaced_file_has_its_permissions_from_the_first_byte_on(tmp_path, mode, monkeypatch):
    path = tmp_path / "c.json"
    path.write_text("old")
    path.chmod(mode)
    seen = []
    written = os.fdopen

    def watched(handle, *rest):
        seen.append(os.fstat(handle).st_mode & 0o777)
        return written(handle, *rest)

    monkeypatch.setattr(os, "fdopen", watched)
    replace_file(path, b"new")
    assert seen == [mode] and path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_with_permissions_of_its_own_heeds_no_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        schema_files.write_text(tmp_path / "agent.sh", "exec true\n", mode=0o700)
        schema_files.write_text(tmp_path / "plain.txt", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "agent.sh").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "plain.txt").stat().st_mode & 0o777 == 0o666 & ~umask


KILLED = """
import os, sys
from pathlib import Path
from quadrille.algorithms.formats import atomic_files
atomic_files.HiddenFile.replace_target = lambda hidden: os.kill(os.getpid(), 9)
atomic_files.replace_file(Path(sys.argv[1]), b"half")
"""


def test_what_a_killed_writer_left_goes_with_the_next_write_of_the_same_file(tmp_path):
    target, another = tmp_path / "c.json", tmp_path / "d.json"
    for path in (target, another):
        subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    schema_files.write_text(target, "whole")
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 2 and "c.json" in left and any(name.startswith(".d.json.") for name in left)


@as_root
def test_what_belongs_to_another_user_is_not_swept(tmp_path):
    target = tmp_path / "c.json"
    subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    os.chown(left, NOBODY, NOBODY)
    remove_abandoned(target)
    assert left.exists()


def test_trying_out_a_folder_leaves_nothing_even_while_it_is_tried(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: seen.append(list(tmp_path.iterdir())))
    HiddenFile(tmp_path / "c.npy", writer_token()).check_space(100)
    monkeypatch.delattr(os, "O_TMPFILE")
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY, raising=False)  # a file system without unnamed files
    HiddenFile(tmp_path / "c.npy", writer_token()).check_space(100)
    assert seen == [[], []] and not list(tmp_path.iterdir())


def test_a_name_as_long_as_a_name_can_be_is_written_and_a_longer_one_is_refused_in_one_line(tmp_path):
    longest = tmp_path / ("é" * 127)
    schema_files.write_text(longest, "text")
    assert longest.read_text() == "text"
    with pytest.raises((InputError, RunError), match="name too long"):
        schema_files.write_text(tmp_path / ("n" * 300), "text")


def test_a_pipe_with_a_reader_is_written_and_one_without_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RunError, match="cannot be written"):
        schema_files.write_text(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    schema_files.write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    schema_files.write_text("/dev/null", "text")


def test_a_folder_s_handle_needs_every_component_to_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(".")
    with open_folder(tmp_path) as handle:
        assert "file" in [path.name for path in Path(f"/proc/self/fd/{handle}").iterdir()]
    for name in ("file", "link", "nowhere"):
        with pytest.raises(OSError), open_folder(Path(tmp_path, name)):
            pass
