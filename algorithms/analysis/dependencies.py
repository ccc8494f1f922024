"""What an op must wait for, from the tensors it reads and writes and from `after`.

Both interpreters follow one rank's program and ask, op by op, for the tokens
of the earlier ops that must have ended.  A token is whatever the interpreter
uses to know that (a pending communication, a SimPy event).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from quadrille.algorithms.analysis.storage import view_sources
from quadrille.algorithms.schedule.expressions import evaluate, variables
from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.schedule.ops import Op, Pointwise, Shift, lane, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor, bands_of

Token = TypeVar("Token")
Storage = tuple[str, int]
"""A tensor and which of its copies."""


@dataclass(frozen=True, slots=True)
class _Touched:
    """What an op reads and writes: the tensors behind views, as one rank has them.

    Parameters
    ----------
    op : kept, so that nothing else gets its id
    storages : what it reads and writes at every moment, where no tensor of them has copies
    """

    op: Op
    lane: str
    read: tuple[tuple[str, Tensor], ...]
    written: tuple[tuple[str, Tensor], ...]
    further: int
    storages: tuple[Sequence[Storage], Sequence[Storage]] | None

    def at(self, place: Coordinates) -> tuple[Sequence[Storage], Sequence[Storage]]:
        """Which copies it reads and writes at a moment."""
        if self.storages is not None:
            return self.storages
        return (
            [(name, tensor.copy_index(place)) for name, tensor in self.read],
            [(name, tensor.copy_index(place, self.further)) for name, tensor in self.written],
        )


class Dependencies(Generic[Token]):
    """The latest writer and readers of every tensor of one rank.

    A read waits for the latest write, a write for the latest write and the
    reads since; `after` waits for the latest instance of each op named.  A lane
    runs its ops in order, so the last reader of each lane stands for all, and
    what is kept does not grow with the number of iterations.  A view stands for
    the tensor that it is a view of, and a tensor with bands for all of them.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._tensors = schedule.tensors
        self._sources = view_sources(schedule, tuple(all_ops(schedule)))
        self._bands = bands_of(schedule.tensors)
        self._writer: dict[Storage, Token] = {}
        self._readers: dict[Storage, dict[str, Token]] = {}
        self._latest: dict[str, Token] = {}
        self._touched: dict[int, _Touched] = {}

    def enter(self, op: Op, place: Coordinates, token: Token) -> list[Token]:
        """Tokens that `op` waits for; from now on `token` stands for its end."""
        touched = self._touched.get(id(op)) or self._look_at(op, place)
        read, written = touched.at(place)
        needed = [self._writer[storage] for storage in read if storage in self._writer]
        for storage in written:
            if storage in self._writer:
                needed.append(self._writer[storage])
            if storage in self._readers:
                needed += self._readers[storage].values()
        needed += [self._latest[name] for name in op.after if name in self._latest]
        for storage in read:
            self._readers.setdefault(storage, {})[touched.lane] = token
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

    def _look_at(self, op: Op, place: Coordinates) -> _Touched:
        """What an op touches; the rank is the same at every moment, so numbers of copies that it tells are known."""
        read, written = (
            tuple((name, self._on_rank(name, place)) for one in names for name in self._kept(one))
            for names in (reads(op), writes(op))
        )
        moves = any(tensor.copies for _, tensor in (*read, *written))
        storages = None if moves else (tuple((name, 0) for name, _ in read), tuple((name, 0) for name, _ in written))
        self._touched[id(op)] = _Touched(op, lane(op), read, written, ahead(op), storages)
        return self._touched[id(op)]

    def _kept(self, name: str) -> tuple[str, ...]:
        """What stands for a tensor: the one with the buffer, band by band where it has bands."""
        kept = self._sources.get(name, name)
        return self._bands.get(kept, (kept,))

    def _on_rank(self, name: str, place: Coordinates) -> Tensor:
        tensor = self._tensors[name]
        if all(isinstance(one, int) for _, one in tensor.copies):
            return tensor
        known = ((loop, evaluate(one, place) if variables(one) <= set(AXES) else one) for loop, one in tensor.copies)
        return replace(tensor, copies=tuple(known))


def ahead(op: Op) -> int:
    """How many iterations later the copy that the op writes is used."""
    return op.iteration_offset if isinstance(op, Shift | Pointwise) else 0
