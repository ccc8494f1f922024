"""Files of results: a study that ends early leaves those that were there."""

import ast

import pytest

from tests.support.quadrille import ROOT

WRITING = ("write_text", "write_bytes", "savefig", "tofile", "to_csv")
"""Methods that write a file from its start."""
NUMPY_WRITING = ("np.save", "np.savez", "np.savez_compressed", "np.savetxt")
"""Functions of NumPy that write a file from its start."""
MODULES_THAT_OPEN = ("gzip", "bz2", "lzma", "io", "codecs", "os", "tarfile")
"""Modules whose function `open` has the path before the mode."""
WITHOUT_PACKAGES = ("gpu/offline_python.py",)
"""Programs that run before Quadrille's packages are installed, and write no results."""


def emptied_files(source):
    """The calls of a program that empty a file before it has its new content, as text.

    A mode that is no constant may be any. Appending empties no file.
    """
    return [
        ast.unparse(call)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and (writes(call) or opens_for_writing(call))
    ]


def writes(call):
    owner, _, name = ast.unparse(call.func).rpartition(".")
    return f"{owner}.{name}" in NUMPY_WRITING or (name in WRITING and owner not in ("", "schema_files"))


def opens_for_writing(call):
    owner, _, name = ast.unparse(call.func).rpartition(".")
    if name not in ("open", "fdopen"):
        return False
    if (owner, name) == ("os", "open"):
        return True
    place = 1 if owner in ("", *MODULES_THAT_OPEN) else 0
    modes = [word.value for word in call.keywords if word.arg in ("mode", None)] + call.args[place : place + 1]
    constants = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return len(constants) < len(modes) or any(letter in str(mode) for mode in constants for letter in "wx+")


@pytest.mark.parametrize(
    "source",
    [
        'path.open("w")',
        'path.open(mode="w", newline="")',
        'open(path, "w")',
        "open(path, mode)",
        "open(path, **options)",
        'gzip.open(path, "wt")',
        'Path(path).open("r+b")',
        "os.open(path, flags)",
        'os.fdopen(number, "w")',
        'Path(path).write_text("")',
        'path.write_bytes(b"")',
        "np.savetxt(path, rows)",
        "figure.savefig(path)",
    ],
)
def test_calls_that_empty_a_file_are_seen(source):
    assert emptied_files(f"with {source} as file:\n    pass") == [ast.unparse(ast.parse(source))]


@pytest.mark.parametrize(
    "source",
    [
        "path.open()",
        'path.open("rb")',
        'open(path, newline="")',
        'gzip.open(path, "rt")',
        'log.open("ab")',
        "schema_files.write_text(path, text)",
        "csv.writer(sys.stdout)",
    ],
)
def test_calls_that_empty_no_file_are_not(source):
    assert emptied_files(source) == []


def test_no_study_empties_a_file_before_it_has_the_rows():
    """Whole texts go through `schema_files`, which renames a file that is complete."""
    studies = ROOT / "studies"
    emptied = {
        str(path.relative_to(studies)): calls
        for path in sorted(studies.rglob("*.py"))
        if (calls := emptied_files(path.read_text()))
    }
    assert not {name: calls for name, calls in emptied.items() if name not in WITHOUT_PACKAGES}, (
        "use schema_files.write_text"
    )
    assert set(WITHOUT_PACKAGES) <= set(emptied)
