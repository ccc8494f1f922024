"""Random changes of values, trees and texts that keep most of the structure of a valid input."""

import copy
import math
import re

HOSTILE_NUMBERS = (
    0, -1, 1, 2, 7, 255, 65536, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 10**18, 10**25, -(2**63), 0.5, -0.0, 1e-320, 1e-9,
    1e300, 1.7e308, math.inf, -math.inf, math.nan,
)  # fmt: skip
HOSTILE_TEXTS = (
    "", " ", "x", "0", "-1", "nan", "inf", "1e400", "9" * 30, "9" * 5000, "x" * 300, "a,b", "a=b", "../x", ".", "/dev/null",
    "\x1b[2J", "é", "\u202e", "1,2", "1x2", "4x", "x=", ":", "*", "[", "(" * 200, "%s", "{}", "1_0", "١", "NaN", "true",
    "1GiB", "1us", "50GB/s", "1e9999", "0x10", "host:0", "gpu:-1", "gpu:99999999999", "auto", "none", "all",
)  # fmt: skip
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def hostile(draw):
    """A value that a careless reader trips over."""
    kind = draw.random()
    if kind < 0.55:
        return draw.choice(HOSTILE_NUMBERS)
    if kind < 0.85:
        return draw.choice(HOSTILE_TEXTS)
    return draw.choice((None, True, False, [], {}, [1], [[]], {"a": 1}, [None], ["x"], {"": ""}, [1.5, "x", {}]))


def paths(tree, prefix=()):
    """The paths of all nodes of a tree of dicts and lists, the root left out."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*prefix, key)
        yield from paths(value, (*prefix, key))


def mutated_tree(draw, tree, changes=3):
    """A copy of the tree with one to `changes` random changes."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, changes)):
        places = list(paths(tree))
        if not places:
            return hostile(draw)
        *parents, key = draw.choice(places)
        node = tree
        for parent in parents:
            node = node[parent]
        change(draw, node, key)
    return tree


def change(draw, node, key):
    """Change one entry of a dict or list."""
    value, kind = node[key], draw.random()
    if kind < 0.45:
        node[key] = hostile(draw)
    elif kind < 0.6 and isinstance(value, int | float) and not isinstance(value, bool):
        node[key] = draw.choice(
            (-value, value * 10 ** draw.randint(1, 12), value / 10 ** draw.randint(1, 12), str(value))
        )
    elif kind < 0.7:
        node[key] = draw.choice(([value], {"x": value}, [value, value], str(value)))
    elif kind < 0.82:
        del node[key]
    elif isinstance(node, dict):
        node[draw.choice(("x", str(key) + "s", str(key).upper(), "", "a" * 300))] = value
    else:
        node.insert(draw.randrange(len(node) + 1), copy.deepcopy(draw.choice(node)))


def mutated_words(draw, text):
    """A text in which one number or word was replaced."""
    numbers = list(NUMBER.finditer(text))
    if numbers and draw.random() < 0.8:
        match = draw.choice(numbers)
        value = draw.choice((*HOSTILE_NUMBERS, *HOSTILE_TEXTS))
        return text[: match.start()] + str(value) + text[match.end() :]
    if draw.random() < 0.5:
        return draw.choice(HOSTILE_TEXTS)
    cut = draw.randrange(len(text) + 1)
    return text[:cut] + draw.choice((",", "=", ":", "", "x", " ", "*", "-")) + text[cut + draw.randrange(2) :]


def mutated_bytes(draw, content):
    """The content cut, or with some bytes changed, doubled or inserted."""
    kind = draw.random()
    if not content or kind < 0.2:
        return content[: draw.randrange(len(content) + 1)]
    content = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(content) + 1)
        if kind < 0.6 and place < len(content):
            content[place] = draw.randrange(256)
        elif kind < 0.8:
            content[place:place] = draw.choice(
                (b"\0", b"\xff", b"\n", b"\xef\xbb\xbf", b"[" * 2000, b"9" * 5000, b"\xed\xa0\x80")
            )
        else:
            end = min(len(content), place + draw.randint(1, 200))
            content[place:place] = content[place:end]
    return bytes(content)


def mutated_lines(draw, text):
    """The text with lines lost, doubled or exchanged, words replaced, or bytes changed."""
    kind = draw.random()
    if kind < 0.3:
        return mutated_bytes(draw, text.encode())
    lines = text.split("\n")
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(lines))
        if kind < 0.75:
            lines[place] = mutated_words(draw, lines[place])
        elif kind < 0.85:
            del lines[place]
            lines = lines or [""]
        elif kind < 0.95:
            lines.insert(place, draw.choice(lines))
        else:
            other = draw.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def json_text(value):
    """JSON of a tree, with infinity as 1e999 and NaN as NaN."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json_text(str(key))}: {json_text(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(json_text, value)) + "]"
    if isinstance(value, str):
        letters = (f"\\u{ord(letter):04x}" if letter < " " or letter in '"\\' else letter for letter in value)
        return f'"{"".join(letters)}"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if value in (math.inf, -math.inf):
        return "1e999" if value > 0 else "-1e999"
    return "NaN" if value != value else repr(value)


def toml_text(table):
    """TOML of a table, each entry on one line, with tables inline; null becomes a word."""
    if not isinstance(table, dict):
        return f"x = {_toml_value(table)}\n"
    return "".join(f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in table.items())


def _toml_key(key):
    return json_text(str(key))


def _toml_value(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if value is None:
        return '"none"'
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json_text(value)
