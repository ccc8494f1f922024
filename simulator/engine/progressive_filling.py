"""Progressive filling: weighted max-min rates of some flows, while all other flows keep their rates (kernels).

The *level* of a flow is rate / weight.  The level of all chosen flows rises; the link that becomes full first
freezes its flows at that level, then the next link.  A heap has a key for each link, a lower bound of the level at
which the link becomes full.  While other links freeze flows, this level only rises, so a key stays a lower bound
and is computed again only when it reaches the top: first from running sums and, before the link may freeze a flow,
exactly from its capacity and the rates.  All links within `TIE` of a level are found before any of them freezes flows.

Source: Bertsekas, Gallager, "Data Networks", 2nd ed., 1992, section 6.5.2.
"""

from quadrille.simulator.engine.flow_state import DONE, FILLED, FILLS, ROUND, TIE, TOUCHED, Array, FlowState

MARGIN = 1e-8
"""Relative error of a key from running sums."""
TRUSTED = 1e-2
"""Fraction of the capacity and of the load above which running sums have this accuracy."""

# Phase of a flow in a filling; NEW: it began after the last filling
FIXED, RISING, FROZEN, NEW = 0, 1, 2, 3

# Accuracy of a link's key in a filling
EXACT, BOUND, STALE = 0, 1, 2


def fill(s: FlowState, count: int) -> None:
    """Compute new rates and bottlenecks of the flows `chosen[:count]`; all other flows keep their rates."""
    s.counts[FILLS] += 1
    s.counts[FILLED] += count
    size = _build_heap(s, s.touched, _start_filling(s, count))
    left, level = count, 0.0
    while left > 0:
        if s.counts[DONE] > size // 2:
            size = _build_heap(s, s.heap, size)
        tight, size, level = _find_tightest_links(s, size, level)
        for i in range(tight):
            left -= _freeze_flows(s, s.tight[i], level)


def _start_filling(s: FlowState, count: int) -> int:
    """Find the links of the chosen flows, with room, load and key of each; returns their number."""
    s.counts[ROUND] += 1
    now, touched = s.counts[ROUND], 0
    for i in range(count):
        f = s.chosen[i]
        s.phase[f] = RISING
        s.current[f] = 0.0
        s.pull[f] = s.weights[f]
        for e in range(s.offsets[f], s.offsets[f + 1]):
            j = s.links[e]
            if s.stamp[j] != now:
                s.stamp[j] = now
                s.touched[touched] = j
                touched += 1
                s.rising[j] = 0
            s.rising[j] += 1
    s.counts[TOUCHED] = touched
    for i in range(touched):
        _compute_key(s, s.touched[i], 0.0)
    return touched


def _compute_key(s: FlowState, link: int, level: float) -> None:
    """Compute room, load and key of a link from its capacity; the key is at least `level`."""
    room, load = s.capacities[link], 0.0
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        f = s.slot_flow[k]
        load += s.slot_share[k] * s.pull[f]
        room -= s.slot_share[k] * s.current[f]
    s.room[link] = room
    s.load[link] = load
    s.measured[link] = load
    s.key[link] = max(level, room / load)
    s.key_accuracy[link] = EXACT


def _find_tightest_links(s: FlowState, size: int, level: float) -> tuple[int, int, float]:
    """Find the links that become full next, now in `tight`; returns their number, the heap's size and their level."""
    tight = 0
    while size > 0:
        j = s.heap[0]
        if tight > 0 and s.heap_key[0] > level * (1 + TIE):
            break
        if s.rising[j] > 0 and s.key_accuracy[j] != EXACT:
            _refine_key(s, j, level)
            s.heap_key[0] = s.key[j]
            sift_down(s.heap, s.heap_key, size, 0)
            continue
        if s.rising[j] > 0:
            if tight == 0 and s.heap_key[0] > level * (1 + TIE):
                level = s.heap_key[0]
            s.tight[tight] = j
            tight += 1
        else:
            s.counts[DONE] -= 1
        size -= 1
        s.heap[0], s.heap_key[0] = s.heap[size], s.heap_key[size]
        sift_down(s.heap, s.heap_key, size, 0)
    return tight, size, level


def _refine_key(s: FlowState, link: int, level: float) -> None:
    """Compute a better key of a link, from running sums if they are accurate, else from its capacity."""
    good = s.room[link] > TRUSTED * s.capacities[link] and s.load[link] > TRUSTED * s.measured[link]
    if s.key_accuracy[link] == STALE and good:
        s.key[link] = max(s.key[link], s.room[link] / s.load[link] * (1 - MARGIN))
        s.key_accuracy[link] = BOUND
    else:
        _compute_key(s, link, level)


def _freeze_flows(s: FlowState, link: int, level: float) -> int:
    """Freeze the rising flows of a full link at this level; returns their number."""
    frozen, done = 0, 0
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        f = s.slot_flow[k]
        if s.phase[f] != RISING:
            continue
        frozen += 1
        weight = s.weights[f]
        rate = weight * level
        s.phase[f] = FROZEN
        s.current[f] = rate
        s.pull[f] = 0.0
        s.new_bottleneck[f] = link
        for e in range(s.offsets[f], s.offsets[f + 1]):
            j = s.links[e]
            s.room[j] -= s.shares[e] * rate
            s.load[j] -= s.shares[e] * weight
            s.rising[j] -= 1
            s.key_accuracy[j] = STALE
            if s.rising[j] == 0 and j != link:
                done += 1
    s.counts[DONE] += done
    return frozen


def _build_heap(s: FlowState, links: Array, size: int) -> int:
    """Make a heap of the links that still have rising flows; returns their number."""
    count = 0
    for i in range(size):
        j = links[i]
        if s.rising[j] > 0:
            s.heap[count] = j
            s.heap_key[count] = s.key[j]
            count += 1
    for i in range(count // 2 - 1, -1, -1):
        sift_down(s.heap, s.heap_key, count, i)
    s.counts[DONE] = 0
    return count


def sift_down(heap: Array, key: Array, size: int, at: int) -> None:
    """Move the link at index `at` of the heap down to where its key belongs."""
    link, own = heap[at], key[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and key[child + 1] < key[child]:
            child += 1
        if key[child] >= own:
            break
        heap[at], key[at] = heap[child], key[child]
        at = child
    heap[at], key[at] = link, own


KERNELS = (sift_down, _build_heap, _freeze_flows, _compute_key, _refine_key, _find_tightest_links, _start_filling, fill)
