"""The two interpreters know the schedule and never each other."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "algorithms": {"msgspec", "numpy"},
    "topologies": {"algorithms.errors", "networkx", "numpy"},
    "simulator": {"algorithms", "topologies", "networkx", "numba", "numpy", "simpy"},
    "runtime": {"algorithms", "cupy", "cupy_backends", "ml_dtypes", "mpi4py", "numpy", "threadpoolctl"},
}
PACKAGES = {*MAY_IMPORT, "studies"}
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


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


def allowed(module, permitted):
    """Whether a dotted module is one of, or inside one of, those permitted."""
    return any(module == one or module.startswith(one + ".") for one in permitted)


def strangers(source, package):
    """Modules that `source` imports though its package may not."""
    names = {name for name in imports(ast.parse(source)) if name.partition(".")[0] not in sys.stdlib_module_names}
    permitted = MAY_IMPORT[package] | {package}
    # `from algorithms import errors` also yields `algorithms` itself, which a permitted `algorithms.errors` covers.
    parents = {one.rpartition(".")[0] for one in permitted} if "algorithms.errors" in names else set()
    return sorted(name for name in names if not allowed(name, permitted) and name not in parents)


def relative(path):
    return str(path.relative_to(ROOT))


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circle(sources, of=str):
    """Modules that import each other in a circle, functions included, of sources by module; empty where none do.

    `of` gives what a module stands for, such as its folder, or None where it does not matter.
    """
    graph = {of(name): set() for name in sources if of(name)}
    for name, source in sources.items():
        others = {of(one) for one in imports(ast.parse(source)) if one in sources}
        if of(name):
            graph[of(name)] |= others - {None, of(name)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_may_also_inside_functions(package):
    found = {relative(path): strangers(path.read_text(), package) for path in (ROOT / package).rglob("*.py")}
    assert not {path: names for path, names in found.items() if names}


def test_no_modules_and_no_folders_import_each_other_in_a_circle():
    packages = {dotted(path) for path in MODULES if path.name == "__init__.py"}
    sources = {dotted(path): path.read_text() for path in MODULES if dotted(path) not in packages}
    of_modules, of_folders = circle(sources), circle(sources, folder)
    assert not of_modules
    assert not of_folders


def test_a_circle_is_found_where_a_function_closes_it():
    sources = {"a.one": "from a.two import f", "a.two": "import a.three", "a.three": "def f():\n    from a import one"}
    assert set(circle(sources)) == set(sources)
    assert not circle(sources | {"a.three": "import json"})


def folder(module):
    """The folder that a module is in; None for those of a package's top, which its folders share."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else None


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_cupy_is_imported_inside_functions_only_and_by_nobody_but_the_runtime(path):
    tree = ast.parse(path.read_text())
    assert not allowed_names(imported_at_import(tree), {"cupy", "cupy_backends"})
    if path.relative_to(ROOT).parts[0] != "runtime":
        assert not allowed_names(imports(tree), {"cupy", "cupy_backends"})


def allowed_names(names, permitted):
    return [name for name in names if allowed(name, permitted)]


def test_every_package_is_watched():
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found - {"tests"} == PACKAGES


@pytest.mark.parametrize(
    ("package", "source", "named"),
    [
        ("simulator", "def f():\n    from runtime import world", ["runtime", "runtime.world"]),
        ("runtime", "import simulator.engine", ["simulator.engine"]),
        ("runtime", "import importlib\nimportlib.import_module('simulator')", ["simulator"]),
        ("algorithms", "from studies import tables", ["studies", "studies.tables"]),
        ("algorithms", "import networkx", ["networkx"]),
        ("algorithms", "import json, numpy.linalg\nfrom algorithms.grid import Grid", []),
        ("topologies", "from algorithms.errors import InputError", []),
        ("topologies", "from algorithms import errors", []),
        ("topologies", "from algorithms.grid import Grid", ["algorithms.grid", "algorithms.grid.Grid"]),
    ],
)
def test_a_stranger_is_found_wherever_it_is_imported(package, source, named):
    assert strangers(source, package) == named


def test_what_runs_at_import_is_told_from_what_a_function_does():
    source = (
        "import numpy\nif TYPE_CHECKING:\n    import cupy\ndef f():\n    import cupy.cuda\nclass A:\n    import json"
    )
    assert sorted(imported_at_import(ast.parse(source))) == ["json", "numpy"]
