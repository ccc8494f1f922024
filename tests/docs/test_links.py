"""Every link, file, folder and make target that README and the documentation name exists."""

import re

import pytest

from tests.support.documents import PAGES, named, prose
from tests.support.quadrille import ROOT

ELSEWHERE = [ROOT / name for name in ("DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
STUDIES = sorted(ROOT.glob("studies/*/README.md"))
MADE_BY_USERS = re.compile(
    r"\.(npy|json|csv|ckpt|sif|xml)$|^(host|cluster|lab|gpu)\.toml$|^\.venv|^out/|NAME|FILE|^v?[\d./]+$|^\d+\w+/s$"
)
NAMED = re.compile(r"`([\w.+-]+/[\w./+-]*|[\w-]+\.(?:py|md|toml|lock|def)|LICENSE|Makefile|Dockerfile)`")


def anchors(page):
    """The anchors of a page's headings, as code hosts and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    """The targets of a page's links to other pages, files and headings."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not target.startswith(("http:", "https:"))]


@pytest.mark.parametrize("page", [page for page in [*PAGES, *ELSEWHERE, *STUDIES] if links(page)], ids=named)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_every_file_and_folder_named_is_there(page):
    missing = [
        name for name in NAMED.findall(prose(page)) if not MADE_BY_USERS.search(name) and not (ROOT / name).exists()
    ]
    assert missing == []


def test_the_make_targets_named_are_in_the_makefile():
    text = "\n".join(page.read_text() for page in [*PAGES, *ELSEWHERE])
    targets = set(re.findall(r"`make ([a-z-]+)`", text)) | set(
        re.findall(r"^make ([a-z-]+)(?:$| +#)", text, re.MULTILINE)
    )
    assert {"run", "test", "check", "docs", "setup"} <= targets
    assert targets <= set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
