"""What an op must wait for, from the tensors it reads and writes and from `after`.

Both interpreters follow one rank's program and ask, op by op, for the tokens
of the earlier ops that must have ended.  A token is whatever the interpreter
uses to know that (a pending communication, a SimPy event).
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from algorithms.ops import Op, Pointwise, Shift, lane, reads, writes
from algorithms.parts import Place
from algorithms.schedule import Schedule, all_ops
from algorithms.storage import view_sources

Token = TypeVar("Token")
Storage = tuple[str, int]
"""A tensor and which of its copies."""


class Dependencies(Generic[Token]):
    """The latest writer and readers of every tensor of one rank.

    A read waits for the latest write, a write for the latest write and the
    reads since; `after` waits for the latest instance of each op named.  A lane
    runs its ops in order, so the last reader of each lane stands for all, and
    what is kept does not grow with the number of iterations.  A view stands for
    the tensor that it is a view of.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._tensors = schedule.tensors
        self._sources = view_sources(schedule, tuple(all_ops(schedule)))
        self._writer: dict[Storage, Token] = {}
        self._readers: dict[Storage, dict[str, Token]] = {}
        self._latest: dict[str, Token] = {}

    def enter(self, op: Op, place: Place, token: Token) -> list[Token]:
        """Tokens that `op` waits for; from now on `token` stands for its end."""
        read = self._storages(reads(op), place)
        written = self._storages(writes(op), place, ahead(op))
        needed = [self._writer[storage] for storage in read if storage in self._writer]
        for storage in written:
            if storage in self._writer:
                needed.append(self._writer[storage])
            if storage in self._readers:
                needed += self._readers[storage].values()
        needed += [self._latest[name] for name in op.after if name in self._latest]
        of_lane = lane(op)
        for storage in read:
            self._readers.setdefault(storage, {})[of_lane] = token
        for storage in written:
            self._writer[storage] = token
            self._readers[storage] = {}
        self._latest[op.name] = token
        return needed

    def tokens(self) -> Iterator[Token]:
        """Those for which an op may yet have to wait, some more than once."""
        yield from self._writer.values()
        for readers in self._readers.values():
            yield from readers.values()
        yield from self._latest.values()

    def _storages(self, names: tuple[str, ...], place: Place, further: int = 0) -> list[Storage]:
        kept = [self._sources.get(name, name) for name in names]
        return [(name, self._tensors[name].instance(place, further)) for name in kept]


def ahead(op: Op) -> int:
    """How many iterations later the copy that the op writes is used."""
    return op.ahead if isinstance(op, Shift | Pointwise) else 0
