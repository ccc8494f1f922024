"""Progressive filling by bundles: new max-min rates of all active flows, which visits a bundle of flows at once.

A *trunk* is a link that many flows share, a *branch* any other link; a *bundle* is the flows with the same trunks and
the same shares on them (`bundles.py`). The rates are those of `progressive_filling.py`, found faster.

Levels rise and links become full as in `progressive_filling.py`, with three savings.  A trunk visits bundles, not
flows.  A branch is not updated when a bundle is frozen: its key stays a lower bound, and is computed again when it
reaches the top of the heap.  Once all bundles are frozen, only the branches of *loose* flows (flows without a trunk)
stay in the heap.

Most branches are not in the heap at all.  A branch is *hot* if it is the bottleneck of a flow, or if a flow on it has
just begun.  Rates that are max-min on the trunks and hot branches are max-min if no other branch carries too much.  If
a branch carries too much, it becomes hot and all flows are filled again, which is rare.
"""

from quadrille.simulator.engine import bundles
from quadrille.simulator.engine.bundles import BUNDLED, HEAT, LEFT, NARROW, ROUND, STEP, USED, Bundles
from quadrille.simulator.engine.flow_state import ACTIVE, FILLED, FILLS, TIE, Array, FlowState
from quadrille.simulator.engine.progressive_filling import sift_down
from quadrille.simulator.engine.rates import apply_new_rates, choose_begun_flows, clear_loosened_links, fill_locally


def update_bundled_rates(s: FlowState, b: Bundles, changed: Array) -> int:
    """Update the rates of all active flows; returns how many rates changed, and puts their flows into `changed`.

    Parameters
    ----------
    s, b : flows and links, and their bundles
    changed : room for all flows; its first entries become the flows whose rates changed
    """
    began = choose_begun_flows(s)
    count = fill_locally(s, began)
    clear_loosened_links(s)
    if count >= 0:
        return apply_new_rates(s, count, changed)
    _fill_bundles(s, b)
    return apply_new_rates(s, _choose_all(s), changed)


def _fill_bundles(s: FlowState, b: Bundles) -> None:
    """Compute new rates and holders of all active flows."""
    _mark_hot_branches(s, b)
    overfull = 1
    while overfull > 0:
        s.counts[FILLS] += 1
        s.counts[FILLED] += s.counts[ACTIVE]
        size, level = _start_filling_all(s, b), 0.0
        while b.counts[LEFT] > 0:
            if b.counts[BUNDLED] == 0 and b.counts[NARROW] == 0:
                size = _drop_links_without_loose_flows(s, b, size)
            tight, size, level = _find_tightest_links_bundled(s, b, size, level)
            b.counts[STEP] += 1
            for i in range(tight):
                if _is_trunk(b, s.tight[i]):
                    _freeze_bundles(b, s.tight[i], level)
                else:
                    _freeze_branch_flows(s, b, s.tight[i], level)
        _assign_member_rates(s, b)
        overfull = _mark_overloaded_branches(s, b)


def _is_trunk(b: Bundles, link: int) -> bool:
    return bool(b.starts[link + 1] > b.starts[link])


def _mark_hot_branches(s: FlowState, b: Bundles) -> None:
    """Make the branches hot that are bottlenecks, and the branches of flows without a bottleneck."""
    b.counts[HEAT] += 1
    for i in range(s.counts[ACTIVE]):
        f = s.active[i]
        if s.bottleneck[f] >= 0:
            b.hot[s.bottleneck[f]] = b.counts[HEAT]
        else:
            for e in range(s.offsets[f], b.split[f]):
                b.hot[s.links[e]] = b.counts[HEAT]


def _assign_member_rates(s: FlowState, b: Bundles) -> None:
    """Give the members of bundles the rates of their bundles."""
    for i in range(s.counts[ACTIVE]):
        f = s.active[i]
        if b.mark[f] != b.counts[ROUND]:
            s.current[f] = s.weights[f] * b.level[b.bundle[f]]
            s.new_bottleneck[f] = b.bottleneck[b.bundle[f]]


def _mark_overloaded_branches(s: FlowState, b: Bundles) -> int:
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


def _start_filling_all(s: FlowState, b: Bundles) -> int:
    """Start a filling in which every bundle rises; returns the size of the heap of all used links."""
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
        sift_down(s.heap, s.heap_key, size, i)
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


def _drop_links_without_loose_flows(s: FlowState, b: Bundles, size: int) -> int:
    """Remove links without loose flows from the heap; returns its size."""
    b.counts[NARROW] = 1
    count = 0
    for i in range(size):
        if b.loose[s.heap[i]] > 0:
            s.heap[count] = s.heap[i]
            s.heap_key[count] = s.heap_key[i]
            count += 1
    for i in range(count // 2 - 1, -1, -1):
        sift_down(s.heap, s.heap_key, count, i)
    return count


def _find_tightest_links_bundled(s: FlowState, b: Bundles, size: int, level: float) -> tuple[int, int, float]:
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
        sift_down(heap, key, size, 0)
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


def _freeze_bundles(b: Bundles, link: int, level: float) -> None:
    """Freeze the rising bundles of a full trunk."""
    for k in range(b.starts[link], b.starts[link + 1]):
        x = b.slot_bundle[k]
        if b.level[x] < 0 and b.rising[x] > 0:
            b.level[x] = level
            b.bottleneck[x] = link
            b.current[x] += b.pull[x] * level
            b.pull[x] = 0.0
            b.counts[LEFT] -= b.rising[x]
            b.counts[BUNDLED] -= b.rising[x]


def _freeze_branch_flows(s: FlowState, b: Bundles, link: int, level: float) -> None:
    """Freeze the rising flows of a full branch."""
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        f = s.slot_flow[k]
        x = b.bundle[f]
        if b.mark[f] == b.counts[ROUND] or (x >= 0 and b.level[x] >= 0):
            continue
        b.mark[f] = b.counts[ROUND]
        s.current[f] = s.weights[f] * level
        s.new_bottleneck[f] = link
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
    _mark_hot_branches,
    _assign_member_rates,
    _mark_overloaded_branches,
    _freeze_branch_flows,
    _freeze_bundles,
    _key,
    _find_tightest_links_bundled,
    _drop_links_without_loose_flows,
    _load,
    _start_filling_all,
    _fill_bundles,
    update_bundled_rates,
)
