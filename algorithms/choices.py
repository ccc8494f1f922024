"""Which algorithm carries out each kind of collective, and who: our own steps or the library.

`own:ring` and its like name a set, one algorithm for each kind; `auto` is
resolved to names before anything runs.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from algorithms.collectives import (
    Lowered,
    Name,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    reduce,
    reduce_scatter,
)
from algorithms.errors import InputError
from algorithms.ops import CollectiveKind

Carriage = Literal["own", "library"]

SETS: dict[str, dict[CollectiveKind, Name]] = {
    "ring": {
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_reduce": "ring",
        "broadcast": "pipelined",
        "reduce": "pipelined",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
    "doubling": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "doubling",
        "broadcast": "binomial",
        "reduce": "binomial",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
    "halving_doubling": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "halving_doubling",
        "broadcast": "binomial",
        "reduce": "binomial",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
}
CHUNK_BYTES = 1 << 20
"""Size of the pieces of a pipelined broadcast or reduce [B]."""
MOST_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class Choices:
    """Who carries out the collectives of a schedule, and by which algorithms.

    >>> parse_choices("own:ring").algorithm("all_reduce")
    'ring'
    >>> str(parse_choices("own"))
    'own:ring'
    """

    carriage: Carriage = "own"
    set_name: str = "ring"

    def algorithm(self, kind: CollectiveKind) -> Name:
        """The algorithm of our own, or the one that stands for the library's in a prediction."""
        return SETS[self.set_name][kind]

    def label(self, kind: CollectiveKind) -> str:
        """What a record calls it.

        >>> parse_choices("library").label("all_gather")
        'library (as ring)'
        """
        name = self.algorithm(kind)
        return name if self.carriage == "own" else f"library (as {name})"

    def __str__(self) -> str:
        return "library" if self.carriage == "library" else f"own:{self.set_name}"


def parse_choices(text: str) -> Choices:
    """`own`, `own:NAME`, `library` or `auto`.

    `auto` without a calibrated machine is `own:ring`, the least bytes for any group.

    Raises
    ------
    InputError : another word
    """
    word, _, name = text.partition(":")
    if text in ("own", "auto"):
        return Choices()
    if text == "library":
        return Choices("library")
    if word == "own" and name in SETS:
        return Choices("own", name)
    raise InputError(
        f"collectives {text!r}: accepted are own, library, auto, {', '.join(f'own:{key}' for key in SETS)}"
    )


def lower(kind: CollectiveKind, algorithm: Name, members: int, *, root: int = 0, size_bytes: int = 0) -> Lowered:
    """The collective as steps; a pipelined one in chunks that suit `size_bytes`, its whole buffer [B]."""
    match kind:
        case "all_gather":
            return all_gather(members, algorithm)
        case "reduce_scatter":
            return reduce_scatter(members, algorithm)
        case "all_reduce":
            return all_reduce(members, algorithm)
        case "broadcast":
            return broadcast(members, algorithm, root, chunks(members, size_bytes))
        case "reduce":
            return reduce(members, algorithm, root, chunks(members, size_bytes))
        case "all_to_all":
            return all_to_all(members, algorithm)
        case "barrier":
            return barrier(members, algorithm)


def chunks(members: int, size_bytes: int) -> int:
    """Pieces in which a pipelined buffer goes down the chain; one where the chain is a single hop.

    >>> chunks(4, 10 << 20), chunks(2, 10 << 20)
    (10, 1)
    """
    return 1 if members <= 2 else max(1, min(MOST_CHUNKS, size_bytes // CHUNK_BYTES))


assert all(set(names) == set(get_args(CollectiveKind)) for names in SETS.values())
