"""Optional packages: the extras of the distribution (`plot`, `report`, …), their packages, and the install commands.

A clone is installed by `make setup`; the distribution's name need not exist on the package index then.
"""

import shlex
from importlib.util import find_spec
from pathlib import Path

from quadrille.algorithms.errors import InputError

DISTRIBUTION = "quadrille-hpc"
"""Name on the package index; the import name and the command are `quadrille`."""
EXTRAS = {
    "matplotlib": "plot",
    "jinja2": "report",
    "vl_convert": "report",
    "submitit": "slurm",
    "optuna": "search",
    "nicegui": "app",
    "pyroute2": "lab",
}
"""The extra of pyproject.toml that installs a package, by the package's import name."""
PURPOSES = {
    "plot": "a figure",
    "report": "a report",
    "slurm": "tasks on Slurm",
    "search": "a search",
    "app": "the app",
    "lab": "an emulated network",
}
"""The result that the user cannot get without an extra."""


CUPY = ("cupy-cuda12x[ctk]", "cupy-cuda13x[ctk]")
"""The packages of the extras `cuda12` and `cuda13`."""
ROOT = Path(__file__).resolve().parent.parent
"""The folder of the packages: the clone, or `quadrille/` in site-packages."""


def is_clone(root: Path = ROOT) -> bool:
    """Whether the program runs from a clone of the repository."""
    return (root / "pyproject.toml").is_file() and (root / "Makefile").is_file()


def install_command(extra: str, root: Path = ROOT) -> str:
    """The command that installs an extra; in a clone that of the clone.

    >>> install_command("plot", Path("/usr/lib/python3/site-packages/quadrille"))
    "pip install 'quadrille-hpc[plot]'"

    Parameters
    ----------
    root : folder of the packages
    """
    if not is_clone(root):
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    package = next((package for package, its_extra in EXTRAS.items() if its_extra == extra), extra)
    return f"make -C {shlex.quote(str(root))} setup, which installs {package} into {root / '.venv'}"


def install_cupy_command(root: Path = ROOT) -> str:
    """The commands of which one installs CuPy.

    >>> install_cupy_command(Path("/usr/lib/python3/site-packages/quadrille"))
    "pip install 'quadrille-hpc[cuda12]' or 'quadrille-hpc[cuda13]', whichever the driver supports"

    Parameters
    ----------
    root : folder of the packages
    """
    names = CUPY if is_clone(root) else (f"{DISTRIBUTION}[cuda12]", f"{DISTRIBUTION}[cuda13]")
    return f"pip install '{names[0]}' or '{names[1]}', whichever the driver supports"


def check_installed(package: str) -> None:
    """Raises InputError if an optional package is not installed; to be asked before the work."""
    if find_spec(package) is None:
        raise InputError(f"needs {package}: {install_command(EXTRAS[package])}")


def missing_extra(error: BaseException) -> str:
    """The message that names the extra whose package could not be imported; empty for every other error.

    >>> missing_extra(ModuleNotFoundError("No module named 'pyroute2'", name="pyroute2")).partition(":")[0]
    'an emulated network needs pyroute2'
    """
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in EXTRAS:
        return ""
    extra = EXTRAS[package]
    return f"{PURPOSES[extra]} needs {package}: {install_command(extra)}"
