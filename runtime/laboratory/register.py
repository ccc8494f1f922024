"""The register of the laboratories (emulated networks) on this machine: one file for each, written before its creation.

A file lists all namespaces that its laboratory may have created. So the remains of a killed process can be found and
taken down.
"""

import fcntl
import os
import re
import shlex
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.atomic_files import has_ended, start_ticks
from quadrille.runtime.host.console import remark

FOLDER = Path("/run/quadrille")
LOOK_SECONDS, PATIENCE_SECONDS = 0.02, 2.0
"""The time between two attempts to lock the register, and the time after which a remark is printed [s]."""
NAME = re.compile("[a-z0-9]{1,16}")
SCHEMA = "quadrille/laboratory/1"


class LaboratoryRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The register entry of a laboratory.

    Parameters
    ----------
    name : name of the laboratory
    topology : topology as the user typed it
    addresses : address of each host
    namespaces : namespace of each node, hosts and switches
    rates : rate of each link by its name [B/s]
    in_full : topology with the rates of its links, in the notation of `calibrate`; empty if the notation cannot
        express it
    routing : routing rule
    owner : id of the process whose end is the laboratory's end: the building process until the laboratory is up; then 0
        for a laboratory that stays until it is taken down
    owner_started : start time of that process in the kernel's clock ticks, which distinguishes it from a later process
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
        """Whether the owning process is gone."""
        return self.owner != 0 and has_ended(self.owner, self.owner_started)


def check_name(name: str) -> str:
    """The name, if it is a valid name of a laboratory.

    Raises
    ------
    InputError : a text that cannot be part of a host name
    """
    if not NAME.fullmatch(name):
        raise InputError(f"laboratory {name!r:.40}: up to 16 small letters and digits are accepted")
    return name


@dataclass(frozen=True, slots=True)
class Register:
    """A register: a folder with one file for each laboratory."""

    folder: Path = FOLDER

    def path_of(self, name: str) -> Path:
        """The path of a laboratory's register file."""
        return self.folder / f"{name}.json"

    def _agent_of(self, name: str) -> Path:
        return self.folder / f"{name}.sh"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A context with an exclusive lock on the register."""
        self._make_folder()
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
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

    def write(self, entry: LaboratoryRecord) -> None:
        """Write a laboratory's entry; readers see the complete new entry or the old one."""
        self._make_folder()
        schema_files.write_json(self.path_of(entry.name), entry, SCHEMA, mode=0o600)

    def _make_folder(self) -> None:
        """Create the register's folder, accessible to this user only.

        Raises
        ------
        RunError : something else has its name
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        status = self.folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise RunError(f"{self.folder} is not a folder of this user; laboratories are registered there: remove it")
        self.folder.chmod(0o700)

    def read(self, name: str) -> LaboratoryRecord | None:
        """The laboratory of this name; None if there is none. Another process may remove it at any time.

        Raises
        ------
        InputError : a file that holds something else
        """
        path = self.path_of(name)
        try:
            return schema_files.read(path, LaboratoryRecord, SCHEMA)
        except InputError:
            if path.exists():
                raise
            return None

    def write_agent(self, name: str, words: Sequence[str]) -> Path:
        """The script that replaces ssh in a laboratory. A shell runs it, because /run may forbid execution."""
        path = self._agent_of(name)
        schema_files.write_text(path, f'exec {shlex.join(words)} "$@"\n', mode=0o700)
        return path

    def remove(self, name: str) -> None:
        """Remove a laboratory's entry."""
        self._agent_of(name).unlink(missing_ok=True)
        self.path_of(name).unlink(missing_ok=True)

    def every(self) -> Iterator[LaboratoryRecord]:
        """All laboratories in the register, by name; a file that holds something else is skipped with a remark."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                entry = self.read(path.stem)
            except InputError as error:
                remark(f"{error}; it is passed over")
                continue
            if entry is not None:
                yield entry

    def belongs_to_other(self, *own: LaboratoryRecord) -> bool:
        """Whether a laboratory was taken down in the meantime and another process has reused its name.

        Parameters
        ----------
        own : entries that this process has registered for it
        """
        with suppress(InputError):
            current = self.read(own[0].name)
            owners = {(record.owner, record.owner_started) for record in own}
            return current is not None and (current.owner, current.owner_started) not in owners
        return False


MACHINE_REGISTER = Register()


def _locked(folder: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def own_start() -> tuple[int, int]:
    """The process id and start time of this process."""
    return os.getpid(), start_ticks(os.getpid())
