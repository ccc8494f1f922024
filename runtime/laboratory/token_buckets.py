"""The size of a link's token bucket: the smallest with which the kernel does not split its large packets.

TCP hands the kernel packets of up to 64 KiB, which a network card would split into frames. A token bucket counts such a
packet with the headers of all its frames (45 frames of 1,448 bytes and headers of 66 bytes: 68.5 KB) and splits it if
it does not fit. Then every switch on the path handles 45 packets instead of 1. The rate stays the same, but the cores,
which the hosts share, are busy five to ten times as long. On faster links, the bucket holds what they carry in 1 ms.

    python -m quadrille.studies.laboratory_trials.token_bucket_sizes

measured this: four hosts on one switch, each sending to the next over a plain TCP connection, for several rates and
bucket sizes; it needs root.
"""

WHOLE_PACKET = 70_000
"""A packet of 64 KiB with the headers of its frames, rounded up [B]."""
BURST_SECONDS = 0.001


def burst_bytes(rate: float) -> int:
    """The bytes that a link of this rate [B/s] lets through at once after an idle time.

    >>> burst_bytes(25e6), burst_bytes(125e6)
    (70000, 125000)
    """
    return max(WHOLE_PACKET, int(rate * BURST_SECONDS))
