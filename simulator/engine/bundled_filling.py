"""Filling by bundles: computes the same rates as `filling.py` for all active flows, much faster (kernels).

Levels rise and links become full as in `filling.py`, with three savings.  A trunk visits bundles, not flows.  A
branch is not updated when a bundle is held: its key stays a lower bound, and is computed again when it reaches the
top of the heap.  Once all bundles are held, only the branches of *loose* flows (flows without a trunk) stay in the
heap.

Most branches are not in the heap at all: *hot* are branches that hold a flow so far, and branches of flows that just
began.  Rates that are max-min without the other branches are max-min if none of those carries too much.  If a branch
does, it becomes hot and everything is filled again, which is rare.
"""

from quadrille.simulator.engine import bundles
from quadrille.simulator.engine.bundles import BUNDLED, HEAT, LEFT, NARROW, ROUND, STEP, USED, Bundles
from quadrille.simulator.engine.filling import sift
from quadrille.simulator.engine.flow_state import ACTIVE, FILLED, FILLS, TIE, Array, FlowState
from quadrille.simulator.engine.rates import forget_loosened, settled_locally, take_begun, take_over


def settle_bundled(s: FlowState, b: Bundles, changed: Array) -> int:
    """The same as `rates.settle`, with bundles."""
    began = take_begun(s)
    count = settled_locally(s, began)
    forget_loosened(s)
    if count >= 0:
        return take_over(s, count, changed)
    _fill_bundles(s, b)
    return take_over(s, _choose_all(s), changed)


def _fill_bundles(s: FlowState, b: Bundles) -> None:
    """Compute new rates and holders of all active flows."""
    _heat(s, b)
    overfull = 1
    while overfull > 0:
        s.counts[FILLS] += 1
        s.counts[FILLED] += s.counts[ACTIVE]
        size, level = _rise_all(s, b), 0.0
        while b.counts[LEFT] > 0:
            if b.counts[BUNDLED] == 0 and b.counts[NARROW] == 0:
                size = _narrowed(s, b, size)
            tight, size, level = _tightest_links(s, b, size, level)
            b.counts[STEP] += 1
            for i in range(tight):
                if _is_trunk(b, s.tight[i]):
                    _hold_bundles(b, s.tight[i], level)
                else:
                    _hold_flows(s, b, s.tight[i], level)
        _spread(s, b)
        overfull = _overfull(s, b)


def _is_trunk(b: Bundles, link: int) -> bool:
    return bool(b.starts[link + 1] > b.starts[link])


def _heat(s: FlowState, b: Bundles) -> None:
    """Make the branches hot that hold flows, and the branches of flows that nothing holds yet."""
    b.counts[HEAT] += 1
    for i in range(s.counts[ACTIVE]):
        f = s.active[i]
        if s.holder[f] >= 0:
            b.hot[s.holder[f]] = b.counts[HEAT]
        else:
            for e in range(s.offsets[f], b.split[f]):
                b.hot[s.links[e]] = b.counts[HEAT]


def _spread(s: FlowState, b: Bundles) -> None:
    """Give the members of bundles the rates of their bundles."""
    for i in range(s.counts[ACTIVE]):
        f = s.active[i]
        if b.mark[f] != b.counts[ROUND]:
            s.current[f] = s.weights[f] * b.level[b.bundle[f]]
            s.fresh_holder[f] = b.holder[b.bundle[f]]


def _overfull(s: FlowState, b: Bundles) -> int:
    """Make overloaded branches hot that were not; returns their number."""
    overloaded = 0
    for i in range(b.counts[USED]):
        j = b.used[i]
        if b.hot[j] == b.counts[HEAT] or _is_trunk(b, j):
            continue
        load = 0.0
        for k in range(s.starts[j], s.starts[j] + s.users[j]):
            load += s.slot_share[k] * s.current[s.slot_flow[k]]
        if load > s.capacities[j] * (1 + TIE):
            b.hot[j] = b.counts[HEAT]
            overloaded += 1
    return overloaded


def _rise_all(s: FlowState, b: Bundles) -> int:
    """Let every bundle rise; returns the size of the heap of all used links."""
    b.counts[ROUND] += 1
    b.counts[STEP] += 1
    b.counts[LEFT], b.counts[BUNDLED], b.counts[NARROW] = s.counts[ACTIVE], 0, 0
    for x in range(len(b.members)):
        b.rising[x] = b.members[x]
        b.pull[x] = b.weights[x] * b.members[x]
        b.current[x] = 0.0
        b.level[x] = -1.0
        b.counts[BUNDLED] += b.members[x]
    size = 0
    for i in range(b.counts[USED]):
        j = b.used[i]
        if b.hot[j] == b.counts[HEAT] or _is_trunk(b, j):
            s.heap[size] = j
            s.heap_key[size] = s.capacities[j] / _load(s, b, j)
            b.seen[j] = b.counts[STEP]
            size += 1
    for i in range(size // 2 - 1, -1, -1):
        sift(s.heap, s.heap_key, size, i)
    return size


def _load(s: FlowState, b: Bundles, link: int) -> float:
    """Units that all active flows take of a link at level 1."""
    load = 0.0
    if _is_trunk(b, link):
        for k in range(b.starts[link], b.starts[link + 1]):
            load += b.slot_share[k] * b.pull[b.slot_bundle[k]]
        return load
    if b.total[link] < 0:
        for k in range(s.starts[link], s.starts[link] + s.users[link]):
            load += s.slot_share[k] * s.weights[s.slot_flow[k]]
        b.total[link] = load
    total: float = b.total[link]
    return total


def _narrowed(s: FlowState, b: Bundles, size: int) -> int:
    """Remove links without loose flows from the heap; returns its size."""
    b.counts[NARROW] = 1
    count = 0
    for i in range(size):
        if b.loose[s.heap[i]] > 0:
            s.heap[count] = s.heap[i]
            s.heap_key[count] = s.heap_key[i]
            count += 1
    for i in range(count // 2 - 1, -1, -1):
        sift(s.heap, s.heap_key, count, i)
    return count


def _tightest_links(s: FlowState, b: Bundles, size: int, level: float) -> tuple[int, int, float]:
    """Find the links that become full next, in `tight`; returns their number, the heap's size and their level."""
    heap, key = s.heap, s.heap_key
    tight = 0
    while size > 0:
        j = heap[0]
        if tight > 0 and key[0] > level * (1 + TIE):
            break
        exact = b.seen[j] == b.counts[STEP]
        if not exact:
            key[0] = _key(s, b, j, level)
            b.seen[j] = b.counts[STEP]
        elif tight == 0 and key[0] > level * (1 + TIE):
            level = key[0]
        if exact:
            s.tight[tight] = j
            tight += 1
        if exact or key[0] < 0:
            size -= 1
            heap[0], key[0] = heap[size], key[size]
        sift(heap, key, size, 0)
    return tight, size, level


def _key(s: FlowState, b: Bundles, link: int, level: float) -> float:
    """Level at which a link becomes full at present, at least `level`; -1 if nothing rises on it."""
    room, load = s.capacities[link], 0.0
    if _is_trunk(b, link):
        for k in range(b.starts[link], b.starts[link + 1]):
            x = b.slot_bundle[k]
            load += b.slot_share[k] * b.pull[x]
            room -= b.slot_share[k] * b.current[x]
    else:
        for k in range(s.starts[link], s.starts[link] + s.users[link]):
            f = s.slot_flow[k]
            x = b.bundle[f]
            if b.mark[f] == b.counts[ROUND]:
                room -= s.slot_share[k] * s.current[f]
            elif x >= 0 and b.level[x] >= 0:
                room -= s.slot_share[k] * s.weights[f] * b.level[x]
            else:
                load += s.slot_share[k] * s.weights[f]
    return max(level, room / load) if load > 0 else -1.0


def _hold_bundles(b: Bundles, link: int, level: float) -> None:
    """A full trunk holds its bundles."""
    for k in range(b.starts[link], b.starts[link + 1]):
        x = b.slot_bundle[k]
        if b.level[x] < 0 and b.rising[x] > 0:
            b.level[x] = level
            b.holder[x] = link
            b.current[x] += b.pull[x] * level
            b.pull[x] = 0.0
            b.counts[LEFT] -= b.rising[x]
            b.counts[BUNDLED] -= b.rising[x]


def _hold_flows(s: FlowState, b: Bundles, link: int, level: float) -> None:
    """A full branch holds its flows."""
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        f = s.slot_flow[k]
        x = b.bundle[f]
        if b.mark[f] == b.counts[ROUND] or (x >= 0 and b.level[x] >= 0):
            continue
        b.mark[f] = b.counts[ROUND]
        s.current[f] = s.weights[f] * level
        s.fresh_holder[f] = link
        b.counts[LEFT] -= 1
        if x >= 0:
            b.rising[x] -= 1
            b.pull[x] = b.weights[x] * b.rising[x]
            b.current[x] += s.current[f]
            b.counts[BUNDLED] -= 1


def _choose_all(s: FlowState) -> int:
    """Choose all active flows; returns their number."""
    count: int = s.counts[ACTIVE]
    for i in range(count):
        s.chosen[i] = s.active[i]
    return count


KERNELS = (
    *bundles.KERNELS,
    _choose_all,
    _is_trunk,
    _heat,
    _spread,
    _overfull,
    _hold_flows,
    _hold_bundles,
    _key,
    _tightest_links,
    _narrowed,
    _load,
    _rise_all,
    _fill_bundles,
    settle_bundled,
)
