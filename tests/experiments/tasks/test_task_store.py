"""`TaskStore`: what it keeps, and the files that it refuses in one line."""

import os
import resource
import sqlite3
import subprocess
from contextlib import closing

import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.experiments.tasks.task_store import APPLICATION_ID, PAGE_BYTES, VERSION, TaskStore


def keep(store, number, result="1"):
    store.keep(number.to_bytes(32), "square", str(number), result, "code")


def kept(path):
    """The results of a store, by number, as SQLite itself reads them."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            int.from_bytes(digest): text for digest, text in connection.execute("SELECT digest, result FROM results")
        }


def test_a_result_is_there_for_the_next_process_as_soon_as_it_is_kept(tmp_path):
    path = str(tmp_path / "s.sqlite")
    with TaskStore(path) as first, TaskStore(path) as second:
        assert first.result(bytes(32)) is None
        keep(first, 1, "[1]")
        keep(second, 2, "[2]")
        assert kept(path) == {1: "[1]", 2: "[2]"}
        assert first.result((2).to_bytes(32)) == "[2]" and len(second) == 2
    with TaskStore(path) as again:
        assert again.result((1).to_bytes(32)) == "[1]"


def test_an_empty_file_becomes_a_store(tmp_path):
    """A process that is killed while it creates a store leaves one."""
    path = tmp_path / "s.sqlite"
    path.touch()
    with TaskStore(str(path)) as store:
        keep(store, 1)
    assert kept(path) == {1: "1"}


def other_database(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["CREATE TABLE songs (title)"], "is the database of another program; accepted is a new file or a store"),
        (["PRAGMA application_id=7"], "is the database of another program"),
        (["PRAGMA user_version=3"], "is the database of another program"),
        (
            [f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={VERSION + 1}"],
            f"a store of version {VERSION + 1}, written by a newer Quadrille; this one reads version {VERSION}",
        ),
        (
            [
                f"PRAGMA application_id={APPLICATION_ID}",
                f"PRAGMA user_version={VERSION}",
                "CREATE TABLE results (digest, text)",
            ],
            "is a store without its table of digest, task, label, result, quadrille; accepted is a new file or a store",
        ),
        (
            [f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={VERSION}", "CREATE TABLE songs (title)"],
            "is a store without its table",
        ),
    ],
)
def test_another_database_is_refused_and_stays_as_it_is(tmp_path, statements, reason):
    path = tmp_path / "other.sqlite"
    other_database(path, *statements)
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"--store {path}: {reason}"):
        TaskStore(str(path))
    assert path.read_bytes() == before


def test_paths_that_can_be_no_store_are_refused(tmp_path):
    text = tmp_path / "text.toml"
    text.write_text("name = 'toy'\n" * 100)
    for path, reason in [
        (text, "is no SQLite file"),
        (tmp_path, "a store is a file"),
        ("-", "a store is a file"),
        ("/dev/null", "a store is a file"),
        (tmp_path / "none" / "s.sqlite", "there is no folder"),
    ]:
        with pytest.raises(InputError, match=f"--store {path}: {reason}"):
            TaskStore(str(path))
    assert text.read_text().startswith("name")


def test_a_full_disk_is_one_line_and_the_store_keeps_what_it_has(tmp_path):
    """SQLite reports a database at its largest size as it reports a full disk."""
    path = str(tmp_path / "s.sqlite")
    with TaskStore(path) as store:
        store._connection.execute("PRAGMA max_page_count=4")
        with pytest.raises(RunError, match=r"cannot be written: database or disk is full; .*; it keeps the results"):
            for number in range(1000):
                keep(store, number, "x" * 200)
    results = kept(path)
    assert number > 0 and set(results) == set(range(number)) and set(results.values()) == {"x" * 200}


@pytest.mark.parametrize("bytes_of_files", [0, 1024, 4096, 12288])
def test_a_store_for_which_there_is_no_space_leaves_no_file_but_one_that_was_there(tmp_path, bytes_of_files):
    """A limit of the size of files refuses writes as a full disk does: of the file, of shared memory, of the log."""
    new, there = tmp_path / "new" / "s.sqlite", tmp_path / "there" / "s.sqlite"
    for path in (new, there):
        path.parent.mkdir()
    there.touch()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_files, limits[1]))
    try:
        for path in (new, there):
            with pytest.raises(InputError, match=f"--store {path}: .*; free some space"):
                TaskStore(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(new.parent.iterdir()) and there.is_file()
    with TaskStore(str(there)) as store:
        keep(store, 1)
    assert kept(there) == {1: "1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_takes_no_store_and_keeps_no_part_of_one(tmp_path):
    pages = 64
    mount = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE_BYTES}", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounts are not permitted here")
    try:
        for free in range(11):
            (tmp_path / "large").write_bytes(bytes((pages - free) * PAGE_BYTES))
            with pytest.raises(InputError, match="disk"):
                TaskStore(str(tmp_path / "s.sqlite"))
            assert [path.name for path in tmp_path.iterdir()] == ["large"], free
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("length", [100, 4096, 6000])
def test_a_store_that_is_cut_off_is_refused_and_not_taken_as_empty(tmp_path, length):
    path = tmp_path / "s.sqlite"
    with TaskStore(str(path)) as store:
        keep(store, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with pytest.raises(InputError, match=f"is cut off: it has {length} of {len(whole)} bytes; accepted is a new file"):
        TaskStore(str(path))
    assert path.stat().st_size == length


def test_a_damaged_store_is_refused(tmp_path):
    path = tmp_path / "s.sqlite"
    with TaskStore(str(path)) as store:
        keep(store, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes([255]) * (len(whole) - 4096))
    with TaskStore(str(path)) as store, pytest.raises(InputError, match=r"is damaged .*; accepted is a new file or a"):
        store.result(bytes(32))


def test_a_log_of_a_killed_process_is_no_damage(tmp_path):
    """The file is shorter than the database until the log is moved into it."""
    path, copy = tmp_path / "s.sqlite", tmp_path / "copy.sqlite"
    with TaskStore(str(path)) as store:
        for number in range(50):
            keep(store, number, "[" + "1," * 999 + "1]")
        copy.write_bytes(path.read_bytes())
        copy.with_name("copy.sqlite-wal").write_bytes(path.with_name("s.sqlite-wal").read_bytes())
    with TaskStore(str(copy)) as store:
        assert len(store) == 50


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_store_on_a_disk_that_cannot_be_written_is_refused(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounts are not permitted here")
    try:
        with TaskStore(str(tmp_path / "s.sqlite")) as store:
            keep(store, 1)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        for name, reason in (("s", "the file is read-only"), ("new", "the folder .* is read-only")):
            with pytest.raises(InputError, match=f"cannot be written: {reason}; name a file that can be written"):
                TaskStore(str(tmp_path / f"{name}.sqlite"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
