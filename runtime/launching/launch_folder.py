"""The temporary folder of a launch: it records all files that killed ranks may leave behind, and is removed at the end.

All processes of a launch have the folder's name in their environment (`QUADRILLE_LAUNCH`). Shared memory lives in the
folder, and a list of the files being written. The folder's name holds the launching process and its start time.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.atomic_files import has_ended, is_private_folder, remove_hidden_file, start_ticks
from quadrille.runtime.host.console import remark
from quadrille.runtime.host.world import LAUNCH

PARTIAL_FILES = "partial files"
"""A file in the folder: the paths of the files that the ranks are writing, separated by NUL."""
FOLDER_NAME = re.compile(r"quadrille-(\d+)-(\d+)-\w+")
"""The launching process, its start time, and a random word."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it has a name of its own


def memory_folder(shared_memory: Path = SHARED_MEMORY) -> str | None:
    """The folder for shared memory files; None, which means the temporary folder, if there is none.

    Killed ranks leave shared memory segments behind. So the segments are created in the launch's folder, which is
    removed with its contents.
    """
    return str(shared_memory) if os.access(shared_memory, os.W_OK) else None


def parent_folder(needed: int, shared_memory: Path = SHARED_MEMORY) -> str:
    """The folder where a launch makes its folder: shared memory, or the temporary folder if shared memory lacks room.

    Without room, a rank that writes to its shared memory is killed by SIGBUS.

    Parameters
    ----------
    needed : room that the ranks need at most [B]

    Raises
    ------
    InputError : neither folder has room
    """
    memory, temporary = memory_folder(shared_memory), tempfile.gettempdir()
    if memory is None:
        return temporary
    free = shutil.disk_usage(memory).free
    if free >= needed:
        return memory
    fault = f"shared memory {memory} has {free} bytes free, the ranks may need {needed}"
    room = shutil.disk_usage(temporary).free
    if room < needed:
        raise InputError(f"{fault}; temporary folder {temporary} has {room}, and TMPDIR can name another")
    remark(f"{fault}: files in {temporary} are their shared memory, which may be slower")
    return temporary


def folder_prefix() -> str:
    """The first part of the name of a launch folder of this process."""
    own = os.getpid()
    return f"quadrille-{own}-{start_ticks(own)}-"


def remove_abandoned(shared_memory: Path = SHARED_MEMORY) -> None:
    """Remove the folders of launches that were killed; nobody else would free their shared memory."""
    parents = {Path(memory_folder(shared_memory) or tempfile.gettempdir()), Path(tempfile.gettempdir())}
    for folder in (folder for parent in parents for folder in parent.glob("quadrille-*")):
        match = FOLDER_NAME.fullmatch(folder.name)
        if not match or not is_private_folder(folder) or not has_ended(int(match[1]), int(match[2])):
            continue
        if not processes_of_launch(str(folder)):
            with contextlib.suppress(OSError):
                remove_partial_files(str(folder))
                shutil.rmtree(folder)


def note_partial_files(folder: str | None, paths: Sequence[Path]) -> None:
    """Record files that the launch removes at its end, in case no rank survives to do so.

    Nothing is recorded outside a launch, or on hosts other than the launcher's.
    """
    if folder and is_private_folder(folder):
        Path(folder, PARTIAL_FILES).write_text("\0".join(map(str, paths)))


def remove_partial_files(folder: str) -> None:
    """Remove the partial files of killed ranks; a finished file has another name."""
    if not is_private_folder(folder):
        return
    with contextlib.suppress(OSError):
        for path in filter(None, Path(folder, PARTIAL_FILES).read_text().split("\0")):
            remove_hidden_file(Path(path))


def processes_of_launch(mark: str) -> list[int]:
    """The processes of this host whose environment holds the launch `mark`."""
    wanted = f"{LAUNCH}={mark}\0".encode()
    pids = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes():
                pids.append(int(entry.parent.name))
    return pids
