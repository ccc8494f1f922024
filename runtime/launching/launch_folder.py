"""The folder of a launch: what its ranks leave behind when they are killed is found by it, and removed with it.

All processes of one launch carry the name of its folder in their environment
(`QUADRILLE_LAUNCH`): shared memory and the files being written are noted in it.  The name
says which process started it, and when that began.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quadrille.runtime.host import processes
from quadrille.runtime.host.world import LAUNCH

PARTIAL_FILES = "partial files"
"""In the folder of a launch: paths of the files that its ranks are writing, a NUL between two."""
FOLDER_NAME = re.compile(r"quadrille-(\d+)-(\d+)-\w+")
"""The process that launched, when it began, and a word by chance."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it has a name of its own


def memory_folder() -> str | None:
    """Where shared memory is kept as files; None (the usual place for temporary files) if there is none.

    Killed ranks leave their segments of shared memory behind, so these are
    made in the launch's own folder, which is removed with all that is in it.
    """
    return str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None


def folder_prefix() -> str:
    """What the name of the folder of a launch by this process begins with."""
    own = os.getpid()
    return f"quadrille-{own}-{processes.start_ticks(own)}-"


def remove_abandoned() -> None:
    """Remove the folders of launches that were killed before they could do it; nobody else would free their memory."""
    for folder in Path(memory_folder() or tempfile.gettempdir()).glob("quadrille-*"):
        found = FOLDER_NAME.fullmatch(folder.name)
        if found and processes.has_ended(int(found[1]), int(found[2])) and not processes_of_launch(str(folder)):
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.geteuid():
                    remove_partial_files(str(folder))
                    shutil.rmtree(folder)


def note_partial_files(folder: str | None, paths: Sequence[Path]) -> None:
    """Have the launch whose folder this is remove these files at its end, should no rank live to do it.

    Nothing is noted outside a launch, or on another host than the launcher's.
    """
    if folder and Path(folder).is_dir():
        Path(folder, PARTIAL_FILES).write_text("\0".join(map(str, paths)))


def remove_partial_files(folder: str) -> None:
    """Remove what killed ranks left of the files they were writing; a finished file has another name."""
    with contextlib.suppress(OSError):
        for path in filter(None, Path(folder, PARTIAL_FILES).read_text().split("\0")):
            Path(path).unlink(missing_ok=True)


def processes_of_launch(mark: str) -> list[int]:
    """Processes of this host whose environment says that they belong to the launch `mark`."""
    wanted = f"{LAUNCH}={mark}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found
