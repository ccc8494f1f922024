"""Data dependencies: the earlier ops of a rank's program that an op must wait for.

They follow from the tensors that the op reads and writes and from its field `after`.  Both interpreters (simulator and
runtime) follow the program of one rank and ask, op by op, for the *tokens* of the ops that must have ended.  A token is
an object that the interpreter can wait for: a pending communication, or a simulated event.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from quadrille.algorithms.analysis.storage import views
from quadrille.algorithms.schedule.expressions import evaluate, variables
from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.schedule.ops import Op, Pointwise, Shift, lane, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor, bands_of

Token = TypeVar("Token")
Storage = tuple[str, int]
"""A tensor and the index of its copy."""


@dataclass(frozen=True, slots=True)
class Undecided(Generic[Token]):
    """The next op of a program is known once any of these ops has ended (`driven_passes.py`)."""

    tokens: Sequence[Token]


@dataclass(frozen=True, slots=True)
class _OpStorages:
    """The tensors that an op reads and writes on one rank; a view is replaced by the tensor that owns its buffer.

    Parameters
    ----------
    op : the op, stored so that its id stays unique
    iterations_ahead : number of iterations by which the copies that the op writes are ahead
    storages : copies that the op reads and writes in every iteration; None if they differ between iterations
    """

    op: Op
    lane: str
    read: tuple[tuple[str, Tensor], ...]
    written: tuple[tuple[str, Tensor], ...]
    iterations_ahead: int
    storages: tuple[Sequence[Storage], Sequence[Storage]] | None

    def at(self, coordinates: Coordinates) -> tuple[Sequence[Storage], Sequence[Storage]]:
        """Returns the copies that the op reads and writes at the coordinates."""
        if self.storages is not None:
            return self.storages
        return (
            [(name, tensor.copy_index(coordinates)) for name, tensor in self.read],
            [(name, tensor.copy_index(coordinates, self.iterations_ahead)) for name, tensor in self.written],
        )


class Dependencies(Generic[Token]):
    """The latest writer and the later readers of every tensor of one rank.

    A read waits for the latest write.  A write waits for the latest write and the reads since.  `after` waits for the
    latest instance of each named op.  A lane runs its ops in order, so the last reader of each lane is enough, and the
    state does not grow with the number of iterations.  A view counts as the tensor behind it; a tensor with bands
    counts as all its bands.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._tensors = schedule.tensors
        self._sources = schedule.cached(views)
        self._bands = bands_of(schedule.tensors)
        self._writer: dict[Storage, Token] = {}
        self._readers: dict[Storage, dict[str, Token]] = {}
        self._latest: dict[str, Token] = {}
        self._op_storages: dict[int, _OpStorages] = {}

    def enter(self, op: Op, coordinates: Coordinates, token: Token) -> list[Token]:
        """Returns the tokens that `op` waits for, and registers `token` as its end."""
        storages_of_op = self._op_storages.get(id(op)) or self._register(op, coordinates)
        read, written = storages_of_op.at(coordinates)
        needed = [self._writer[storage] for storage in read if storage in self._writer]
        for storage in written:
            if storage in self._writer:
                needed.append(self._writer[storage])
            if storage in self._readers:
                needed += self._readers[storage].values()
        needed += [self._latest[name] for name in op.after if name in self._latest]
        for storage in read:
            self._readers.setdefault(storage, {})[storages_of_op.lane] = token
        for storage in written:
            self._writer[storage] = token
            self._readers[storage] = {}
        self._latest[op.name] = token
        return needed

    def tokens(self) -> Iterator[Token]:
        """Yields the tokens that an op may still have to wait for; some appear more than once."""
        yield from self._writer.values()
        for readers in self._readers.values():
            yield from readers.values()
        yield from self._latest.values()

    def _register(self, op: Op, coordinates: Coordinates) -> _OpStorages:
        """Returns the tensors that an op reads and writes on this rank, with copy counts evaluated for the rank."""
        read, written = (
            tuple(
                (name, self._on_rank(name, coordinates))
                for tensor_name in names
                for name in self._tracked_names(tensor_name)
            )
            for names in (reads(op), writes(op))
        )
        has_copies = any(tensor.copies for _, tensor in (*read, *written))
        storages = (
            None if has_copies else (tuple((name, 0) for name, _ in read), tuple((name, 0) for name, _ in written))
        )
        self._op_storages[id(op)] = _OpStorages(op, lane(op), read, written, iterations_ahead(op), storages)
        return self._op_storages[id(op)]

    def _tracked_names(self, name: str) -> tuple[str, ...]:
        """Returns the names under which a tensor is tracked: the tensor with the buffer, or its bands."""
        owner = self._sources.get(name, name)
        return self._bands.get(owner, (owner,))

    def _on_rank(self, name: str, coordinates: Coordinates) -> Tensor:
        tensor = self._tensors[name]
        if all(isinstance(count, int) for _, count in tensor.copies):
            return tensor
        evaluated = (
            (loop, evaluate(count, coordinates) if variables(count) <= set(AXES) else count)
            for loop, count in tensor.copies
        )
        return replace(tensor, copies=tuple(evaluated))


def iterations_ahead(op: Op) -> int:
    """Returns the number of iterations by which the copy that the op writes is ahead."""
    return op.iteration_offset if isinstance(op, Shift | Pointwise) else 0
