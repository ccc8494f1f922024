"""Rank tables: which ranks of an exported schedule behave alike, and which peers each of them has.

A table stands beside one file for each class of ranks, that of the first rank of the class.  The file of another rank
is the same with other peers, so a table of a few numbers a rank stands for the files of all ranks.
"""

import re
from typing import Literal

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files

SCHEMA = "quadrille/rank-classes/1"
BEGIN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"quadrille/rank-classes/\d+"')
Format = Literal["goal", "chakra"]


class ClassFile(msgspec.Struct, frozen=True):
    """The file of a class of ranks.

    Parameters
    ----------
    file : name of the file, in the folder of the table
    rank : first rank of the class, which the file describes
    peers : ranks to which the first rank talks
    groups : names of the groups of its collectives
    """

    file: str
    rank: int
    peers: list[int]
    groups: list[str]


class Member(msgspec.Struct, frozen=True):
    """A rank.

    Parameters
    ----------
    of : position of its class in the table
    peers, groups : peers and groups of the rank, in the order of those of its class
    """

    of: int
    peers: list[int]
    groups: list[str]


class RankTable(msgspec.Struct, frozen=True):
    """The classes, and the class of each rank.

    Parameters
    ----------
    ranks : the ranks, in order
    """

    format: Format
    classes: list[ClassFile]
    ranks: list[Member]

    def peers(self, rank: int) -> dict[int, int]:
        """The peer of a rank in place of each peer of the first rank of its class."""
        member = self.ranks[rank]
        return dict(zip(self.classes[member.of].peers, member.peers, strict=True))

    def groups(self, rank: int) -> dict[str, str]:
        """The group of a rank in place of each group of the first rank of its class."""
        member = self.ranks[rank]
        return dict(zip(self.classes[member.of].groups, member.groups, strict=True))


def is_rank_table(content: bytes) -> bool:
    """Whether a file begins as a rank table does.

    >>> is_rank_table(b'{"schema":"quadrille/rank-classes/1","format":"goal"'), is_rank_table(b"num_ranks 2")
    (True, False)
    """
    return BEGIN.match(content) is not None


def load_rank_table(path: str) -> RankTable:
    """The table in a file.

    Raises
    ------
    InputError : no table, or one whose ranks and classes do not fit
    """
    table = schema_files.read(path, RankTable, SCHEMA)
    for rank, member in enumerate(table.ranks):
        if not 0 <= member.of < len(table.classes):
            raise InputError(f"{path}: rank {rank} is of class {member.of}; there are {len(table.classes)}")
        own = table.classes[member.of]
        if (len(member.peers), len(member.groups)) != (len(own.peers), len(own.groups)):
            raise InputError(f"{path}: rank {rank} has other numbers of peers and groups than its class")
        if not all(0 <= peer < len(table.ranks) and peer != rank for peer in member.peers):
            raise InputError(f"{path}: rank {rank} has a peer that is no other rank from 0 to {len(table.ranks) - 1}")
    for entry in table.classes:
        if not entry.file or "/" in entry.file or entry.file.startswith("."):
            raise InputError(f"{path}: file {entry.file!r:.80}: a name without a folder is accepted")
    return table
