"""Measured times of collectives in the output of benchmarks: `read_collective_log`.

A file is read as the first of these that fits:

    nccl-tests, -J   a JSON object with `results`, `config` and `args`
    NCCL Inspector   a JSON object a line with `coll_perf`
    OSU              a title `# OSU MPI Allreduce Latency Test`, then size and latency [us] a line
    nccl-tests       its table, old (`error`) or new (`#wrong`); that of rccl-tests is the same

The table of nccl-tests has the time of a call out of place and in place; both are rows.  It does not always name the
collective: the name comes from a line `Collective test starting`, a program's name such as `all_reduce_perf`, or the
file's name; otherwise from the columns `redop` and `root` and the ratio of both bandwidths, as far as these decide.
Sizes are those of the whole buffer [B], as nccl-tests counts them.
Sources: NVIDIA/nccl-tests, src/common.cu and src/util.cu; NVIDIA/nccl, plugins/profiler/inspector/README.md;
OSU Micro-Benchmarks 7.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import PurePath
from typing import Any, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json, read_text
from quadrille.algorithms.schedule.ops import CollectiveKind

MOST_BYTES = 2**26
"""The largest accepted file [B]."""
MOST_ROWS = 100_000
MOST_RANKS = 2**24
LONGEST_SECONDS = 1e6
ITEM_BYTES = {
    **dict.fromkeys(("int8", "uint8", "fp8e4m3", "fp8e5m2", "f8e4m3", "f8e5m2", "char"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
"""Size of an element by the name that nccl-tests prints [B]."""
NAMES: Mapping[str, CollectiveKind] = {
    **{kind.replace("_", ""): kind for kind in get_args(CollectiveKind)},
    "sendrecv": "send_receive",
    "bcast": "broadcast",
}
"""Kinds by their names without `-`, `_` and blanks, in lower case."""
PROGRAM = re.compile(
    r"(?<![a-z])(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|broadcast|bcast|sendrecv|"
    r"send[-_ ]?receive|reduce)(?![a-z])"
)
DEVICE = re.compile(
    r"^#[ \t]+Rank[ \t]+(\d{1,9})(?: Group[ \t]+(\d+))? Pid[ \t]+\d+ on[ \t]+(\S+) device[ \t]+\d+ "
    r"\[[^\]\n]*\][ \t]*(.*)$"
)
MOST_DIGITS = 18
"""Most digits of a size in bytes."""
TABLE_HEAD = re.compile(r"^#[ \t]+size[ \t]+count[ \t]+type\b")
STARTS = re.compile(r"^#[ \t]*Collective test starting: (\w+)")
OSU_TITLE = re.compile(r"^# OSU MPI(?:-\w+)? (?:Non-blocking )?([A-Za-z]+(?:[- ]to[- ]all)?) (?:\w+ )*Latency Test")
NUMBER = r"(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
FOUND_BY = (
    "a table of nccl-tests or rccl-tests, JSON of nccl-tests (-J), lines of NCCL Inspector, or a table of an OSU "
    "benchmark of a collective is accepted"
)


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A measured time.

    Parameters
    ----------
    kind : kind of the collective; None if the file does not tell it
    bytes : size of the whole buffer [B]
    seconds : time of a call [s]
    in_place : whether the result replaces the operand; None if unknown
    item_bytes : size of an element [B]; None if unknown
    """

    kind: CollectiveKind | None
    bytes: int
    seconds: float
    in_place: bool | None = None
    item_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CollectiveLog:
    """The measured times of a file.

    Parameters
    ----------
    program : nccl-tests, NCCL Inspector or OSU
    rows : measured times, in the order of the file
    ranks : number of ranks; None if the file does not tell it
    nodes : number of nodes; None if the file does not tell it
    devices : names of the GPUs, each once
    library : version of the library; empty if unknown
    """

    program: str
    rows: tuple[MeasuredCollective, ...]
    ranks: int | None = None
    nodes: int | None = None
    devices: tuple[str, ...] = ()
    library: str = ""

    def of_kind(self, kind: CollectiveKind) -> "CollectiveLog":
        """The log, with this kind for the rows whose kind the file does not tell."""
        return replace(self, rows=tuple(row if row.kind else replace(row, kind=kind) for row in self.rows))


def read_collective_log(path: str) -> CollectiveLog:
    """The measured times in a file.

    Raises
    ------
    InputError : a file that cannot be read, or without measured times
    """
    try:
        text = read_text(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if "\0" in text:
        raise InputError(f"{path}: a zero byte: {FOUND_BY}")
    try:
        log = collective_log(text, PurePath(path).name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not log.rows:
        raise InputError(f"{path}: has no measured time: {FOUND_BY}")
    if len(log.rows) > MOST_ROWS:
        raise InputError(f"{path}: {len(log.rows)} measured times: at most {MOST_ROWS} are accepted")
    return log


def collective_log(text: str, name: str = "") -> CollectiveLog:
    r"""The measured times in a text.

    Parameters
    ----------
    name : name of the file, which may tell the collective

    >>> log = collective_log("# OSU MPI Allreduce Latency Test v7.3\n# Size  Avg Latency(us)\n1024   32\n")
    >>> log.rows
    (MeasuredCollective(kind='all_reduce', bytes=1024, seconds=3.2e-05, in_place=None, item_bytes=None),)

    Raises
    ------
    InputError : a fault, with its place
    """
    stripped = text.lstrip()
    if stripped.startswith("{"):
        if '"coll_perf"' in stripped.partition("\n")[0]:
            return _inspector(stripped)
        return _nccl_tests_json(stripped, name)
    for line in stripped.splitlines()[:50]:
        if (title := OSU_TITLE.match(line)) is not None:
            return _osu(stripped, title[1])
    return _nccl_tests(text, name)


def is_collective_log(head: str) -> bool:
    r"""Whether the first characters of a file are those of measured collectives, whole or truncated.

    >>> is_collective_log("# OSU MPI Allreduce Latency Test v7.3\n"), is_collective_log("--num-layers 2")
    (True, False)
    """
    start = head.lstrip()
    if start.startswith("{"):
        return '"coll_perf"' in start.partition("\n")[0] or ('"out_of_place"' in start and '"results"' in start)
    lines = head.splitlines()
    return any(OSU_TITLE.match(line) for line in lines[:50]) or any(
        DEVICE.match(line) or TABLE_HEAD.match(line) for line in lines
    )


def _named_kind(text: str) -> CollectiveKind | None:
    """The collective that a text names, if it names one.

    >>> _named_kind("./build/all_reduce_perf -b 8"), _named_kind("nccl_alltoall.log"), _named_kind("run-7.log")
    ('all_reduce', 'all_to_all', None)
    """
    kinds = {
        NAMES[re.sub("[-_ ]", "", word)]
        for word in PROGRAM.findall(text.lower().replace("reduce_scatter", "reducescatter"))
    }
    return kinds.pop() if len(kinds) == 1 else None


def _seconds(microseconds: object, place: str) -> float:
    """A time in microseconds as seconds.

    Raises
    ------
    InputError : no number above 0
    """
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        raise InputError(f"{place}: time {microseconds!s:.40}: a number of microseconds is needed")
    seconds = float(microseconds) * 1e-6
    if not isfinite(seconds) or not 0 < seconds <= LONGEST_SECONDS:
        raise InputError(f"{place}: time {microseconds:g} us: above 0 and at most {LONGEST_SECONDS:g} s is needed")
    return seconds


# Tables of nccl-tests


def _nccl_tests(text: str, name: str) -> CollectiveLog:
    hosts: dict[int, str] = {}
    devices: dict[str, None] = {}
    rows: list[MeasuredCollective] = []
    library = ""
    kind = _named_kind(name)
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            if (device := DEVICE.match(line)) is not None:
                hosts[int(device[1])] = device[3]
                devices[device[4].strip()] = None
            elif (starting := STARTS.match(line)) is not None:
                kind = _named_kind(starting[1]) or kind
            elif line.startswith(("# nccl-tests version", "# NCCL version", "# nccl version")):
                library = line.lstrip("# ").strip()
        elif re.search(r"\w+_perf\b", line):
            kind = _named_kind(" ".join(re.findall(r"(\w+)_perf\b", line))) or kind
        else:
            rows += _table_row(line, kind, len(hosts), f"line {number}")
    ranks = len(hosts) or None
    _check_ranks(ranks)
    return CollectiveLog(
        "nccl-tests", tuple(rows), ranks, len(set(hosts.values())) or None, tuple(filter(None, devices)), library
    )


def _table_row(line: str, kind: CollectiveKind | None, ranks: int, place: str) -> Iterator[MeasuredCollective]:
    """The times of a line of the table: out of place, then in place."""
    words = line.split()
    if not 11 <= len(words) <= 13 or not words[1].isdigit() or words[2] not in ITEM_BYTES:
        return
    size, named = _size(words[0], place), words[3:-8]
    redop = next((word for word in named if word[0].isalpha()), "")
    for numbers, in_place in ((words[-8:-5], False), (words[-4:-1], True)):
        if not size or not all(re.fullmatch(NUMBER, word) for word in numbers):
            continue
        time, algorithm, bus = map(float, numbers)
        row_kind = kind or _kind_of_columns(redop, bus / algorithm if algorithm >= 1 else 0.0, ranks)
        yield MeasuredCollective(row_kind, size, _seconds(time, place), in_place, ITEM_BYTES[words[2]])


def _size(word: str, place: str) -> int | None:
    """The bytes that the first word of a row names; None for a line that is no row.

    Raises
    ------
    InputError : more than 18 digits
    """
    if not re.fullmatch("[0-9]+", word):
        return None
    if len(word) > MOST_DIGITS:
        raise InputError(f"{place}: {word[:40]!r} bytes: a size of at most {MOST_DIGITS} digits is accepted")
    return int(word)


def _kind_of_columns(redop: str, ratio: float, ranks: int) -> CollectiveKind | None:
    """The collective of a row with this reduction, and bus / algorithm bandwidth; None if several have these.

    >>> _kind_of_columns("sum", 1.75, 8), _kind_of_columns("sum", 0.875, 8), _kind_of_columns("none", 0.875, 8)
    ('all_reduce', 'reduce_scatter', None)
    """
    if ranks < 3 or ratio == 0 or redop in ("", "none"):
        return None
    factors: dict[CollectiveKind, float] = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "reduce_scatter": (ranks - 1) / ranks,
        "reduce": 1.0,
    }
    near = [kind for kind, factor in factors.items() if abs(ratio / factor - 1) < 0.02]
    return near[0] if len(near) == 1 else None


# JSON


def _nccl_tests_json(text: str, name: str) -> CollectiveLog:
    try:
        content = _object(parse_json(text), "file")
    except ValueError as error:
        raise InputError(f"{error}: {FOUND_BY}") from None
    results = content.get("results")
    if not isinstance(results, list):
        raise InputError(f"key 'results' is missing: {FOUND_BY}")
    config = _object(content.get("config") or {}, "config")
    devices = [_object(device, "config.devices") for device in _list(config.get("devices") or [], "config.devices")]
    program = "".join(map(str, _list(content.get("args") or [], "args")[:1]))
    kind = _named_kind(program) or _named_kind(name)
    rows: list[MeasuredCollective] = []
    for number, result in enumerate(results):
        place = f"results[{number}]"
        entry = _object(result, place)
        size = _whole(entry.get("size"), f"{place}.size")
        for key, in_place in (("out_of_place", False), ("in_place", True)):
            times = entry.get(key)
            if size and isinstance(times, dict) and isinstance(times.get("time"), int | float) and times["time"] > 0:
                seconds = _seconds(times["time"], f"{place}.{key}")
                rows.append(MeasuredCollective(kind, size, seconds, in_place, ITEM_BYTES.get(str(entry.get("type")))))
    ranks = (
        len({_whole(device.get("rank"), f"config.devices[{number}].rank") for number, device in enumerate(devices)})
        or None
    )
    nodes = len({str(device.get("hostname")) for device in devices}) or None
    names = dict.fromkeys(str(device["device_info"]) for device in devices if device.get("device_info"))
    library = f"NCCL {content['nccl_version']}" if isinstance(content.get("nccl_version"), int | str) else ""
    return CollectiveLog("nccl-tests", tuple(rows), ranks, nodes, tuple(names), library)


def _inspector(text: str) -> CollectiveLog:
    """The times of NCCL Inspector's lines; each line is a rank's, and the longest time of a collective counts.

    The size of an all-gather or reduce-scatter is that of a rank's part: its algorithm bandwidth counts the whole.
    """
    longest: dict[tuple[object, ...], MeasuredCollective] = {}
    layouts: set[tuple[int, int]] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = _object(parse_json(line), f"line {number}")
        except ValueError:
            raise InputError(f"line {number}: is no JSON object, as NCCL Inspector writes one a line") from None
        header, perf = (_object(entry.get(key), f"line {number}: {key}") for key in ("header", "coll_perf"))
        word = re.sub("[-_]", "", str(perf.get("coll"))).lower()
        if word not in NAMES:
            raise InputError(
                f"line {number}: collective {str(perf.get('coll'))!r:.40}: accepted are {', '.join(NAMES)}"
            )
        ranks = _whole(header.get("n_ranks"), f"line {number}: n_ranks")
        layouts.add((ranks, _whole(header.get("nnodes"), f"line {number}: nnodes")))
        size = _whole(perf.get("coll_msg_size_bytes"), f"line {number}: coll_msg_size_bytes")
        kind = NAMES[word]
        whole = size * ranks if kind in ("all_gather", "reduce_scatter") else size  # of a rank's part
        seconds = _seconds(perf.get("coll_exec_time_us"), f"line {number}")
        communicator, call = (
            _label(entry.get(name), f"line {number}: {name}") for entry, name in ((header, "id"), (perf, "coll_sn"))
        )
        key = communicator, call, kind, whole
        if key not in longest or longest[key].seconds < seconds:
            longest[key] = MeasuredCollective(kind, whole, seconds)
    if len(layouts) > 1:
        words = ", ".join(f"{ranks} ranks on {nodes} nodes" for ranks, nodes in sorted(layouts))
        raise InputError(f"communicators of several sizes ({words:.200}): give the lines of one of them")
    ranks, nodes = next(iter(layouts), (0, 0))
    _check_ranks(ranks)
    return CollectiveLog("NCCL Inspector", tuple(longest.values()), ranks, nodes or None)


def _osu(text: str, title: str) -> CollectiveLog:
    kind = NAMES.get(re.sub("[- ]", "", title).lower())
    if kind is None:
        raise InputError(f"OSU benchmark of {title!r:.40}: accepted are {', '.join(NAMES)}")
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if len(words) >= 2 and re.fullmatch(NUMBER, words[1]) and (size := _size(words[0], f"line {number}")):
            rows.append(MeasuredCollective(kind, size, _seconds(float(words[1]), f"line {number}")))
    return CollectiveLog("OSU", tuple(rows))


def _object(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: an object is needed")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{place}: a list is needed")
    return value


def _whole(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InputError(f"{place} {value!s:.40}: a whole number from 0 is needed")
    return value


def _label(value: object, place: str) -> object:
    """A text or a number, which tells entries apart; None where there is none."""
    if isinstance(value, dict | list):
        raise InputError(f"{place} {value!s:.40}: a text or a number is needed")
    return value


def _check_ranks(ranks: int | None) -> None:
    if ranks is not None and not 0 < ranks <= MOST_RANKS:
        raise InputError(f"{ranks} ranks: 1 to {MOST_RANKS} are accepted")
