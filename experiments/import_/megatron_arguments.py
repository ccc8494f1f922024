"""Megatron-LM's arguments as written in a file: JSON, YAML, the `arguments` block of a log, or a launch script.

A file is read as the first of these that fits:

    JSON     an object whose keys are arguments, also below `args` or `MODEL_ARGS`, or a list of words
    YAML     lines `--name: value`, as in Megatron-LM's own tests
    log      lines `name ........ value`, which Megatron-LM prints at its start
    script   words of a shell script; assignments `NAME=value` replace `$NAME` and `${NAME}`

Nothing is executed: of a script only its words count, so `$(…)`, conditions and loops are not followed.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json
from quadrille.experiments.import_.argument_values import Argument

MOST_BYTES = 2**22
"""The largest accepted file [B]."""
MOST_WORDS = 100_000
YAML_LINE = re.compile(r"^[ \t]*(--[\w-]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
LOG_LINE = re.compile(r"^(?:[^\n]{0,64}?:)?[ \t]*(\w+) \.{2,} (.*?)[ \t]*$", re.MULTILINE)
MEGATRON = re.compile(
    r"--(?:num[-_]layers|hidden[-_]size)\b|^.{0,64}\b(?:num_layers|hidden_size) \.{2,} ", re.MULTILINE
)
"""An argument that every job has."""
ASSIGNMENT = re.compile(r"^(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)$", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^${}]*))?\}|([A-Za-z_]\w*))")
SUBSTITUTIONS = 8
"""The largest number of times that values of variables are put into each other."""
LONGEST_VALUE = 2**16
END = ";"
"""The word after the last word of an array of a script."""
PROCESSES = ("nproc_per_node", "nproc-per-node")


@dataclass(frozen=True, slots=True)
class JobArguments:
    """The arguments of a job.

    Parameters
    ----------
    values : value of each argument by its name, without dashes and with `-` between words; True for a switch
    gpus : number of GPUs that the file names; None if it names none
    script : name of the training script; empty if unknown
    """

    values: Mapping[str, Argument]
    gpus: int | None = None
    script: str = ""


def read_arguments(text: str) -> JobArguments:
    r"""The arguments in the text of a file.

    >>> read_arguments('{"--num-layers": 2, "--bf16": true}').values
    {'num-layers': '2', 'bf16': True}
    >>> read_arguments("N=2\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $N --bf16").gpus
    8

    Raises
    ------
    InputError : a text without arguments, or with more than are accepted
    """
    if len(text) > MOST_BYTES:
        raise InputError(f"{len(text)} characters: at most {MOST_BYTES} are accepted")
    if "\0" in text:
        raise InputError("a zero byte: a text is accepted")
    stripped = text.lstrip()
    if stripped.startswith("{") or re.match(r"\[\s*[\"'\]]", stripped):
        return _from_json(stripped)
    if (yaml := _from_pairs(YAML_LINE.findall(text))).values:
        return yaml
    if len(rows := LOG_LINE.findall(text)) > 1:
        return _from_log(rows)
    return _from_words(_script_words(text))


def has_arguments(text: str) -> bool:
    """Whether a text has arguments of Megatron-LM: of a command line, of YAML or JSON, or in a log.

    >>> has_arguments("python pretrain_gpt.py --num-layers 2"), has_arguments("model: {num_layers: 2}")
    (True, False)
    """
    return bool(MEGATRON.search(text))


def _from_json(text: str) -> JobArguments:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(str(error)) from None
    if isinstance(content, dict):
        content = content.get("args", content.get("MODEL_ARGS", content))
    if isinstance(content, str):
        return _from_json(content) if content.lstrip().startswith("{") and len(content) < len(text) else _no_arguments()
    if isinstance(content, list):
        return _from_words([str(word) for word in content[:MOST_WORDS]])
    if not isinstance(content, dict) or not any(str(name).startswith("--") for name in content):
        return _no_arguments()
    named = {name: value for name, value in content.items() if value is not False and value is not None}
    return JobArguments({_name(name): _json_value(name, value) for name, value in named.items()})


def _no_arguments() -> JobArguments:
    raise InputError("no arguments of Megatron-LM, such as --num-layers: JSON, YAML, a log or a script is accepted")


def _json_value(name: str, value: object) -> Argument:
    if value is True:
        return True
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        raise InputError(f"{name:.40}: an object: a number, a word or a list is accepted")
    return str(value)


def _name(argument: str) -> str:
    """The name without dashes, in the spelling of the command line.

    >>> _name("--micro_batch-size")
    'micro-batch-size'
    """
    return argument.lstrip("-").replace("_", "-")


def _from_pairs(rows: Sequence[tuple[str, str]]) -> JobArguments:
    """The arguments of YAML lines; comments and quotes are left out."""
    values: dict[str, Argument] = {}
    for name, written in rows[:MOST_WORDS]:
        value = written if written[:1] in "\"'" else re.sub(r"\s+#.*|^#.*", "", written)
        value = value.strip().strip("\"'")
        if value.lower() not in ("false", "null"):
            values[_name(name)] = True if value.lower() in ("true", "") else value
    return JobArguments(values)


def _from_log(rows: Sequence[tuple[str, str]]) -> JobArguments:
    """The arguments that a log prints, with all defaults; `world_size` is the number of GPUs."""
    values = {
        _name(name): True if value == "True" else value
        for name, value in rows[:MOST_WORDS]
        if value not in ("None", "False")
    }
    for positive, negative in NEGATED.items():
        if positive not in values and any(_name(name) == positive for name, _ in rows):
            values[negative] = True
    world = str(values.pop("world-size", ""))
    return JobArguments(values, _count(world))


NEGATED = {
    "add-bias-linear": "disable-bias-linear",
    "gradient-accumulation-fusion": "no-gradient-accumulation-fusion",
    "create-attention-mask-in-dataloader": "no-create-attention-mask-in-dataloader",
    "tie-embeddings-and-output-weights": "untie-embeddings-and-output-weights",
}
"""Switches that a log prints by the opposite of their name on the command line."""


def _script_words(text: str) -> list[str]:
    """The words of a shell script, without those of comments, with values of variables in place."""
    try:
        words = shlex.split(text.replace("\\\r\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"is no shell script: {error}") from None
    if len(words) > MOST_WORDS:
        raise InputError(f"{len(words)} words: at most {MOST_WORDS} are accepted")
    variables: dict[str, str] = {}
    expanded: list[str] = []
    for word in words:
        assigned = ASSIGNMENT.match(word)
        if assigned and not assigned[2].startswith("("):
            variables[assigned[1]] = _substituted(assigned[2], variables)
            if "--" in assigned[2]:  # a variable that holds arguments
                expanded += variables[assigned[1]].split()
            continue
        bare = word.strip("()")
        expanded += _substituted(bare, variables).split() if "$" in word else [bare]
        expanded += [END] if word.endswith(")") else []
    return [word for word in expanded if word]


def _substituted(word: str, variables: Mapping[str, str]) -> str:
    """The word with known variables replaced, and unknown variables left as they are."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name, default if default is not None else match[0])

    for _ in range(SUBSTITUTIONS):
        replaced = VARIABLE.sub(value, word)
        if replaced == word or len(replaced) > LONGEST_VALUE:
            break
        word = replaced
    return word


def _from_words(words: Sequence[str]) -> JobArguments:
    """The arguments in a list of words; a later value replaces an earlier one."""
    values: dict[str, Argument] = {}
    for name, arguments in _groups(words):
        values[_name(name)] = " ".join(arguments) if arguments else True
    script = next((word for word in words if re.search(r"pretrain_\w+\.py$", word)), "")
    if not values:
        return _no_arguments()
    counts = (_count(_first(values, _name(name))) for name in PROCESSES)
    processes = next((count for count in counts if count is not None), None)
    nodes = _count(_first(values, "nnodes"))
    gpus = processes * (1 if nodes is None else nodes) if processes is not None else None
    return JobArguments(values, gpus, script)


def _first(values: Mapping[str, Argument], name: str) -> str:
    """The first word of a value, of at most nine digits if it is a number; empty for a switch or no value."""
    word = values.get(name, "")
    return word.split()[0][:9] if isinstance(word, str) and word.split() else ""


def _groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each argument with the words up to the next one."""
    name, values = "", list[str]()
    for word in words:
        is_name = re.match(r"--[A-Za-z]", word)
        if not is_name and word != END:
            values.append(word)
            continue
        if name:
            yield name, values
        name, _, value = word.partition("=") if is_name else ("", "", "")
        values = [value] if value else []
    if name:
        yield name, values


def _count(text: str) -> int | None:
    """A number of processes or nodes; None for another text, such as a variable of a shell."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None
