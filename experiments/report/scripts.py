"""The scripts of Vega and Vega-Lite, as text for a page; the bundle is made once and kept in the user's cache."""

import os
from importlib.metadata import version
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.optional_packages import check_installed

PACKAGES = ("jinja2", "vl_convert")
"""Packages of the extra `report` that a report needs."""


def check_packages() -> None:
    """Raises InputError if a package that reports need is not installed; to be asked before the work."""
    for package in PACKAGES:
        check_installed(package)


def chart_scripts() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which defines `vegaEmbed`.

    To make the bundle takes ten seconds; it is read from the cache if it is there.
    """
    import vl_convert

    kept = cache_folder() / f"vega-bundle-{version('vl-convert-python')}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, ValueError):
        bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
        _keep(kept, bundle)
        return bundle


def cache_folder() -> Path:
    """The folder of files that can be made again: `quadrille` in XDG_CACHE_HOME, or in ~/.cache.

    Source: XDG Base Directory Specification 0.8, section 3.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "quadrille"


def _keep(path: Path, text: str) -> None:
    """Writes a file of the cache; a cache that cannot be written is left out."""
    from quadrille.algorithms.formats import schema_files

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        schema_files.write_text(path, text)
    except (OSError, InputError):
        return
