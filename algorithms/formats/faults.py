"""What of a network is broken or slow, as machine files and records say it."""

import msgspec

from quadrille.algorithms.formats.measured_rows import Rate


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is broken or slower than the rest.

    Parameters
    ----------
    fail : links that carry nothing, `leaf:3>spine:1` or, both directions, `leaf:3-spine:1`
    degrade : share of its bandwidth that a link has left, by link
    slow : share of its speed that a GPU or host computes with, by node
    """

    fail: tuple[str, ...] = ()
    degrade: dict[str, Rate] = {}
    slow: dict[str, Rate] = {}
