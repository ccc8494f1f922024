"""How large the token bucket of a link is: the smallest with which packets go through the kernel whole.

TCP hands the kernel packets of up to 64 KiB, which a network card would cut into
frames.  A token bucket counts such a packet with the headers of all its frames (45
frames of 1,448 bytes and headers of 66: 68.5 KB) and cuts it if it does not fit:
every switch on the way then handles 45 packets instead of one.  The rate is kept either
way; the cores, which the hosts share, are busy five to ten times as long.  On links so
fast that 1 ms carries more than that, the bucket is what they carry in 1 ms.

    python -m quadrille.studies.laboratory_trials.buckets > studies/laboratory_trials/results/buckets.csv

is what this was found by: four hosts on one switch, each sending to the next over a
plain TCP connection, for rates and buckets of several sizes; as root.
"""

WHOLE_PACKET = 70_000
"""A packet of 64 KiB with the headers of its frames, and a little more [B]."""
BURST_SECONDS = 0.001


def burst_bytes(rate: float) -> int:
    """What a link of this rate [B/s] lets through at once after an idle time [B].

    >>> burst_bytes(25e6), burst_bytes(125e6)
    (70000, 125000)
    """
    return max(WHOLE_PACKET, int(rate * BURST_SECONDS))
