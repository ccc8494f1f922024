"""Optional packages: the extras of the distribution (`plot`, `lab`), their packages, and the install commands."""

from importlib.util import find_spec

from quadrille.algorithms.errors import InputError

DISTRIBUTION = "quadrille-hpc"
"""Name on the package index; the import name and the command are `quadrille`."""
EXTRAS = {"matplotlib": "plot", "pyroute2": "lab"}
"""The extra of pyproject.toml that installs a package, by the package's import name."""
PURPOSES = {"plot": "a figure", "lab": "an emulated network"}
"""The result that the user cannot get without an extra."""


def install_command(extra: str) -> str:
    """The command that installs an extra.

    >>> install_command("plot")
    "pip install 'quadrille-hpc[plot]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def check_installed(package: str) -> None:
    """Raises InputError if an optional package is not installed; to be asked before the work."""
    if find_spec(package) is None:
        raise InputError(f"needs {package}: {install_command(EXTRAS[package])}")


def missing_extra(error: BaseException) -> str:
    """The message that names the extra whose package could not be imported; empty for every other error.

    >>> missing_extra(ModuleNotFoundError("No module named 'pyroute2'", name="pyroute2"))
    "an emulated network needs pyroute2: pip install 'quadrille-hpc[lab]'"
    """
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in EXTRAS:
        return ""
    extra = EXTRAS[package]
    return f"{PURPOSES[extra]} needs {package}: {install_command(extra)}"
