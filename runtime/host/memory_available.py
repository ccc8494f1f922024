"""The available memory: the bytes that this process may still allocate on this host, within its control groups.

    available = min(MemAvailable of the host,
                    limit - use + reclaimable cache of every control group above the process)

Containers and batch systems limit memory by control groups (version 1 or 2). A process that looks only at the host is
killed without a message when it exceeds the limit. Other ranks on the host ask at the same time; the caller divides the
result among them.

Source: psutil documentation, `virtual_memory`; Linux kernel documentation, "Control Group v2" (memory.max,
memory.current, memory.stat: inactive_file), "Memory Resource Controller" (version 1: memory.limit_in_bytes …).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Controller:
    """The names of the memory files in one version of control groups."""

    mount: str
    limit: str
    use: str
    reclaimable: str


VERSION_2 = Controller("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
VERSION_1 = Controller("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def bytes_available(root: str | Path = "/", *, host_available: int | None = None) -> int:
    r"""The bytes that this process may still allocate.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as host:
    ...     for name, text in {
    ...         "proc/self/cgroup": "0::/job/step\n",
    ...         "sys/fs/cgroup/job/memory.max": "9000\n",
    ...         "sys/fs/cgroup/job/memory.current": "8000\n",
    ...         "sys/fs/cgroup/job/memory.stat": "file 700\ninactive_file 500\n",
    ...         "sys/fs/cgroup/job/step/memory.max": "max\n",
    ...     }.items():
    ...         path = Path(host, name)
    ...         path.parent.mkdir(parents=True, exist_ok=True)
    ...         _ = path.write_text(text)
    ...     bytes_available(host, host_available=16384)
    1500

    Parameters
    ----------
    root : folder that contains `proc` and `sys`
    host_available : memory that the host can give without swapping; measured if not given [B]
    """
    if host_available is None:
        import psutil  # takes 10 ms

        host_available = psutil.virtual_memory().available
    return max(0, min([host_available, *_group_available(Path(root))]))


def _group_available(root: Path) -> Iterator[int]:
    """The bytes below the limit of each control group, from the process's group up to the root."""
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

    >>> [(controller is VERSION_1, path) for controller, path in _groups("5:cpu:/a\n4:memory:/b\n0::/c\n")]
    [(True, '/b'), (False, '/c')]
    """
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield VERSION_2, path
        elif "memory" in controllers.split(","):
            yield VERSION_1, path


def _reclaimable(statistics: str, controller: Controller) -> int:
    """The bytes of file cache that the kernel can free."""
    for line in statistics.splitlines():
        name, _, value = line.partition(" ")
        if name == controller.reclaimable:
            return int(value)
    return 0


def _text(path: Path) -> str:
    """The content of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
