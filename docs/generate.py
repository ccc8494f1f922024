"""Fills the parts of the reference that the program itself knows: commands, keys of files, families and machines.

A page holds `<!-- generated: NAME ARGUMENT -->` … `<!-- end -->`; what stands between is written anew.

    python docs/generate.py            # writes
    python docs/generate.py --check    # exit status 1 and the pages' names where something differs
"""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc import locate
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from quadrille.algorithms.field_units import declared_units, structs_of
from quadrille.algorithms.units import unit_by_name

DOCS = Path(__file__).resolve().parent
REGION = re.compile(r"(<!-- generated: (\S+) ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = "100"
MANY = 4
"""A key that may be of so many types holds a value."""
OTHER_UNITS = ((r"percent", "%"), (r"^flops_", "FLOP"))
"""Words of the names of keys of records, and the units that they say beside those of `unit_by_name`."""


# --- the command line ---------------------------------------------------------------------------------------------


def help_of(*words: str) -> str:
    """The help text that `quadrille WORDS --help` prints, at a fixed width and without colours."""
    variables = os.environ | {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    program = [sys.executable, "-P", "-m", "quadrille", *words, "--help"]
    return subprocess.run(program, env=variables, capture_output=True, text=True, check=True).stdout


def subcommands(text: str) -> list[str]:
    r"""The names in the lists of commands of a help text: words in small letters that begin a row.

    >>> subcommands("Usage: q COMMAND\n\nPredict:\n  run    Measure.\n  lab    Build.\n\nOptions:\n  --help  Help.\n")
    ['run', 'lab']
    """
    if "COMMAND" not in text.partition("\n\n")[0]:
        return []
    return re.findall(r"^[ │|]{1,4}([a-z][a-z0-9-]+) {2,}\S", text, re.MULTILINE)


def commands(_: str) -> Iterator[str]:
    """A section for each command, with its help."""
    text = help_of()
    yield from ("## quadrille", "", "```text", text.strip(), "```")
    for name in subcommands(text):
        yield from command(name)


def command(*words: str) -> Iterator[str]:
    """A command's section, then those of its own commands."""
    text = help_of(*words)
    yield from ("", f"##{'#' * (len(words) - 1)} quadrille {' '.join(words)}", "", "```text", text.strip(), "```")
    for name in subcommands(text):
        yield from command(*words, name)


# --- keys of files ------------------------------------------------------------------------------------------------


def keys(name: str) -> Iterator[str]:
    """A table of keys for a struct and, below it, for each struct that it holds."""
    waiting, shown = [(locate(name), "")], set()
    while waiting:
        struct, path = waiting.pop(0)
        if struct in shown:
            continue
        shown.add(struct)
        yield from table_of_keys(struct, path)
        hints = get_type_hints(struct, include_extras=True)
        waiting += [
            (inner, f"{path}.{key}" if path else key)
            for key in struct.__struct_fields__
            for inner in structs_of(hints[key])
        ]


def table_of_keys(struct: type[msgspec.Struct], path: str) -> Iterator[str]:
    """The section of a struct: its docstring, and a table of its keys."""
    first, meanings = described(struct)
    if path:
        yield from ("", f"### `{path}`")
    yield from ("", first, "", "| key | type | unit | default | meaning |", "|---|---|---|---|---|")
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        words = [in_words(hint), unit(field.name, hint), default(field)]
        cells = [f"`{field.encode_name}`", *words, meanings.get(field.name, "")]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def described(struct: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    r"""A struct's first paragraph, and what its docstring says of each key.

    >>> text = "A pair.\n\nParameters\n----------\na, b : a number\n    of two\n\nRaises\n"
    >>> described(msgspec.defstruct("Pair", [("a", int), ("b", int)], namespace={"__doc__": text}))
    ('A pair.', {'a': 'a number of two', 'b': 'a number of two'})
    """
    text = inspect.getdoc(struct) or ""
    first, _, parameters = text.partition("\nParameters\n----------\n")
    meanings, names = {}, []
    for line in parameters.splitlines():
        if not line.strip():
            break
        if not line.startswith(" "):
            words, _, meaning = line.partition(" : ")
            names = words.split(", ")
            meanings |= dict.fromkeys(names, meaning)
        else:
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    paragraphs = [" ".join(part.split()) for part in first.strip().split("\n\n")]
    return "\n\n".join(part for part in paragraphs if not part.startswith(">>>")), meanings


def in_words(hint: Any) -> str:
    """A type as a reader of a TOML or JSON file knows it.

    >>> in_words(tuple[float, ...] | None), in_words(dict[str, bool]), in_words(Literal["a", "b"])
    ('list of numbers', 'table of true or false', '`a`, `b`')
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_words(parts[0])
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        words = dict.fromkeys(in_words(part) for part in parts if part not in (type(None), msgspec.UnsetType))
        return " or ".join(words) if len(words) < MANY else "value"
    if origin is tuple:
        return f"list of {plural(parts[0])}"
    if origin is list:
        return f"list of {plural(parts[0])}"
    if origin is dict:
        return f"table of {plural(parts[1])}"
    names = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    return names.get(hint, "table")


def plural(hint: Any) -> str:
    """A type in words, of many."""
    words = in_words(hint)
    return f"{words}s" if words in ("number", "whole number", "table", "value") else words


def unit(key: str, hint: Any) -> str:
    """The unit that a key's type declares, or else that its name says; empty where neither says one.

    >>> from quadrille.algorithms.field_units import Bytes
    >>> unit("size", Bytes | None), unit("wall_seconds", float), unit("flops_sum", float), unit("ranks", int)
    ('B', 's', 'FLOP', '')
    """
    by_name = unit_by_name(key) or next((name for words, name in OTHER_UNITS if re.search(words, key)), "")
    return next(declared_units(hint), by_name)


def default(field: msgspec.structs.FieldInfo) -> str:
    """The default value of a key that a file omits, as text."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None or value is msgspec.UNSET or value in ((), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# --- networks -----------------------------------------------------------------------------------------------------


def families(_: str) -> Iterator[str]:
    """A table of the topology families and the arguments of each."""
    from quadrille.topologies.families.family_table import HOST_NETWORKS

    yield from ("| family | arguments | hosts and links |", "|---|---|---|")
    for name, builder in HOST_NETWORKS.items():
        yield f"| `{name}` | {arguments(builder)} | {sentence(builder)} |"


def arguments(builder: Callable[..., object]) -> str:
    """The arguments of a builder; those with a default in brackets."""
    return ", ".join(
        f"`{name}`" if one.default is inspect.Parameter.empty else f"[`{name}`]"
        for name, one in inspect.signature(builder).parameters.items()
    )


def sentence(thing: object) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("|", "\\|")


def nodes(_: str) -> Iterator[str]:
    """A list of the kinds of GPU nodes."""
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS

    yield ", ".join(f"`{name}`" for name in NODE_KINDS)


def machines(_: str) -> Iterator[str]:
    """A table of the named machines."""
    from quadrille.topologies.machines.machine_catalogue import MACHINES

    yield from ("| machine | description |", "|---|---|")
    for name, machine in MACHINES.items():
        yield f"| `{name}` | {machine.summary} |"


def names(module: str) -> Iterator[str]:
    """A table of the public names of a module; a sentence where it has none."""
    face = locate(module)
    public = getattr(face, "__all__", ())
    if not public:
        yield "Names are imported from the modules that define them, as below."
        return
    yield from (f"`import {module}` holds these names; each is loaded when it is first used.", "")
    yield from ("| name | description |", "|---|---|")
    for name in public:
        yield f"| `{name}` | {sentence(getattr(face, name))} |"


WRITERS = {writer.__name__: writer for writer in (commands, keys, families, nodes, machines, names)}


def filled(text: str) -> str:
    """The text of a page with its generated parts replaced by the current ones."""

    def region(match: re.Match[str]) -> str:
        lines = "\n".join(WRITERS[match[2]](match[3])).strip("\n")
        return f"{match[1]}\n{lines}\n\n{match[4]}"

    return REGION.sub(region, text)


def main(words: list[str]) -> int:
    """Writes the pages; with `--check`, only names the pages that differ."""
    stale = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(str(page.relative_to(DOCS.parent)))
            if "--check" not in words:
                page.write_text(new, encoding="utf-8")
    if stale and "--check" in words:
        print(f"not as the program says: {', '.join(stale)}; `make docs` writes them anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
