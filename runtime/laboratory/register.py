"""What laboratories stand on this machine: a file for each, written before anything is made.

A file lists the names of all namespaces that its laboratory may have made, so
whatever was left by a process that was killed is found and taken down.
"""

import fcntl
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import files
from quadrille.runtime.host import processes
from quadrille.runtime.host.console import remark

FOLDER = Path("/run/quadrille")
LOOK_SECONDS, PATIENCE_SECONDS = 0.02, 2.0
"""Between two looks at the lock of the register; after which time a word is said [s]."""
NAME = re.compile("[a-z0-9]{1,16}")
SCHEMA = "quadrille/laboratory/1"


class LaboratoryRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A laboratory.

    Parameters
    ----------
    name : its name
    topology : what was asked for, as it was typed
    addresses : of each host
    namespaces : of each place, hosts and switches
    rates : of each link, by its name [B/s]
    in_full : the topology with the rates that its links have, as `calibrate` takes it; empty where nothing says them
    routing : the rule of its routes
    owner : process whose end is the laboratory's end, which the one that builds it always is; 0 once it stands, for
        one that stays until it is taken down
    owner_started : when that process started, in the kernel's clock ticks, which tells it from a later one
    """

    name: str
    topology: str
    addresses: dict[str, str]
    namespaces: dict[str, str]
    rates: dict[str, float]
    in_full: str = ""
    routing: str = "shortest"
    owner: int = 0
    owner_started: int = 0

    @property
    def abandoned(self) -> bool:
        """Whether the process that owned it is gone."""
        return self.owner != 0 and processes.has_ended(self.owner, self.owner_started)


def check_name(name: str) -> str:
    """The name of a laboratory.

    Raises
    ------
    InputError : what cannot be part of a host's name
    """
    if not NAME.fullmatch(name):
        raise InputError(f"laboratory {name!r:.40}: up to 16 small letters and digits are accepted")
    return name


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def _agent_of(name: str) -> Path:
    return FOLDER / f"{name}.sh"


@contextmanager
def locked_register() -> Iterator[None]:
    """One process of this machine at a time: nobody enters a laboratory between what is read here and written."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    folder = os.open(FOLDER, os.O_RDONLY | os.O_CLOEXEC)
    try:
        begin = time.monotonic()
        while not _locked(folder):
            if time.monotonic() - begin > PATIENCE_SECONDS:
                remark("another process is bringing a laboratory up or taking one down: waiting for it")
                fcntl.flock(folder, fcntl.LOCK_EX)
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def write(entry: LaboratoryRecord) -> None:
    """Enter a laboratory; a reader sees all of it, or what was there before."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    files.write_json(path_of(entry.name), entry, SCHEMA)


def read(name: str) -> LaboratoryRecord | None:
    """The laboratory of this name; None where there is none, or no longer: another process may end it at any time.

    Raises
    ------
    InputError : a file that holds something else
    """
    path = path_of(name)
    try:
        return files.read(path, LaboratoryRecord, SCHEMA)
    except InputError:
        if path.exists():
            raise
        return None


def write_agent(name: str, words: Sequence[str]) -> Path:
    """The script that stands for ssh in a laboratory; a shell is told to run it, where /run forbids programs."""
    path = _agent_of(name)
    files.write_text(path, f'exec {shlex.join(words)} "$@"\n')
    return path


def remove(name: str) -> None:
    """Take a laboratory from the register."""
    _agent_of(name).unlink(missing_ok=True)
    path_of(name).unlink(missing_ok=True)


def every() -> Iterator[LaboratoryRecord]:
    """All laboratories of this machine, by name; a file that holds something else is passed over with a remark."""
    for path in sorted(FOLDER.glob("*.json")):
        try:
            entry = read(path.stem)
        except InputError as error:
            remark(f"{error}; it is passed over")
            continue
        if entry is not None:
            yield entry


def belongs_to_other(*own: LaboratoryRecord) -> bool:
    """Whether a laboratory was taken down since, and its name is that of one which another process brought up.

    Parameters
    ----------
    own : what is or was entered of it
    """
    with suppress(InputError):
        found = read(own[0].name)
        owners = {(one.owner, one.owner_started) for one in own}
        return found is not None and (found.owner, found.owner_started) not in owners
    return False


def own_start() -> tuple[int, int]:
    """The owner that this process is, and when it started."""
    return os.getpid(), processes.start_ticks(os.getpid())
