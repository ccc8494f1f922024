"""Atomic file replacement: a file is written under a hidden name, which rename(2) then moves to the target.

A reader of the target sees the old content or the new content, never a part. On a shared machine another user may own
the folder, or plant a link or a file under a name that can be guessed. Therefore

- a symbolic link is followed only if this user or root owns it (`target_of`); every other link is refused;
- a folder is opened component by component without following links, and files are named relative to its handle;
- a hidden file is created exclusively, under a random name, with the mode of the file that it replaces; if another user
  owns that file, the umask holds too, so that nobody can have this user make a file that everybody can write;
- a hidden file's name holds its writer, a process. The next writer of the target removes hidden files of processes
  that were killed, if they belong to this user.

Source: openat(2), O_NOFOLLOW and O_EXCL; proc(5), /proc/pid/stat, field 22 (starttime).
"""

import errno
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from quadrille.algorithms.errors import InputError

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LINKS = 40
"""Most links in a path, as in Linux."""
NAME_BYTES = 160
"""Bytes of the target's name in that of the hidden file; a name has at most 255."""
TOKEN = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{16}")


def target_of(path: str | Path) -> Path:
    """The absolute path of the file that `path` names, with all symbolic links resolved.

    >>> target_of("/proc/../etc/./hostname")
    PosixPath('/etc/hostname')

    Raises
    ------
    InputError : a link that belongs to neither this user nor root, or links in a circle
    """
    resolved, links = Path("/"), 0
    rest = [*reversed(_from_root(path).parts[1:])]
    while rest:
        name = rest.pop()
        step = resolved.parent if name == ".." else resolved / name
        owner = _owner_of_link(step)
        if owner is None:
            resolved = step
            continue
        links += 1
        if owner not in (0, os.geteuid()):
            raise InputError(f"{path} leads through {step}, a link that another user made: name the file itself")
        if links > MOST_LINKS:
            raise InputError(f"{path} cannot be written: its links lead in a circle")
        pointed = step.readlink()
        rest += reversed(pointed.parts[1:] if pointed.is_absolute() else pointed.parts)
        resolved = Path("/") if pointed.is_absolute() else resolved
    return resolved


def _from_root(path: str | Path) -> Path:
    """The path from the root on."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r:.60} is not the name of a file: it has a zero byte")
    try:
        return Path.cwd() / path
    except OSError:
        raise InputError(f"{path} cannot be written: the working folder is gone") from None


def _owner_of_link(step: Path) -> int | None:
    """The user id of a symbolic link's owner; None if the path is no link or does not exist."""
    try:
        status = step.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{str(step)[:100]}… cannot be written: {error.strerror}") from None
        return None
    return status.st_uid if stat.S_ISLNK(status.st_mode) else None


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A handle of an absolute folder; no component of its path may be a link.

    Raises
    ------
    OSError : a component is no folder, a link, or not permitted
    """
    handle = os.open("/", FOLDER)
    try:
        for name in folder.parts[1:]:
            deeper = os.open(name, FOLDER, dir_fd=handle)
            os.close(handle)
            handle = deeper
        yield handle
    finally:
        os.close(handle)


class HiddenFile:
    """The hidden file of a target while it is written; several processes may have the same one.

    Parameters
    ----------
    target : absolute path without links (`target_of`)
    token : text that names the writer, equal in all processes that write the file (`writer_token`)
    """

    def __init__(self, target: Path, token: str) -> None:
        self.target = target
        self.path = target.with_name(f"{_hidden_prefix(target)}{token}.partial")

    def create(self, mode: int | None = None) -> int:
        """A handle of the new file for reading and writing.

        Parameters
        ----------
        mode : permissions, whatever the umask; by default those of the target, or of any new file
        """
        with open_folder(self.target.parent) as folder:
            created = 0o666
            if mode is None:
                mode, created = _mode_of(self.target.name, folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK
            handle = os.open(self.path.name, flags, created if mode is None else mode & 0o600, dir_fd=folder)
            if mode is not None:
                os.fchmod(handle, mode)
        return handle

    def open(self) -> int:
        """A handle of the file that another process created, for reading and writing."""
        with open_folder(self.target.parent) as folder:
            handle = os.open(self.path.name, os.O_RDWR | os.O_NONBLOCK | NO_LINK, dir_fd=folder)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(handle)
            raise FileExistsError(errno.EEXIST, f"{self.path.name} was replaced by another program")
        return handle

    def replace_target(self) -> None:
        """Rename the file to its target."""
        with open_folder(self.target.parent) as folder:
            os.replace(self.path.name, self.target.name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self) -> None:
        """Remove the file if it is there; the target stays as it is."""
        with suppress(OSError), open_folder(self.target.parent) as folder:
            os.unlink(self.path.name, dir_fd=folder)

    def check_space(self, content_bytes: int) -> None:
        """Check that the target's folder can be written and has room for a file of this size.

        The bytes are allocated in an unnamed file, which is released at once.

        Parameters
        ----------
        content_bytes : size of the file [B]

        Raises
        ------
        OSError : the folder cannot be written, or its disk is full
        """
        with open_folder(self.target.parent) as folder:
            handle = self._unnamed(folder)
            try:
                if content_bytes:
                    os.posix_fallocate(handle, 0, content_bytes)
            finally:
                os.close(handle)

    def _unnamed(self, folder: int) -> int:
        """A handle of a file without a name."""
        with suppress(OSError):  # a file system without such files
            return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
        handle = self.create()
        self.remove()
        return handle


def remove_abandoned(target: Path) -> None:
    """Remove the hidden files of a target that killed processes of this host and this user left."""
    before = _hidden_prefix(target)
    with suppress(OSError), open_folder(target.parent) as folder:
        for name in _names_in(folder):
            token = name.removeprefix(before).removesuffix(".partial")
            if name != f"{before}{token}.partial" or not _is_abandoned(token):
                continue
            remove_hidden_file(target.parent / name)


def replace_file(target: Path, content: bytes, mode: int | None = None) -> None:
    """Replace the content of the file at `target`, or create the file, in one step.

    Parameters
    ----------
    target : absolute path without links (`target_of`)
    content : new content of the file
    mode : permissions, whatever the umask; by default those of the target, or of any new file

    Raises
    ------
    OSError : the folder cannot be written, or its disk is full; the target is as it was
    """
    remove_abandoned(target)
    hidden = HiddenFile(target, writer_token())
    try:
        with os.fdopen(hidden.create(mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace_target()
    finally:
        hidden.remove()


def is_private_folder(path: str | Path) -> bool:
    """Whether the path is a folder (no link) of this user in which no other user can read or write."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def remove_hidden_file(path: Path) -> None:
    """Remove the hidden file at an absolute path, if this user owns it and no component of its path is a link."""
    if not path.name.startswith(".") or path.suffix != ".partial" or not path.is_absolute():
        return
    with suppress(OSError), open_folder(path.parent) as folder:
        if os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_uid == os.geteuid():
            os.unlink(path.name, dir_fd=folder)


def writer_token() -> str:
    """A token for the files that this process will write: host, process, start time and a random word."""
    own = os.getpid()
    return f"{_host_word()}-{own}-{start_ticks(own)}-{secrets.token_hex(8)}"


def start_ticks(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 if the process is gone or hidden."""
    words = process_status(pid)
    return int(words[19]) if words else 0


def has_ended(pid: int, began: int) -> bool:
    """Whether the process with this number and start time has ended; a zombie has ended.

    A later process with the same number has another start time. A live process that hides its start time has not ended.

    Parameters
    ----------
    pid : number of the process
    began : its start time in clock ticks since boot (`start_ticks`)
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    words = process_status(pid)
    return bool(words) and (words[0] in "ZX" or int(words[19]) != began)


def process_status(pid: int) -> list[str]:
    """The fields of /proc/pid/stat from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _hidden_prefix(target: Path) -> str:
    """The first part of the names of a target's hidden files."""
    return f".{os.fsdecode(os.fsencode(target.name)[:NAME_BYTES])}."


def _names_in(folder: int) -> list[str]:
    """The names of the files in a folder."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return [entry.name for entry in os.scandir(handle)]
    finally:
        os.close(handle)


def _mode_of(name: str, folder: int) -> tuple[int | None, int]:
    """The permissions that replace those of a file in a folder, and the permissions that the umask limits.

    The first is None if the file is not there or another user owns it.
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None, 0o666
    permissions = status.st_mode & 0o777
    return (permissions, 0o666) if status.st_uid == os.geteuid() else (None, permissions & 0o666)


def _is_abandoned(token: str) -> bool:
    """Whether the token belongs to a process of this host that has ended."""
    match = TOKEN.fullmatch(token)
    return match is not None and match[1] == _host_word() and has_ended(int(match[2]), int(match[3]))


def _host_word() -> str:
    """A short hash of this host's name, for file names."""
    return sha256(socket.gethostname().encode()).hexdigest()[:8]
