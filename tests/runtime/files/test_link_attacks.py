"""Another user plants links, pipes and files where root writes, launches and sweeps: files of root stay as they are."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.formats import atomic_files, schema_files
from quadrille.algorithms.formats.atomic_files import writer_token
from quadrille.runtime.launching import launch_folder
from tests.support.crash_trials import WRITERS, is_new
from tests.support.other_user import NOBODY, as_nobody, as_root, start_as_nobody
from tests.support.quadrille import HOST, called, quadrille

pytestmark = as_root
PRECIOUS = b"precious\n"
OF_ONE_PROCESS = ["json", "timeline", "sweep", "toml", "topology", "operands"]
ENDED = subprocess.Popen(["true"])
ENDED.wait()


@pytest.fixture
def places(monkeypatch):
    """A folder that everybody can write, as /tmp is, as the working folder; and a folder of root with a victim."""
    root = Path(tempfile.mkdtemp(prefix="attack-"))
    root.chmod(0o755)
    shared, own = root / "shared", root / "own"
    for folder, mode in ((shared, 0o1777), (own, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    (own / "victim").write_bytes(PRECIOUS)
    (own / "victim").chmod(0o600)
    (own / ".victim.x.partial").write_bytes(PRECIOUS)
    (shared / "toy.toml").write_text(HOST)
    monkeypatch.chdir(shared)
    yield shared, own
    shutil.rmtree(root)


def state(folder):
    """The content, mode, owner and inode of all files below a folder."""
    paths = [folder, *folder.rglob("*")]
    details = {path: path.stat() for path in paths}
    return {
        path: (path.read_bytes() if path.is_file() else None, detail.st_mode, detail.st_uid, detail.st_ino)
        for path, detail in details.items()
    }


def plant(kind, path, victim):
    """Plant something at a path, as the other user."""
    match kind:
        case "link":
            path.symlink_to(victim)
        case "link to a folder":
            path.symlink_to(victim.parent)
        case "link to nowhere":
            path.symlink_to(victim.parent / "new")
        case "pipe":
            os.mkfifo(path, 0o666)
        case "socket":
            socket.socket(socket.AF_UNIX).bind(str(path))
        case "file":
            path.write_bytes(b"theirs")
            path.chmod(0o4777)


def attack(kind, paths, victim):
    """Plant something at several paths; a hard link only where the system permits it."""
    if kind == "hard link":
        if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "0":
            for path in paths:  # as the other user could where the system does not protect
                path.hardlink_to(victim)
            return
        as_nobody(lambda: [path.hardlink_to(victim) for path in paths])
    as_nobody(lambda: [plant(kind, path, victim) for path in paths])


KINDS = ["link", "link to a folder", "link to nowhere", "hard link", "pipe", "socket", "file"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writer", OF_ONE_PROCESS)
def test_what_is_planted_at_the_target_is_refused_or_replaced_and_never_written_through(places, capsys, kind, writer):
    shared, own = places
    writer = WRITERS[writer]
    targets = [shared / name for name in writer.targets]
    attack(kind, targets, own / "victim")
    before = state(own)
    ended = called(capsys, *writer.words.split())
    after = state(own)
    assert after == before
    if kind in ("file", "hard link"):
        assert ended.status == 0, ended.err
        for target in targets:
            assert is_new(target.suffix, target.read_bytes()) and target.stat().st_uid == 0
            assert not target.stat().st_mode & 0o7022  # neither setuid nor open for others to write
    else:
        assert ended.status == 2 and ended.line
        assert all(target.lstat().st_uid == NOBODY for target in targets)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["link", "link to nowhere", "pipe"])
@pytest.mark.parametrize("writer", ["product", "checkpoint"])
def test_ranks_write_through_nothing_that_is_planted_at_their_target(places, kind, writer):
    shared, own = places
    (target,) = WRITERS[writer].targets
    attack(kind, [shared / target], own / "victim")
    before = state(own)
    ended = quadrille(*WRITERS[writer].words.split())
    assert (ended.status, state(own)) == (2, before) and ended.line


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_under_hidden_names_stays_and_the_victim_too(places, kind, monkeypatch):
    shared, own = places
    token = writer_token()
    host, *_, word = token.split("-")
    hidden = [shared / f".c.json.{host}-{ENDED.pid}-1-{word}.partial", shared / f".c.json.{token}.partial"]
    attack(kind, hidden, own / "victim")
    before = state(own)
    schema_files.write_text(shared / "c.json", "new")
    assert (shared / "c.json").read_text() == "new" and hidden[1].lstat()
    if kind != "hard link":
        assert all(path.lstat().st_uid == NOBODY for path in hidden)
    monkeypatch.setattr(atomic_files, "writer_token", lambda: token)  # even a name that was guessed
    with pytest.raises(QuadrilleError):
        schema_files.write_text(shared / "c.json", "newer")
    assert (shared / "c.json").read_text() == "new"
    assert {path: entry[0] for path, entry in state(own).items()} == {path: entry[0] for path, entry in before.items()}


def test_a_target_that_becomes_a_link_and_a_file_in_turn_never_leads_to_the_victim(places):
    shared, own = places
    target, before = shared / "c.json", state(own)

    def race():
        while True:
            for kind in ("file", "link", "link to a folder"):
                try:
                    plant(kind, target, own / "victim")
                    target.unlink()
                except OSError:
                    pass

    attacker, refused, written = start_as_nobody(race), 0, 0
    try:
        for _ in range(300):
            try:
                schema_files.write_text(target, "new")
                written += 1
            except QuadrilleError:
                refused += 1
            if not target.is_symlink() and target.exists() and target.stat().st_uid == 0:
                target.unlink()  # so that the attacker can plant again
    finally:
        os.kill(attacker, signal.SIGKILL)
        os.waitpid(attacker, 0)
    assert state(own) == before and written and refused


@pytest.fixture
def memory(places, monkeypatch):
    """A folder for shared memory that everybody can write, as /dev/shm is."""
    shared, _ = places
    (shared / "memory").mkdir()
    (shared / "memory").chmod(0o1777)
    monkeypatch.setattr(launch_folder, "SHARED_MEMORY", shared / "memory")
    return shared / "memory"


@pytest.mark.parametrize("planted", ["link to a folder with a list", "folder with a list", "folder full of links"])
def test_a_sweep_of_killed_launches_follows_nothing_that_another_user_made(places, memory, planted):
    _, own = places
    folder = memory / f"quadrille-{ENDED.pid}-1-x"
    files = "\0".join(str(own / name) for name in ("victim", ".victim.x.partial"))
    if planted.startswith("link"):
        private = own / "private"
        private.mkdir(mode=0o700)
        (private / launch_folder.PARTIAL_FILES).write_text(files)

    def act():
        if planted.startswith("link"):
            folder.symlink_to(own / "private")
            return
        folder.mkdir(mode=0o700)
        if planted.endswith("list"):
            (folder / launch_folder.PARTIAL_FILES).write_text(files)
        else:
            (folder / launch_folder.PARTIAL_FILES).symlink_to(own / "victim")
            (folder / "deeper").symlink_to(own)

    as_nobody(act)
    before = state(own)
    launch_folder.remove_abandoned()
    assert state(own) == before and folder.lstat().st_uid == NOBODY


def test_a_list_of_an_own_killed_launch_removes_only_own_hidden_files(places, memory):
    shared, own = places
    theirs, through = shared / ".theirs.x.partial", shared / "through"
    as_nobody(lambda: (theirs.write_bytes(b"theirs"), through.symlink_to(own)))
    folder = memory / f"quadrille-{ENDED.pid}-1-x"
    folder.mkdir(mode=0o700)
    listed = [own / "victim", theirs, through / ".victim.x.partial", Path(".victim.x.partial"), own / "../own/victim"]
    launch_folder.note_partial_files(str(folder), listed)
    before = state(own)
    launch_folder.remove_abandoned()
    assert state(own) == before and theirs.exists() and not folder.exists()
