"""The words and habits of HOUSE.md hold: names are the field's, docstrings say what a thing is, locals are nouns."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "algorithms",
    "topologies",
    "simulator",
    "runtime",
    "experiments",
    "studies",
    "quadrille/cli",
    "quadrille/app",
)
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
OLD_NAMES = {
    "homes", "dealt_out", "crowded", "duties", "duty", "postmen", "greeting", "greet", "stories", "story", "twins",
    "walkers", "steady", "alike", "looks", "colours", "gaps", "rhythm", "garbage", "seldom_collected", "manner",
    "speaks",
    "chatter", "surroundings", "verdicts", "standstill", "whereabouts", "naps", "postponed", "keeping", "pieces",
    "fitting",
    "turn", "turns", "told", "wiring", "spent", "why_not", "late_seconds", "taken_seconds", "following_seconds",
    "second_looks", "looker", "told_apart", "gather_ahead", "ways", "detours", "usual_way", "given_up", "put_in",
    "looked_at", "learnt",
}  # fmt: skip
"""Words that no module, class or function has as its name."""
PRIVATE_LOCALS = {"found", "one", "other", "made", "given", "known", "what", "looked_at", "said", "learnt", "twos"}
"""Locals that are nouns instead."""
PRIVATE_CONSTANTS = re.compile(r"(^|_)(TOLD|LOOKED|LEARNT)(_|$)")
"""Words that no constant has in its name."""


def definitions(tree):
    """Every module, class and function with a docstring: its name and the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "module"), text


def names(tree):
    """Names of classes and functions, in lower case with underscores."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower().strip("_")


def stored(tree):
    """Names that are stored into: locals, loop variables, targets of comprehensions, arguments; not fields of classes.

    `other` is Python's own name for the second operand of an operator.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    part.target.ctx = ast.Load()
    operators = {node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("__")}
    operands = {arg for function in operators for arg in function.args.args if arg.arg == "other"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg) and node not in operands:
            yield node.lineno, node.arg


def faults(path):
    """Each habit that a module has, with its line or name."""
    tree = ast.parse(path.read_text())
    if path.stem in OLD_NAMES:
        yield f"module {path.stem}"
    yield from (f"name {name}" for name in names(tree) if name in OLD_NAMES)
    for name, text in definitions(tree):
        if re.match(r"Of\b", text):
            yield f"{name}: its docstring begins with Of"
        yield from (
            f"{name}: entry {line.strip()!r}" for line in text.splitlines() if re.match(r"\s*[\w, *]+ : of ", line)
        )
    for line, name in stored(tree):
        if name in PRIVATE_LOCALS:
            yield f"line {line}: local {name}"
        if PRIVATE_CONSTANTS.search(name):
            yield f"line {line}: constant {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_keeps_to_the_words_and_habits_of_the_house(path):
    assert not list(faults(path))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('"""Of a rank: its host."""', "begins with Of"),
        ('def f(rate):\n    """Step.\n\n    Parameters\n    ----------\n    rate : of learning\n    """', "entry"),
        ("def f():\n    found = 1\n    return found", "local found"),
        ("class Homes:\n    pass", "name homes"),
        ("MOST_TOLD = 3", "constant MOST_TOLD"),
    ],
)
def test_a_habit_is_found(tmp_path, source, said):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert any(said in fault for fault in faults(path))
