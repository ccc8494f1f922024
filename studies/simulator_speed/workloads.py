"""The traffic of workload W3: flows between random pairs of 1,024 GPUs, all at t = 0; and formulas for W1 and W2.

The pairs and sizes are those that C++'s `std::mt19937_64` (the 64-bit Mersenne twister) draws with seed 1: the source
and the target are each the next number modulo 1,024, the target again while it equals the source.  A random size is
10^6 + the next number modulo 10^8 bytes.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.formats import schema_files

FlowSizes = Literal["equal", "random"]

GPUS = 1024
EQUAL_BYTES = 64 * 2**20
SEED = 1

STATE_WORDS, SHIFT = 312, 156
TWIST = np.uint64(0xB5026F5AA96619E9)
UPPER, LOWER = np.uint64(0xFFFFFFFF80000000), np.uint64(0x7FFFFFFF)
ONE = np.uint64(1)


def mt19937_64(seed: int, count: int) -> NDArray[np.uint64]:
    """The first `count` numbers of the 64-bit Mersenne twister, as C++'s `std::mt19937_64` draws them.

    >>> int(mt19937_64(5489, 10_000)[-1])
    9981545732273789042

    Source: Nishimura, "Tables of 64-bit Mersenne Twisters", ACM TOMACS 10(4),
    2000; the number above is the one that the C++ standard requires ([rand.predef]).
    """
    state = np.array(_first_state(seed), dtype=np.uint64)
    blocks = []
    for _ in range(-(-count // STATE_WORDS)):
        for first in (0, SHIFT):  # each half needs words of the other half only, but for one
            state[first : first + SHIFT] = _twisted(state, first)
        blocks.append(_tempered(state))
    return np.concatenate([*blocks, np.zeros(0, np.uint64)])[:count]


def _first_state(seed: int) -> list[int]:
    """The state of the generator after seeding."""
    words = [seed % 2**64]
    for position in range(1, STATE_WORDS):
        words.append((6364136223846793005 * (words[-1] ^ (words[-1] >> 62)) + position) % 2**64)
    return words


def _twisted(state: NDArray[np.uint64], first: int) -> NDArray[np.uint64]:
    """The next values of half of the state's words, from word `first` on."""
    positions = np.arange(first, first + SHIFT)
    joined = (state[positions] & UPPER) | (state[(positions + 1) % STATE_WORDS] & LOWER)
    fresh: NDArray[np.uint64] = state[(positions + SHIFT) % STATE_WORDS] ^ (joined >> ONE) ^ ((joined & ONE) * TWIST)
    return fresh


def _tempered(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The random numbers of a state: its words after tempering."""
    words = words ^ ((words >> np.uint64(29)) & np.uint64(0x5555555555555555))
    words = words ^ ((words << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000))
    words = words ^ ((words << np.uint64(37)) & np.uint64(0xFFF7EEE000000000))
    return words ^ (words >> np.uint64(43))


def random_pairs(flows: int, sizes: FlowSizes) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The source, the target and the size in bytes of each flow.

    Parameters
    ----------
    flows : number of flows
    sizes : `equal` (64 MiB each) or `random`

    >>> [column[:3].tolist() for column in random_pairs(1000, "random")]
    [[872, 142, 436], [590, 824, 777], [64659930.0, 34006409.0, 41686848.0]]
    """
    numbers = mt19937_64(SEED, 4 * flows).tolist()
    sources, targets, drawn = [], [], []
    position = 0
    for _ in range(flows):
        source, target = numbers[position] % GPUS, numbers[position + 1] % GPUS
        position += 2
        while source == target:
            target = numbers[position] % GPUS
            position += 1
        sources.append(source)
        targets.append(target)
        if sizes == "random":
            drawn.append(10**6 + numbers[position] % 10**8)
            position += 1
    volumes = np.array(drawn, np.float64) if sizes == "random" else np.full(flows, float(EQUAL_BYTES))
    return np.array(sources), np.array(targets), volumes


def write_traffic(path: Path, flows: int, sizes: FlowSizes) -> None:
    """Write the flows of `random_pairs` to a CSV file, as `quadrille flows` reads it."""
    sources, targets, volumes = random_pairs(flows, sizes)
    columns = (sources.tolist(), targets.tolist(), volumes.astype(np.int64).tolist())
    rows = [f"{source},{target},{size},0\n" for source, target, size in zip(*columns, strict=True)]
    schema_files.write_text(path, "source,destination,bytes,start_s\n" + "".join(rows))


def hand_seconds(workload: str, size: int) -> float | None:
    """The time of W1 or W2 on `size` GPUs by a formula [s]; None if the formula does not hold.

    The latency is 2 us inside a node or a leaf of 32 GPUs, and 4 us over a spine.

    >>> round(1e3 * hand_seconds("W1", 1024), 3), round(1e3 * hand_seconds("W2", 1024), 3)
    (51.092, 40.325)
    """
    if workload == "W1" and size > 32:
        return 2 * (size - 1) * (2**30 / size / 50e9 + 4e-6)
    if workload == "W2" and (size in (64, 256) or (size >= 512 and size % 512 == 0)):
        return 15 * (2**26 / (50e9 if size < 512 else 25e9) + 4e-6)
    return None
