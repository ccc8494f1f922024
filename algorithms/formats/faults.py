"""What of a network is broken or slow, as machine files and records say it."""

import msgspec

from quadrille.algorithms.formats.measured_rows import Rate


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The failed links, the slow links and the slow devices of a network.

    Parameters
    ----------
    fail : links that carry nothing: `leaf:3>spine:1`, or `leaf:3-spine:1` for both directions
    degrade : share of its bandwidth that a link keeps, by link
    slow : share of its speed that a GPU or host keeps, by node
    """

    fail: tuple[str, ...] = ()
    degrade: dict[str, Rate] = {}
    slow: dict[str, Rate] = {}
