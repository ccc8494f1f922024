"""The examples of README and documentation: parsed from the pages, run, and compared with what the pages show.

A fenced block is an example by its language:

    console   commands after `$ `, each followed by exactly what it prints; a line `…` stands for lines left out
    sh        commands; those that begin with `quadrille` are run, without comparing what they print
    python    a program; the blocks of a page share their variables; a `text` block right behind it is its output
    text      anything else that a page shows

A comment before a block changes that: `<!-- not run: REASON -->` exempts it, and `<!-- file: NAME -->` makes the block
a file that later examples of the page read.  `host.toml` and `traffic.csv` are there from the start.

Notebooks stand in the repository without outputs; every build of the site executes them.

    python docs/examples.py            # writes what the console blocks print into the pages, and strips notebooks
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "results" not in path.parts)]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
BLOCK = re.compile(r"(?:^<!-- (not run|file): (.*?) -->\n+)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "…"
FILES = {
    "host.toml": """schema = "quadrille/machine/2"
name = "toy"
[topology]
family = "host"
cores = 2
[device]
peak_flops_per_second = { float64 = 8e10, float32 = 1.6e11 }
memory_bytes_per_second = 1e10
memory_bytes = 8e9
overhead_seconds = 5e-6
[host]
cores = 2
[reference]
gemm_seconds = 1e-3
copy_seconds = 2e-4
add_seconds = 3e-4
""",
    "traffic.csv": "source,destination,bytes,start_s\n0,8,64000000,0\n1,40,1e6,0.001\n",
}
"""Contents of the files that a reader has at this point: a calibrated machine, and a traffic file."""
Call = Callable[[Sequence[str]], tuple[int, str, str]]
"""A function that runs `quadrille WORDS` and returns the exit status, stdout and stderr."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block of a page; `note` and `argument` are those of the comment before it."""

    language: str
    text: str
    note: str
    argument: str
    start: int
    end: int

    @property
    def commands(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        """Who starts a `quadrille` command, its words, and what is shown behind it."""
        for line, printed in self._lines():
            if re.search(r"(^|\s)quadrille [a-z]", line):
                words = shlex.split(line, comments=True)
                at = words.index("quadrille")
                yield " ".join(words[:at]), tuple(words[at + 1 :]), printed

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Command lines, and what is shown behind each."""
        if self.language == "console":
            for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
                line, _, printed = re.sub(r"\\\n *", "", part, count=0).partition("\n")
                yield line, printed
        elif self.language == "sh":
            for line in re.sub(r"\\\n *", "", self.text).splitlines():
                if not line.lstrip().startswith("#"):
                    yield line, ""


def blocks(text: str) -> list[CodeBlock]:
    """The fenced blocks of a page."""
    return [
        CodeBlock(one[3], one[4], one[1] or "", one[2] or "", one.start(), one.end()) for one in BLOCK.finditer(text)
    ]


def run_page(text: str, folder: Path, call: Call) -> Iterator[str]:
    """Runs a page's examples one after the other in `folder`; yields what is not as the page says."""
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    listed, variables = blocks(text), {"__name__": "__main__"}
    for block, after in zip(listed, [*listed[1:], None], strict=False):
        if block.note == "not run":
            continue
        if block.note == "file":
            (folder / block.argument).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            written = io.StringIO()
            with contextlib.redirect_stdout(written):
                exec(compile(block.text, "page", "exec"), variables)  # noqa: S102
            follows = after and after.language == "text" and not text[block.end : after.start].strip()
            if follows and written.getvalue() != after.text:
                yield f"the Python block printed\n{written.getvalue()}\nand not\n{after.text}"
        else:
            yield from run_commands(block, call)


def run_commands(block: CodeBlock, call: Call) -> Iterator[str]:
    """Runs the commands of a block; yields each failure and each difference from a console block."""
    for starter, words, shown in block.commands:
        if starter:
            continue
        status, out, err = call(words)
        if status:
            yield f"{shlex.join(words)} ended with {status}: {err}"
        elif block.language == "console" and as_shown(out, shown) != shown.rstrip("\n"):
            yield f"{shlex.join(words)} printed\n{out}\nand not\n{shown}"


def as_shown(out: str, shown: str) -> str:
    r"""What a command prints, with as many lines left out as where it is shown.

    >>> as_shown("a\nb\nc\nd\n", "a\n…\nD\n")
    'a\n…\nd'
    """
    lines, pattern = [line.rstrip() for line in out.rstrip("\n").splitlines()], shown.rstrip("\n").splitlines()
    if LEFT_OUT in pattern:
        at = pattern.index(LEFT_OUT)
        lines = [*lines[:at], LEFT_OUT, *lines[len(lines) - (len(pattern) - at - 1) :]]
    return "\n".join(lines)


def refreshed(text: str, folder: Path, call: Call) -> str:
    """A page whose console blocks show what their commands print now."""
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    for block in reversed(blocks(text)):  # from the end, so that places stay
        if block.note == "file":
            (folder / block.argument).write_text(block.text, encoding="utf-8")
    pieces, at = [], 0
    for block in blocks(text):
        if block.language != "console" or block.note:
            continue
        new = ""
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", part)[0]
            words = shlex.split(re.sub(r"\\\n *", "", command))[1:]
            status, out, err = call(words)
            if status:
                raise SystemExit(f"{shlex.join(words)}: {err}")
            new += f"$ {command}{as_shown(out, part.removeprefix(command))}\n"
        pieces += [text[at : block.start], f"```console\n{new}```"]
        at = block.end
    return "".join([*pieces, text[at:]])


def stripped(notebook: str) -> str:
    """The file of a notebook without outputs, counters and what an editor adds; cells are numbered."""
    content = json.loads(notebook)
    for number, cell in enumerate(content["cells"], 1):
        cell |= {"id": f"cell-{number}", "metadata": {}}
        if cell["cell_type"] == "code":
            cell |= {"execution_count": None, "outputs": []}
    content["metadata"] = NOTEBOOK_METADATA
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def in_process_of_its_own(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """Runs `quadrille WORDS` in `folder`."""
    variables = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-P", "-m", "quadrille", *words]
    done = subprocess.run(program, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def main() -> None:
    """Writes what the console blocks print into the pages, and strips the notebooks."""
    for path in NOTEBOOKS:
        path.write_text(stripped(path.read_text(encoding="utf-8")), encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new = refreshed(text, Path(folder), lambda words: in_process_of_its_own(words, Path(folder)))
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: outputs written anew")


if __name__ == "__main__":
    main()
