"""SimAI's workloads (files of AICB), the layers of a training step with times and collectives, as a message graph.

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 vpp: 8 ga: 1 all_gpus: 64 checkpoints: 0 …
    2
    NAME -1 FORWARD_NS COLLECTIVE BYTES INPUT_GRADIENT_NS COLLECTIVE BYTES WEIGHT_GRADIENT_NS COLLECTIVE BYTES UPDATE_NS
    …

    for each layer in order         forward, then its collective
    for each layer in reverse       input gradient; weight gradient beside the collective of the input gradient, which
                                    layer 0 lacks; the collective of the weight gradient runs beside what follows
    after each collective           UPDATE_NS

    collective                      group
    of forward, input gradient      tensor ranks: `model_parallel_NPU_group` ranks in sequence
    of weight gradient              data ranks: the ranks with the same place among tensor ranks
    NAME_EP                         expert ranks: `ep` data ranks in sequence
    NAME_DP_EP                      the data ranks with the same place among expert ranks

A size is that of the whole buffer.  The file has the layers of one pipeline stage: the graph has its ranks alone,
without messages between stages.  `ga` and `vpp` are in the layers already.  Recomputation by `checkpoints` is refused.

Sources: aliyun/SimAI, astra-sim-alibabacloud/astra-sim/workload/Workload.cc (order of the passes) and
system/MockNcclGroup.cc (groups); aliyun/aicb, workload_generator/SimAI_training_workload_generator.py (sizes).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph, check_count
from quadrille.algorithms.schedule.ops import CollectiveKind

POLICIES = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")
POLICY = re.compile(r"\s*(HYBRID_[A-Z_]+|MICRO|DATA|MODEL|DLRM|DLRM_ENHANCED|DISTRIBUTED_INFERENCE)(?=\s)")
SETTING = re.compile(r"(\w+)(?::|(?=\s))\s*(\S+)")
COLLECTIVES: Mapping[str, CollectiveKind] = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
}
ACCEPTED = f"accepted are NONE and {', '.join(COLLECTIVES)}, with _EP or _DP_EP behind it"
COLUMNS = 12
PASSES = ("forward", "input gradient", "weight gradient")
NANOSECOND = 1e-9
MOST_RANKS = 2**14
LARGEST_BYTES = 1e15
LONGEST_NANOSECONDS = 1e15
COMMUNICATION_STREAM, UPDATE_STREAM = 2, 3


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a stage: tensor ranks are neighbours, then expert ranks, then the other data ranks.

    >>> ranks = Ranks(tensor=2, expert=2, count=8, stages=1)
    >>> ranks.group("TP", 5), ranks.group("DP", 5), ranks.group("EP", 5), ranks.group("DP_EP", 5)
    ((4, 5), (1, 3, 5, 7), (5, 7), (1, 5))
    """

    tensor: int
    expert: int
    count: int
    stages: int

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group with this name that has a rank."""
        inner = self.tensor * self.expert
        place, block = rank % self.tensor, rank - rank % inner
        if name == "TP":
            return tuple(range(rank - place, rank - place + self.tensor))
        if name == "DP":
            return tuple(range(place, self.count, self.tensor))
        if name == "EP":
            return tuple(range(block + place, block + inner, self.tensor))
        return tuple(range(rank % inner, self.count, inner))


@dataclass(frozen=True, slots=True)
class Part:
    """A pass through a layer: a calculation, and the collective behind it.

    Parameters
    ----------
    seconds : time of the calculation [s]
    kind : collective; None if there is none
    group : name of the group
    bytes : size of the whole buffer [B]
    """

    seconds: float
    kind: CollectiveKind | None
    group: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its passes in the order of `PASSES`, and the time after each collective [s]."""

    name: str
    parts: tuple[Part, Part, Part]
    update: float


def is_workload(text: str) -> bool:
    """Whether a text begins as a workload of SimAI or of ASTRA-sim 1 does.

    >>> is_workload("HYBRID_TRANSFORMER model_parallel_NPU_group: 8"), is_workload("num_ranks 2")
    (True, False)
    """
    line = text[:2000].lstrip("\ufeff \t\r\n").partition("\n")[0] + " "
    return POLICY.match(line) is not None and (line.startswith("HYBRID_TRANSFORMER") or not line.split()[1:])


def workload_graph(text: str, path: str) -> tuple[MessageGraph, list[str]]:
    """The message graph of a workload, and remarks on what it leaves out.

    Raises
    ------
    InputError : a fault, with its line
    """
    ranks, layers = read_workload(text, path)
    groups = {part.group for layer in layers for part in layer.parts if part.kind}
    longest = 2 * len(PASSES) * len(layers) + sum(layer.update > 0 for layer in layers) * len(PASSES)
    check_count(longest * ranks.count, path)
    shared: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    graph = []
    for rank in range(ranks.count):
        members = {name: ranks.group(name, rank) for name in groups}
        members = {name: shared.setdefault((name, group), group) for name, group in members.items()}
        graph.append(_tasks(layers, members))
    return MessageGraph(tuple(graph)), list(_remarks(ranks))


def read_workload(text: str, path: str) -> tuple[Ranks, list[Layer]]:
    """The ranks of a stage and the layers of a workload.

    Raises
    ------
    InputError : a fault, with its line
    """
    lines = text.splitlines()
    return _ranks(lines[0], path), _layers(lines, path)


def setting_of(text: str, name: str, default: int, path: str) -> int:
    """The number of a setting of the first line; the default if the line lacks it, or has 0.

    Raises
    ------
    InputError : no whole number
    """
    words = text.lstrip("\ufeff").partition("\n")[0].split(maxsplit=1)
    value = dict(SETTING.findall(words[-1])).get(name, "0").removesuffix(".0")
    if not re.fullmatch("[0-9]{1,18}", value):
        raise InputError(f"{path}, line 1: {name}: {value[:40]!r}: a whole number is accepted")
    return int(value) or default


def _remarks(ranks: Ranks) -> Iterator[str]:
    if ranks.stages > 1:
        yield (
            f"{ranks.stages} pipeline stages: the file has the layers of one, and {ranks.count:,} ranks compute them; "
            "messages between stages and idle slots are left out"
        )


def _ranks(line: str, path: str) -> Ranks:
    """The ranks that the first line names."""
    policy = POLICY.match(line.lstrip("\ufeff") + " ")
    if policy is None or policy[1] not in POLICIES:
        raise InputError(f"{path}, line 1: {line.strip()[:40]!r}: accepted is a workload of {' or '.join(POLICIES)}")
    settings = dict(SETTING.findall(line[policy.end(1) :]))
    tensor, expert, stages, gpus = (
        _setting(settings, name, default, path)
        for name, default in (("model_parallel_NPU_group", None), ("ep", 1), ("pp", 1), ("all_gpus", None))
    )
    if settings.get("checkpoints", "0") != "0":
        raise InputError(f"{path}, line 1: checkpoints: {settings['checkpoints']:.40}: 0 is accepted, no recomputation")
    if gpus % (tensor * expert * stages):
        raise InputError(
            f"{path}, line 1: all_gpus: {gpus}: a multiple of model_parallel_NPU_group x ep x pp = "
            f"{tensor * expert * stages} is needed"
        )
    count = gpus // stages
    if count > MOST_RANKS:
        raise InputError(f"{path}, line 1: all_gpus: {gpus}: at most {MOST_RANKS} ranks of a stage are accepted")
    return Ranks(tensor, expert, count, stages)


def _setting(settings: Mapping[str, str], name: str, default: int | None, path: str) -> int:
    value = settings.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise InputError(f"{path}, line 1: {name}: is missing: a whole number from 1 is needed")
    if not re.fullmatch("[0-9]{1,9}", value) or int(value) == 0:
        raise InputError(f"{path}, line 1: {name}: {value[:40]!r}: a whole number from 1 to 999999999 is accepted")
    return int(value)


def _layers(lines: Sequence[str], path: str) -> list[Layer]:
    """The layers behind the line with their number; later lines must be empty."""
    words = lines[1].split() if len(lines) > 1 else []
    if len(words) != 1 or not re.fullmatch("[0-9]{1,9}", words[0]):
        raise InputError(f"{path}, line 2: {' '.join(words)[:40]!r}: the number of layers is needed")
    rows = [(number, line.split()) for number, line in enumerate(lines[2:], start=3) if line.strip()]
    if len(rows) != int(words[0]) or not rows:
        raise InputError(f"{path}, line 2: {words[0]} layers: the file has {len(rows)} lines of layers")
    return [_layer(row, f"{path}, line {number}") for number, row in rows]


def _layer(row: Sequence[str], place: str) -> Layer:
    if len(row) != COLUMNS:
        raise InputError(f"{place}: {len(row)} columns: a layer has {COLUMNS}")
    passes = [
        _part(row[first : first + 3], group, f"{place}, {name}")
        for first, group, name in zip((2, 5, 8), ("TP", "TP", "DP"), PASSES, strict=True)
    ]
    update = _number(row[-1], LONGEST_NANOSECONDS, f"{place}, update time")
    return Layer(row[0], (passes[0], passes[1], passes[2]), update * NANOSECOND)


def _part(row: Sequence[str], group: str, place: str) -> Part:
    seconds = _number(row[0], LONGEST_NANOSECONDS, place) * NANOSECOND
    size = _number(row[2], LARGEST_BYTES, f"{place}, bytes")
    name, _, suffix = row[1].partition("_")
    if name == "NONE" and not suffix:
        return Part(seconds, None, group, 0.0)
    if name not in COLLECTIVES or suffix not in ("", "EP", "DP_EP"):
        raise InputError(f"{place}: collective {row[1][:40]!r}: {ACCEPTED}")
    return Part(seconds, COLLECTIVES[name] if size else None, suffix or group, size)


def _number(word: str, most: float, place: str) -> float:
    if not re.fullmatch("[0-9]{1,18}", word) or int(word) > most:
        raise InputError(f"{place}: {word[:40]!r}: a whole number from 0 to {most:g} is accepted")
    return float(word)


class _Tasks:
    """The tasks of a rank while they are listed; a calculation waits for all that must have ended."""

    def __init__(self, groups: Mapping[str, tuple[int, ...]]) -> None:
        self.tasks: list[GraphTask] = []
        self._groups = groups

    def calculate(self, seconds: float, needs: Sequence[int], name: str, stream: int = 0) -> int:
        """Adds a calculation, and returns its index."""
        self.tasks.append(GraphTask("calculate", seconds, needs=tuple(needs), stream=stream, name=name))
        return len(self.tasks) - 1

    def communicate(self, part: Part, update: float, need: int, name: str) -> int:
        """Adds the collective of a part with the time after it, and returns the index of its end."""
        group = self._groups[part.group] if part.kind else ()
        if part.kind is None or len(group) == 1:
            return need
        self.tasks.append(
            GraphTask(
                *("collective", part.bytes, (need,)),
                stream=COMMUNICATION_STREAM,
                collective=part.kind,
                group=group,
                name=name,
            )
        )
        end = len(self.tasks) - 1
        return self.calculate(update, (end,), name, UPDATE_STREAM) if update else end


def _tasks(layers: Sequence[Layer], groups: Mapping[str, tuple[int, ...]]) -> list[GraphTask]:
    """The tasks of a rank: the forward pass, then the backward pass."""
    rank, ended = _Tasks(groups), list[int]()
    for layer in layers:
        part = layer.parts[0]
        end = rank.calculate(part.seconds, ended, f"{layer.name} forward")
        ended = [rank.communicate(part, layer.update, end, f"{layer.name} forward")]
    for number in reversed(range(len(layers))):
        layer = layers[number]
        of_input, of_weights = layer.parts[1:]
        end = rank.calculate(of_input.seconds, ended, f"{layer.name} input gradient")
        summed = rank.communicate(of_input, layer.update, end, f"{layer.name} input gradient") if number else end
        end = rank.calculate(of_weights.seconds, (end,), f"{layer.name} weight gradient")
        rank.communicate(of_weights, layer.update, end, f"{layer.name} weight gradient")
        ended = [end, summed]
    return rank.tasks
