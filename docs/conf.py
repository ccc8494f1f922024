"""Settings of the documentation site: Sphinx with MyST Markdown and Furo; `make docs` builds it without a network.

Every build executes the notebooks (`docs/tutorials/*.ipynb`), and an error in a cell ends the build.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "Quadrille"
copyright = "the Quadrille authors, Apache-2.0"  # noqa: A001 - Sphinx's name
extensions = ["myst_nb"]  # brings myst_parser
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Quadrille"
html_static_path = ["_static"]
html_css_files = ["quadrille.css"]
html_theme_options = {"navigation_with_keys": True}
smartquotes = False
exclude_patterns = ["_build", "_static"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_merge_streams = True
os.environ |= {"JUPYTER_PREFER_ENV_PATH": "1", "IPYTHONDIR": str(ROOT / "out" / "ipython")}
"""The kernel is that of the interpreter that builds the site, without the profile of its user."""

COPIES = {
    "DESIGN.md": "design",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    **{
        f"studies/{path.parent.name}/README.md": f"results/{path.parent.name}"
        for path in sorted((ROOT / "studies").glob("*/README.md"))
    },
}
"""Pages that stand elsewhere in the repository, and the page of the site that each becomes."""
LINK = re.compile(r"(?<=\]\()(?!https?:|#|/)([^)#\s]+)")


def for_site(text: str, folder: Path) -> str:
    """A page with its links to files of the repository turned into links to pages of the site."""

    def target(link: re.Match[str]) -> str:
        path = (folder / link.group()).resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        if name in COPIES:
            return f"/{COPIES[name]}.md"
        if path.is_relative_to(DOCS) and path.suffix == ".md":
            return f"/{path.relative_to(DOCS).as_posix()}"
        return str(link.group()) if path.suffix != ".png" else f"/{Path('..') / name}"

    return LINK.sub(target, text)


def write_copies(app: object) -> None:
    """Puts the pages that stand elsewhere beside the others; git ignores them there."""
    del app
    for source, page in COPIES.items():
        text = for_site((ROOT / source).read_text(encoding="utf-8"), (ROOT / source).parent)
        copy = DOCS / f"{page}.md"
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")


def rewrite_links(app: object, page: str, source: list[str]) -> None:
    """Links of a page that lead out of the documentation's folder."""
    if page not in COPIES.values() and not is_notebook(app, page):
        source[0] = for_site(source[0], (DOCS / page).parent)


def is_notebook(app: object, page: str) -> bool:
    """Whether a page is a notebook, whose links stay inside the documentation's folder."""
    return str(app.env.doc2path(page)).endswith(".ipynb")  # type: ignore[attr-defined]


def notebooks(app: object, env: object, *changes: object) -> list[str]:
    """The notebooks, which every build executes: code that they call may have changed."""
    del changes
    return [page for page in env.found_docs if is_notebook(app, page)]  # type: ignore[attr-defined]


def draw_gallery(app: object) -> None:
    """Runs the commands of the gallery in `out/gallery`, which then has its figures."""
    del app
    folder = ROOT / "out" / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            program = [sys.executable, "-P", "-m", *shlex.split(line)]
            variables = os.environ | {"PYTHONPATH": str(ROOT)}
            subprocess.run(program, cwd=folder, env=variables, stdout=subprocess.DEVNULL, check=True)


def setup(app: object) -> None:
    """Registers the steps above with Sphinx."""
    app.connect("builder-inited", draw_gallery)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_copies)  # type: ignore[attr-defined]
    app.connect("source-read", rewrite_links)  # type: ignore[attr-defined]
    app.connect("env-get-outdated", notebooks)  # type: ignore[attr-defined]
