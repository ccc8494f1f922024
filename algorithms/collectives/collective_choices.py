"""Collective choices: the implementation and the algorithms of a schedule's collectives, as `--collectives` names them.

    own:ring, own:doubling, …   sets of Quadrille's own algorithms, one for each collective, on point-to-point messages
    library                     MPI (or NCCL, for arrays on GPUs); `MPI_Allgatherv` only where shards have unequal sizes
    library:vector              MPI, with `MPI_Allgatherv` and `MPI_Reduce_scatter` always
    nccl                        NCCL's performance model (RCCL's on AMD's GPUs), which predicts and cannot run
    nccl:two-level              the same, with all-to-alls in two levels: once to each node, then inside
    auto                        resolved before a run: the fastest prediction for each op, or own:ring without a machine
    default                     resolved by the machine: nccl for a prediction on GPUs of a known kind, else own:ring

`parse_choices` reads these texts; `Choices` is the value that interpreters take.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeGuard

import numpy as np

from quadrille.algorithms.collectives.lowered_collective import CollectiveAlgorithm
from quadrille.algorithms.collectives.lowering import CHUNK_BYTES, SETS
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.ops import Calls, Collective, CollectiveKind, Op
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.units import KIB, parse_bytes

if TYPE_CHECKING:
    from quadrille.algorithms.collectives.nccl.tuning_constants import Algorithm, Protocol

Provider = Literal["own", "library", "nccl"]
CHUNKED: tuple[CollectiveAlgorithm, ...] = ("pipelined", "double_binary_tree")
"""Algorithms with a selectable chunk size."""


@dataclass(frozen=True, slots=True, repr=False)
class Choices(ShortRepr):
    """The implementation and the algorithms of the collectives of a schedule.

    >>> parse_choices("own:ring").algorithm("all_reduce")
    'ring'
    >>> str(parse_choices("own"))
    'own:ring'

    Parameters
    ----------
    implementation : own algorithms, MPI or NCCL library, or NCCL's performance model
    set_name : set of own algorithms (`lowering.SETS`)
    chunk_bytes : chunk size of chains and trees [B]
    nccl_algorithm, nccl_protocol : NCCL algorithm and protocol; None lets NCCL choose by size
    two_level : whether all-to-alls of NCCL's model go once to each node, and inside it to its ranks, as DeepEP does
    per_node : by axis, number of its neighbouring ranks that share a node, if there are several nodes
        (`with_placement`)
    auto : whether a prediction will choose for each op; until then the other fields hold
    by_machine : whether the machine decides; until it does, the other fields hold
    by_op : choice for each op, by name; the other fields hold for the other ops
    calls : MPI calls of the library for all-gathers and reduce-scatters of equal shards
    """

    implementation: Provider = "own"
    set_name: str = "ring"
    chunk_bytes: int = CHUNK_BYTES
    nccl_algorithm: "Algorithm | None" = None
    nccl_protocol: "Protocol | None" = None
    per_node: tuple[tuple[Axis, int], ...] = ()
    auto: bool = False
    by_op: tuple[tuple[str, "Choices"], ...] = ()
    calls: Calls = "regular"
    by_machine: bool = False
    two_level: bool = False

    def of(self, op: str) -> "Choices":
        """The choice for one op.

        >>> chosen = Choices(by_op=(("gather B", parse_choices("library")),))
        >>> str(chosen.of("gather B")), str(chosen.of("sum C")), str(chosen)
        ('library', 'own:ring', 'auto')
        """
        return dict(self.by_op).get(op) or replace(self, by_op=()) if self.by_op else self

    def by_library(self, op: Op) -> TypeGuard[Collective]:
        """Whether an op is a collective that the MPI or NCCL library executes."""
        return isinstance(op, Collective) and self.of(op.name).implementation == "library"

    def algorithm(self, kind: CollectiveKind) -> CollectiveAlgorithm:
        """The own algorithm for a kind of collective, which also represents the library's in a prediction."""
        return SETS[self.set_name][kind]

    def ranks_per_node(self, axis: Axis) -> int:
        """Neighbours along the axis that share a node; 1 if that is not regular."""
        return dict(self.per_node).get(axis, 1)

    def label(self, kind: CollectiveKind, axis: Axis | None = None, executed: CollectiveAlgorithm | None = None) -> str:
        """The name of the algorithm in records; with an axis, also the effect of a hierarchy along it.

        Parameters
        ----------
        kind : kind of collective
        axis : axis of its group
        executed : algorithm that executed the op, where its size decides: tiny sums use recursive doubling

        >>> parse_choices("library").label("all_gather"), parse_choices("library:vector").label("all_gather")
        ('library (as ring)', 'library:vector (as ring)')
        >>> parse_choices("own:hierarchical").label("all_gather", "z")
        'hierarchical (as ring)'
        >>> parse_choices("own").label("all_reduce", "z", "doubling")
        'ring (as doubling)'
        >>> [parse_choices("own:ring:64KiB").label(kind) for kind in ("broadcast", "all_gather")]
        ['pipelined in 64KiB', 'ring']
        """
        name: str = self.algorithm(kind)
        if name == "hierarchical" and axis is not None:
            sharing = self.ranks_per_node(axis)
            name = f"hierarchical ({sharing} to a node)" if sharing > 1 else f"hierarchical (as {SETS['ring'][kind]})"
        name += f" in {self._chunk[1:]}" if self._chunk and self._is_chunked(kind) else ""
        by_size = executed is not None and self.algorithm(kind) == "ring" and executed != "ring"
        match self.implementation:
            case "own":
                return f"{name} (as {executed})" if by_size else name
            case "library":
                return f"{self._library} (as {executed if by_size else name})"
            case "nccl":
                return f"nccl (as {name})"

    def _is_chunked(self, kind: CollectiveKind) -> bool:
        """Whether the collective has a selectable chunk size."""
        algorithm = self.algorithm(kind)
        return algorithm in CHUNKED or (algorithm == "hierarchical" and kind in ("broadcast", "reduce"))

    @property
    def _library(self) -> str:
        """Text of the choice of the MPI library with these calls."""
        return "library" if self.calls == "regular" else f"library:{self.calls}"

    @property
    def _chunk(self) -> str:
        """Last part of the text of a choice with a non-default chunk size; empty for the default."""
        if self.chunk_bytes == CHUNK_BYTES:
            return ""
        whole, rest = divmod(self.chunk_bytes, KIB)
        return f":{self.chunk_bytes}B" if rest else f":{whole}KiB"

    def check_runnable(self) -> None:
        """Raises InputError for a choice that only predicts: NCCL's model.

        Raises
        ------
        InputError : NCCL's model
        """
        if self.implementation == "nccl":
            raise InputError(
                f"collectives '{self}': NCCL's model predicts and cannot be run; accepted are library, {_finer_words()}"
            )

    def check_schedulable(self) -> None:
        """Raises InputError for algorithms that point-to-point steps cannot represent: NCCL's trees and NVLS.

        Raises
        ------
        InputError : an algorithm of NCCL other than its ring
        """
        if self.nccl_algorithm not in (None, "ring") or self.nccl_protocol is not None or self.two_level:
            raise InputError(
                f"collectives '{self}': a schedule's collectives are predicted as rings of single ranks; accepted "
                f"are nccl, nccl:ring, library, {_finer_words()}; `quadrille collective` knows NCCL's channels"
            )

    def __str__(self) -> str:
        if self.by_op:
            names = {str(replace(self, by_op=())), *(str(choice) for _, choice in self.by_op)}
            return names.pop() if len(names) == 1 else "auto"
        if self.by_machine:
            return DEFAULT_WORD
        match self.implementation:
            case "own":
                return f"own:{self.set_name}" + self._chunk
            case "library":
                return self._library
            case "nccl":
                algorithm = TWO_LEVEL if self.two_level else self.nccl_algorithm
                return ":".join(word for word in ("nccl", algorithm, self.nccl_protocol) if word is not None)


DEFAULT_WORD, TWO_LEVEL = "default", "two-level"
DEFAULT_CHOICES = Choices(by_machine=True)
"""The choices of an experiment that names none: those of the machine."""
LIBRARY = {str(choices): choices for choices in (Choices("library"), Choices("library", calls="vector"))}
"""Choices of the MPI library by their text: regular calls for equal shards, or always vector calls."""


def parse_choices(text: str) -> Choices:
    """Returns the choice that `own[:NAME[:CHUNK]]`, `library`, `library:vector`, `auto`, `default` or
    `nccl[:ALGORITHM[:PROTOCOL]]` names.

    Upper and lower case do not matter.  `auto` is `own:ring`, which sends the fewest bytes in any group, until a
    prediction chooses.

    >>> str(parse_choices("own:ring:256KiB")), str(parse_choices("NCCL:Ring:simple"))
    ('own:ring:256KiB', 'nccl:ring:Simple')

    Raises
    ------
    InputError : another word
    """
    lower = text.lower()
    word, *names = lower.split(":")
    if lower == DEFAULT_WORD:
        return DEFAULT_CHOICES
    if lower in ("own", "auto"):
        return Choices(auto=lower == "auto")
    if lower in LIBRARY:
        return LIBRARY[lower]
    if word == "own" and names[0] in SETS and len(names) <= len(("NAME", "CHUNK")):
        with suppress(InputError):  # a chunk that is no size
            return Choices("own", names[0], parse_bytes(text.split(":")[2]) if names[1:] else CHUNK_BYTES)
    if word in ("nccl", "rccl") and (nccl := _nccl_choices(names)) is not None:
        return nccl
    raise InputError(f"collectives {text!r}: accepted are own, library, auto, {_finer_words()}, {_nccl_words()}")


def _nccl_choices(names: Sequence[str]) -> Choices | None:
    """The choice of NCCL's model with this algorithm and protocol, in lower case; None for words that NCCL lacks.

    >>> str(_nccl_choices(["ring", "ll128"])), _nccl_choices(["nvls", "ll"])
    ('nccl:ring:LL128', None)
    """
    from quadrille.algorithms.collectives.nccl.tuning_constants import ALGORITHMS

    algorithm, *protocols = names or [""]
    if not algorithm:
        return None if names else Choices("nccl")
    if algorithm == TWO_LEVEL:
        return None if protocols else Choices("nccl", two_level=True)
    if algorithm not in ALGORITHMS or len(protocols) > 1:
        return None
    by_word = {protocol.lower(): protocol for protocol in ALGORITHMS[algorithm]}
    if protocols and protocols[0] not in by_word:
        return None
    protocol = by_word[protocols[0]] if protocols else None
    return Choices("nccl", nccl_algorithm=algorithm, nccl_protocol=protocol)


def _finer_words() -> str:
    """The accepted texts with more detail than `own` and `library`."""
    return ", ".join((*(f"own:{key}" for key in SETS), "own:NAME:CHUNK", "library:vector"))


def _nccl_words() -> str:
    """The accepted texts of NCCL's model: its algorithms, and the protocols of each algorithm.

    >>> _nccl_words()
    'nccl (or rccl), nccl:ring|tree[:LL|LL128|Simple], nccl:nvls|nvls_tree|pat[:Simple], nccl:two-level'
    """
    from quadrille.algorithms.collectives.nccl.tuning_constants import ALGORITHMS

    by_protocols: dict[tuple[Protocol, ...], list[str]] = {}
    for algorithm, protocols in ALGORITHMS.items():
        by_protocols.setdefault(protocols, []).append(algorithm)
    words = (f"nccl:{'|'.join(names)}[:{'|'.join(ps)}]" for ps, names in by_protocols.items())
    return ", ".join(("nccl (or rccl)", *words, f"nccl:{TWO_LEVEL}"))


def with_placement(choices: Choices, grid: Grid, nodes: Sequence[int]) -> Choices:
    """Returns the choices with the number of neighbouring ranks that share a node, which hierarchical algorithms need.

    >>> with_placement(parse_choices("own:hierarchical"), Grid(z=2, x=4), [0, 0, 1, 1, 2, 2, 3, 3]).per_node
    (('x', 2),)

    Parameters
    ----------
    choices : the choices
    grid : grid of ranks
    nodes : index of the node of each rank [ranks]
    """
    node = np.asarray(nodes)
    per_node = [(axis, sharing) for axis in AXES if (sharing := _sharing(grid, axis, node)) > 1]
    return replace(choices, per_node=tuple(per_node))


def _sharing(grid: Grid, axis: Axis, node: np.ndarray) -> int:
    """The number of neighbours along an axis that share a node, if it is equal in all groups and nodes; otherwise 1."""
    length, stride = grid.length(axis), grid.stride(axis)
    groups = np.moveaxis(node.reshape(-1, length, stride), 1, 2).reshape(-1, length)
    sharing = int(np.argmax(groups[0] != groups[0, 0])) if length > 1 else 1
    if sharing <= 1 or length % sharing:
        return 1
    blocks = groups.reshape(len(groups), length // sharing, sharing)
    together = (blocks == blocks[:, :, :1]).all()
    apart = (np.diff(np.sort(blocks[:, :, 0], axis=1), axis=1) != 0).all()
    return sharing if together and apart else 1
