"""Bytes that this process may still allocate on this Linux host.

    available = min(MemAvailable of the host,
                    limit - use + reclaimable cache of every control group above us)

Containers and batch systems limit memory by control groups (version 1 or 2);
a process that asks the host alone is killed there without a word.  Other ranks
on the host ask at the same moment: the caller shares the figure among them.

Source: Linux kernel documentation, "The /proc filesystem" (MemAvailable),
"Control Group v2" (memory.max, memory.current, memory.stat: inactive_file),
"Memory Resource Controller" (version 1: memory.limit_in_bytes …).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Controller:
    """Names that one version of control groups gives to its memory files."""

    mount: str
    limit: str
    use: str
    reclaimable: str


VERSION_2 = Controller("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
VERSION_1 = Controller("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def bytes_available(root: str | Path = "/") -> int | None:
    r"""Bytes that this process may still allocate; None where the system does not say.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as host:
    ...     for name, text in {
    ...         "proc/meminfo": "MemTotal: 64 kB\nMemAvailable: 16 kB\n",
    ...         "proc/self/cgroup": "0::/job/step\n",
    ...         "sys/fs/cgroup/job/memory.max": "9000\n",
    ...         "sys/fs/cgroup/job/memory.current": "8000\n",
    ...         "sys/fs/cgroup/job/memory.stat": "file 700\ninactive_file 500\n",
    ...         "sys/fs/cgroup/job/step/memory.max": "max\n",
    ...     }.items():
    ...         path = Path(host, name)
    ...         path.parent.mkdir(parents=True, exist_ok=True)
    ...         _ = path.write_text(text)
    ...     bytes_available(host)
    1500

    Parameters
    ----------
    root : folder in which `proc` and `sys` are found
    """
    root = Path(root)
    known = [*_host_available(_text(root / "proc/meminfo")), *_group_available(root)]
    return max(0, min(known)) if known else None


def _host_available(meminfo: str) -> Iterator[int]:
    r"""What the system can give without swapping.

    >>> list(_host_available("MemFree:  3 kB\nMemAvailable:  16 kB\n"))
    [16384]
    """
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _group_available(root: Path) -> Iterator[int]:
    """What is left below the limit of each control group from ours up to the top."""
    for controller, group in _groups(_text(root / "proc/self/cgroup")):
        mount = root / controller.mount
        folder = mount / group.strip("/")
        for level in (folder, *folder.parents):
            if level == mount.parent:
                break
            limit, use = _text(level / controller.limit), _text(level / controller.use)
            if limit.strip().isdigit() and use.strip().isdigit():
                yield int(limit) - int(use) + _reclaimable(_text(level / "memory.stat"), controller)


def _groups(cgroup: str) -> Iterator[tuple[Controller, str]]:
    r"""The control groups of a process that limit memory.

    >>> [(found is VERSION_1, path) for found, path in _groups("5:cpu:/a\n4:memory:/b\n0::/c\n")]
    [(True, '/b'), (False, '/c')]
    """
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield VERSION_2, path
        elif "memory" in controllers.split(","):
            yield VERSION_1, path


def _reclaimable(statistics: str, controller: Controller) -> int:
    """Bytes of file cache that the system gives back before it runs out."""
    for line in statistics.splitlines():
        name, _, value = line.partition(" ")
        if name == controller.reclaimable:
            return int(value)
    return 0


def _text(path: Path) -> str:
    """Content of a file, nothing where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
