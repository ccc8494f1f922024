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
        needed = list(self._conflicts(op, place))
        needed += [self._latest[name] for name in op.after if name in self._latest]
        self._note(op, place, token)
        return needed

    def tokens(self) -> Iterator[Token]:
        """Those for which an op may yet have to wait, some more than once."""
        yield from self._writer.values()
        for readers in self._readers.values():
            yield from readers.values()
        yield from self._latest.values()

    def _conflicts(self, op: Op, place: Place) -> Iterator[Token]:
        for storage in self._storages(reads(op), place):
            if storage in self._writer:
                yield self._writer[storage]
        for storage in self._storages(writes(op), place, ahead(op)):
            if storage in self._writer:
                yield self._writer[storage]
            yield from self._readers.get(storage, {}).values()

    def _note(self, op: Op, place: Place, token: Token) -> None:
        for storage in self._storages(reads(op), place):
            self._readers.setdefault(storage, {})[lane(op)] = token
        for storage in self._storages(writes(op), place, ahead(op)):
            self._writer[storage] = token
            self._readers[storage] = {}
        self._latest[op.name] = token

    def _storages(self, names: tuple[str, ...], place: Place, further: int = 0) -> Iterator[Storage]:
        for name in names:
            kept = self._sources.get(name, name)
            yield kept, self._tensors[kept].instance(place, further)


def ahead(op: Op) -> int:
    """How many iterations later the copy that the op writes is used."""
    return op.ahead if isinstance(op, Shift | Pointwise) else 0
