"""Imports go one way, and the two interpreters know the schedule and never each other."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {
    "algorithms": {"matplotlib", "msgspec", "numpy"},
    "topologies": {"quadrille.algorithms", "msgspec", "networkx", "numpy"},
    "simulator": {"quadrille.algorithms", "quadrille.topologies", "networkx", "numba", "numpy", "simpy"},
    "runtime": {
        "quadrille.algorithms",
        "cupy",
        "cupy_backends",
        "ml_dtypes",
        "mpi4py",
        "msgspec",
        "numpy",
        "psutil",
        "pyroute2",
        "threadpoolctl",
    },
}
"""What the modules of a package may import besides the standard library and their own package."""
BELOW = {
    "experiments": ("algorithms", "topologies", "simulator", "runtime"),
    "studies": ("algorithms", "topologies", "simulator", "runtime", "experiments"),
}
"""Packages of ours that a package may import; other people's packages are free there."""
PACKAGES = (*FLOORS, *BELOW)
FACES = {"quadrille/cli": ("quadrille.cli", "quadrille.app"), "quadrille/app": ("quadrille.app", "quadrille.cli")}
"""The folders that users meet: the command line and the app, each with what of the two it may import."""
MODULES = sorted(path for package in (*PACKAGES, *FACES) for path in (ROOT / package).rglob("*.py"))


def imports(node):
    """Modules imported anywhere under `node` (functions included) in dotted form, `importlib.import_module` too."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from (name.name for name in part.names)
        elif isinstance(part, ast.ImportFrom):
            assert part.level == 0, f"line {part.lineno}: imports are absolute"
            yield part.module
            yield from (f"{part.module}.{name.name}" for name in part.names)
        elif isinstance(part, ast.Call) and called(part) in {"import_module", "__import__"} and part.args:
            word = part.args[0]
            assert isinstance(word, ast.Constant), f"line {part.lineno}: which module is imported must be readable"
            yield word.value


@cache
def modules_imported(source):
    """Modules imported anywhere in a source; several tests ask about the same sources."""
    return tuple(imports(ast.parse(source)))


def called(call):
    return getattr(call.func, "attr", None) or getattr(call.func, "id", None)


def at_import(node):
    """Parts of a module that run when it is imported: all but the bodies of functions and `if TYPE_CHECKING`."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(part, ast.If) and "TYPE_CHECKING" in ast.unparse(part.test):
            yield from (inner for other in part.orelse for inner in (other, *at_import(other)))
            continue
        yield part
        yield from at_import(part)


def imported_at_import(tree):
    for part in at_import(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            yield from imports(part)


def inside(module, packages):
    """Whether a dotted module is one of the packages or inside one."""
    return any(module == package or module.startswith(package + ".") for package in packages)


def may_import(package):
    """The dotted packages that modules of a package may import, and whether other people's packages are free."""
    if package in FLOORS:
        return FLOORS[package] | {f"quadrille.{package}"}, False
    below = PACKAGES if package in FACES else (*BELOW[package], package)
    return {f"quadrille.{name}" for name in below} | {*FACES.get(package, ())}, True


def strangers(source, package):
    """Modules that `source` imports though its package may not."""
    permitted, others_free = may_import(package)
    names = {name for name in modules_imported(source) if name.partition(".")[0] not in sys.stdlib_module_names}
    parents = {name.rpartition(".")[0] for name in permitted} & names  # `from quadrille import simulator`
    names = {name for name in names - parents if not others_free or inside(name, {"quadrille", *PACKAGES})}
    return sorted(name for name in names if not inside(name, permitted))


def relative(path):
    return str(path.relative_to(ROOT))


def dotted(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("quadrille.") else f"quadrille.{name}"


def circle(sources, part_of=str):
    """Modules that import each other in a circle, functions included, of sources by module; empty where none do.

    `part_of` gives what a module stands for, such as its folder.
    """
    graph = {part_of(name): set() for name in sources}
    for name, source in sources.items():
        imported = {part_of(module) for module in modules_imported(source) if module in sources}
        graph[part_of(name)] |= imported - {part_of(name)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def room(module):
    """The folder that a module is in; a module of a package's root is a room of its own."""
    parts = module.split(".")
    return module if len(parts) == 3 else ".".join(parts[:-1])


@pytest.mark.parametrize("package", [*PACKAGES, *FACES])
def test_a_package_imports_only_what_it_may_also_inside_functions(package):
    found = {relative(path): strangers(path.read_text(), package) for path in (ROOT / package).rglob("*.py")}
    assert not {path: names for path, names in found.items() if names}


def test_no_modules_and_no_folders_import_each_other_in_a_circle():
    packages = {dotted(path) for path in MODULES if path.name == "__init__.py"}
    sources = {dotted(path): path.read_text() for path in MODULES if dotted(path) not in packages}
    assert not circle(sources)
    assert not circle(sources, room)


def test_a_circle_is_found_where_a_function_closes_it():
    sources = {"a.one": "from a.two import f", "a.two": "import a.three", "a.three": "def f():\n    from a import one"}
    assert set(circle(sources)) == set(sources)
    assert not circle(sources | {"a.three": "import json"})


def test_a_circle_between_a_root_module_and_a_folder_counts():
    sources = {
        "quadrille.p.root": "import quadrille.p.folder.one",
        "quadrille.p.folder.one": "import json",
        "quadrille.p.folder.two": "import quadrille.p.root",
    }
    assert not circle(sources)
    assert set(circle(sources, room)) == {"quadrille.p.root", "quadrille.p.folder"}


def test_cupy_is_imported_inside_functions_only_and_by_nobody_but_the_runtime():
    found = {}
    for path in MODULES:
        source = path.read_text()
        if "cupy" in source:
            outside_runtime = path.relative_to(ROOT).parts[0] != "runtime"
            names = modules_imported(source) if outside_runtime else imported_at_import(ast.parse(source))
            found[relative(path)] = [name for name in names if inside(name, {"cupy", "cupy_backends"})]
    assert found
    assert not {path: names for path, names in found.items() if names}


def test_every_package_is_watched_and_linked_under_the_one_import_name():
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found - {"tests", "quadrille"} == set(PACKAGES)
    for package in PACKAGES:
        link = ROOT / "quadrille" / package
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{package}"


def test_nobody_imports_a_folder_by_its_bare_name():
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    paths = [ROOT / name for name in tracked.stdout.split()] or MODULES
    bare = {
        relative(path): names
        for path in paths
        if path.exists() and (names := [one for one in modules_imported(path.read_text()) if inside(one, PACKAGES)])
    }
    assert not bare


def test_no_test_module_imports_another_test_module():
    """Helpers that several test modules share belong in `tests/support`."""
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    assert modules
    shared = {
        relative(path): names
        for path in modules
        if (names := [name for name in modules_imported(path.read_text()) if re.search(r"^tests\..*\btest_", name)])
    }
    assert not shared


@pytest.mark.parametrize(
    ("package", "source", "named"),
    [
        (
            "simulator",
            "def f():\n    from quadrille.runtime import host",
            ["quadrille.runtime", "quadrille.runtime.host"],
        ),
        ("runtime", "import quadrille.simulator.engine", ["quadrille.simulator.engine"]),
        ("runtime", "import importlib\nimportlib.import_module('simulator')", ["simulator"]),
        ("runtime", "import quadrille.topologies.network", ["quadrille.topologies.network"]),
        ("algorithms", "from quadrille import studies", ["quadrille.studies"]),
        ("algorithms", "import networkx", ["networkx"]),
        ("algorithms", "import json, numpy.linalg\nfrom quadrille.algorithms.units import GIB", []),
        ("algorithms", "from algorithms.units import GIB", ["algorithms.units", "algorithms.units.GIB"]),
        ("topologies", "from quadrille.algorithms.errors import InputError", []),
        ("experiments", "import rich.table", []),
        ("experiments", "from quadrille.cli import shared_flags", ["quadrille.cli", "quadrille.cli.shared_flags"]),
        ("studies", "import quadrille.cli.shared_flags", ["quadrille.cli.shared_flags"]),
        ("quadrille/cli", "import quadrille.studies.fidelity.study, quadrille.cli.shared_flags", []),
    ],
)
def test_a_stranger_is_found_wherever_it_is_imported(package, source, named):
    assert strangers(source, package) == named


def test_code_that_runs_at_import_is_distinguished_from_code_that_a_function_runs():
    source = (
        "import numpy\nif TYPE_CHECKING:\n    import cupy\ndef f():\n    import cupy.cuda\nclass A:\n    import json"
    )
    assert sorted(imported_at_import(ast.parse(source))) == ["json", "numpy"]
