"""The pages of README and the documentation, their examples, and the programs in `docs/`."""

import re
from functools import cache
from importlib import util

from tests.support.quadrille import ROOT


def _loaded(name):
    """A module of the folder `docs/`, which is not a package."""
    spec = util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate, examples, conf = _loaded("generate"), _loaded("examples"), _loaded("conf")
README = ROOT / "README.md"
COPIES = {ROOT / "docs" / f"{page}.md" for page in conf.COPIES.values()}
PAGES = [page for page in examples.PAGES if page not in COPIES]
"""README and the pages of the documentation, without the copies that a build of the site makes."""
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def named(page):
    """A page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def prose(page):
    """The text of a page without its fenced blocks."""
    return FENCED.sub("", page.read_text())


def commands():
    """Every `quadrille` command that a page shows: the page, the launcher, and the words of the command."""
    return [
        (named(page), starter, words)
        for page in PAGES
        for block in examples.blocks(page.read_text())
        for starter, words, _ in block.commands
    ]


@cache
def help_of(*words):
    """What `quadrille WORDS --help` prints."""
    return generate.help_of(*words)


@cache
def subcommands(*words):
    """The commands that a help text lists."""
    return tuple(generate.subcommands(help_of(*words)))
