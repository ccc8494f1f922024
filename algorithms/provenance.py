"""Provenance of a file: command, date, host and software versions."""

import os
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "numpy",
    "mpi4py",
    "networkx",
    "numba",
    "simpy",
    "msgspec",
    "threadpoolctl",
    "cupy-cuda12x",
    "cupy-cuda13x",
)
CHANGED = "-dirty"
"""Suffix of a commit whose files have been changed since, as in `git describe`."""
NOT_RUN_BY = (":(exclude,glob)**/results/**", ":(exclude)*.md")
"""Pathspecs of files that no program reads; studies write their results while they run."""
GIT_SECONDS = 5.0
"""Time limit for git [s]."""


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Command line, date with time zone (ISO 8601), host name, and versions by name.

    Parameters
    ----------
    command : command line that wrote the file
    date : date and time with the zone (ISO 8601)
    host : name of the host
    versions : versions of Python, Quadrille and the libraries, and the commit of a clone
    """

    command: str
    date: str
    host: str
    versions: dict[str, str] = {}


def provenance(command: Sequence[str], **more: str) -> Provenance:
    """Returns the provenance of a file that `command` writes now, on this host.

    Parameters
    ----------
    more : further versions by name; empty ones are left out

    >>> made = provenance(["quadrille", "run", "--a", "my file.npy"])
    >>> made.command, "numpy" in made.versions
    ("quadrille run --a 'my file.npy'", True)
    """
    names = versions() | {name: version for name, version in more.items() if version}
    text = shlex.join(command).encode("utf-8", "replace").decode()
    return Provenance(text, datetime.now(UTC).isoformat(timespec="seconds"), socket.gethostname(), names)


def versions(root: Path = ROOT) -> dict[str, str]:
    """Returns the versions of Python, Quadrille and the installed packages it uses, without importing them.

    Parameters
    ----------
    root : folder that contains the packages of Quadrille; in a checkout, the root of the repository
    """
    from importlib import metadata  # costs 20 ms, and only files need it

    installed = {"python": ".".join(map(str, sys.version_info[:3])), **_own_version(root)}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _own_version(root: Path) -> dict[str, str]:
    """Returns the version of Quadrille and, in a git checkout, the commit."""
    version = own_version(root)
    commit = _commit(root / ".git")
    return {
        name: text for name, text in (("quadrille", version), ("commit", commit and commit + _changed(root))) if text
    }


def own_version(root: Path = ROOT) -> str:
    """Version of the checkout that this process runs from, else of the installed distribution; may be empty."""
    from importlib import metadata

    settings = root / "pyproject.toml"
    if settings.is_file():
        return str(tomllib.loads(settings.read_text(encoding="utf-8")).get("project", {}).get("version", ""))
    from quadrille.algorithms.optional_packages import DISTRIBUTION

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def _commit(git: Path) -> str:
    """Returns the commit that is checked out, read without git, or an empty string."""
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (git / branch).is_file():
            return (git / branch).read_text(encoding="utf-8").strip()
        packed = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), "")


@cache
def _changed(root: Path) -> str:
    """Returns CHANGED if tracked source files differ from the checked-out commit, as far as git can tell.

    Untracked files are ignored.
    """
    repository_options = [f"--git-dir={root / '.git'}", f"--work-tree={root}"]
    words = ["git", *repository_options, "status", "--porcelain", "--untracked-files=no", "--", *NOT_RUN_BY]
    settings = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        status = subprocess.run(words, env=settings, capture_output=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return CHANGED if status.stdout.strip() else ""
