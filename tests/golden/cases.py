"""Golden cases: command lines from the .toml files beside this one, and what they answer, reduced to what must hold.

An answer is a flat table `path -> value`, as {"ops[].seconds": [...], "seconds": ...}: one row for each key of the JSON
that a command writes, the values of lists in one list.  `reduced` makes it and is the one place where keys are dropped.
"""

import contextlib
import io
import json
import math
import re
import shlex
import tomllib
from pathlib import Path

from tests.golden.renamed import ADDED, FLAGS, NEW_FLAGS, RENAMED, REWORDED
from tests.support.quadrille import Ended, main

GOLDEN = Path(__file__).resolve().parent
ANSWERS = GOLDEN / "answers.json"
RELATIVE = 1e-9
ABSOLUTE = 1e-15
"""Rounding errors of differences, as a contention of 3e-22 s, have no digit that holds."""
PICOSECOND = 1e-12
OF_ONE_RANK = ("cores of", "memory of")
SHORT = 3
"""Up to so many equal values are written out."""
WRITES_JSON = ("simulate", "collective", "flows", "rank", "sweep", "explain", "compare", "topology")

DROPPED = {  # keys wherever they stand, or behind a dot at the top
    "provenance": "command, date, host and versions",
    "sha256": "a hash of the machine's keys as well as of its values: a renamed key changes it",
    "wall_seconds": "seconds of this process on the clock",
    "peak_memory_bytes": "memory of this process",
    "file": "a path that the command line gave",
    "files": "as file, of compare",
    "events": "two that are a rounding error apart count as one or two, as other cases ran before in this process",
    ".messages": "measured, and there only if messages were under way while a rank computed",
}
SENTENCES = {
    "why",
    "why_not",
    "not_folded_reason",
    "remarks",
    "reason",
    "approximation",
    "warnings",
    "summary",
    "lacking",
    "analytical_model",
}
"""Prose, whose words may change: an answer says only whether there is some."""
ON_THE_CLOCK = re.compile(r"seconds|percent_of_peak|flops_per_second|max_error|spread")
"""Keys of measured records whose numbers differ from run to run; that they are numbers holds."""


def read(name):
    """The tables of a .toml file beside this one, by section."""
    return tomllib.loads((GOLDEN / name).read_text())


def experiments():
    """Command lines of each named case."""
    named = {name: lines for section in read("experiments.toml").values() for name, lines in section.items()}
    return {name: [lines] if isinstance(lines, str) else lines for name, lines in named.items()}


def words_of(line, folder):
    """Words of a command line; {golden} is this folder, {tmp} one of the case's own."""
    words = shlex.split(with_todays_flags(line))
    return [word.replace("{golden}", str(GOLDEN)).replace("{tmp}", str(folder)) for word in words]


def with_todays_flags(line):
    """A command line with the flags that replaced its own."""
    if any(flag in line for flag in NEW_FLAGS):
        return line
    for old, new in FLAGS.items():
        line = re.sub(rf"(?<!\S){re.escape(old)}(?!\S)", new, line)
    return line


def ended(words):
    """What became of `quadrille *words` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    return Ended(status, out.getvalue(), err.getvalue())


def with_json(words, path):
    """The words, and that the answer goes to this file where the command writes any."""
    return [*words, "--json", str(path)] if words[0] in WRITES_JSON else words


def answer_of(lines, folder, call=ended):
    """The answer of the last of these command lines; the first writes {tmp}/0.json, the next {tmp}/1.json, …"""
    for number, line in enumerate(lines):
        path = folder / f"{number}.json"
        done = call(with_json(words_of(line, folder), path))
        assert done.status == 0, done.err
    found = json.loads(path.read_text()) if path.exists() else [one.split("  ") for one in done.out.splitlines()]
    return reduced(found, folder)


def reduced(value, folder, clock=False):
    """What must hold of a JSON value: path -> value, or the values in order where the path is in a list."""
    table = {}
    for path, leaf in leaves(value):
        table.setdefault(path, [])
        if leaf is not EMPTY:
            table[path].append(kept(path, leaf, folder, clock))
    return {path: values if "[]" in path or not values else values[0] for path, values in sorted(table.items())}


EMPTY = object()


def leaves(value, path=""):
    """Path and value of every number, string, truth and null; an empty list or table has a path alone."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in DROPPED and f"{path}.{key}" not in DROPPED and not rounding(path, inner):
                yield from leaves(inner, f"{path}.{key}" if path else key)
        if not value:
            yield path + ".{}", EMPTY
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path + "[]")
        if not value:
            yield path + "[]", EMPTY
    else:
        yield path, value


def rounding(path, value):
    """Whether it is a cause of less than a picosecond on a critical path: left by the rounding of a difference."""
    return path == "critical_path[].seconds_by_part" and abs(value) < PICOSECOND


def kept(path, leaf, folder, clock):
    """What is kept of one value: 13 digits of a number, no words of prose, no path of this machine."""
    key = path.removesuffix("[]").rpartition(".")[2]
    if key in SENTENCES and leaf:
        return "(prose)"
    if isinstance(leaf, str):
        if path == "links[].link" and leaf.startswith(OF_ONE_RANK):  # all alike: the last digit says which are listed
            return re.sub(r"\d+", "#", leaf)
        return leaf.replace(str(GOLDEN), "{golden}").replace(str(folder), "{tmp}").rstrip()
    if isinstance(leaf, float):
        return "(on the clock)" if clock and ON_THE_CLOCK.search(path) else float(f"{leaf:.13g}")
    return leaf


# Comparing


def renamed(text):
    """Golden text in today's words; None where its key is gone."""
    for old, new in RENAMED.items():
        pattern = rf"(?<![\w-]){re.escape(old)}(?![\w-])"
        if new is None and re.search(pattern, text):
            return None
        text = re.sub(pattern, new or "", text)
    return text


def expected(answer):
    """A golden answer in today's words."""
    table = {renamed(path): value for path, value in answer.items()}
    table.pop(None, None)
    return reworded({path: in_todays_words(value) for path, value in table.items()})


def reworded(table):
    """A table whose words that changed their meaning are replaced; an answer that has the new keys is newer."""
    replaced = {}
    for path, value in table.items():
        before, dot, key = path.rpartition(".")
        words = REWORDED.get(key, {}).get(value, {}) if isinstance(value, str) else {}
        today = {before + dot + name: word for name, word in words.items()}
        replaced |= today if today and not (today.keys() - {path}) & table.keys() else {path: value}
    return replaced


def in_todays_words(value):
    if isinstance(value, list):
        return [in_todays_words(one) for one in value]
    return renamed(value) if isinstance(value, str) else value


def differences(golden, found, relative=RELATIVE):
    """What differs, a line for each path; `relative` is a number or a function of the path."""
    golden = expected(golden)
    yield from (f"{path} is missing" for path in golden.keys() - found.keys())
    yield from (f"{path} is new" for path in found.keys() - golden.keys() - ADDED)
    for path in golden.keys() & found.keys():
        tolerance = relative(path) if callable(relative) else relative
        before, now = (value if isinstance(value, list) else [value] for value in (golden[path], found[path]))
        if len(before) != len(now):
            yield f"{path}: {len(now)} values, {len(before)} in the golden answer"
        wrong = [pair for pair in zip(now, before, strict=False) if not same(*pair, tolerance)]
        if wrong:
            yield f"{path}: {wrong[0][0]!r}, {wrong[0][1]!r} in the golden answer ({len(wrong)} differ)"


def same(one, other, relative):
    if any(isinstance(value, bool | str) or value is None for value in (one, other)):
        return type(one) is type(other) and one == other
    return math.isclose(one, other, rel_tol=relative, abs_tol=ABSOLUTE)


# Storing


def load_answers():
    """The answer of each case."""
    stored = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    return {name: {path: unpacked(value) for path, value in answer.items()} for name, answer in stored.items()}


def packed(value):
    """A list whose values are all the same, as zeros often are, in short."""
    if isinstance(value, list) and len(value) > SHORT and len({json.dumps(one) for one in value}) == 1:
        return {"times": len(value), "value": value[0]}
    return value


def unpacked(value):
    return [value["value"]] * value["times"] if isinstance(value, dict) else value
