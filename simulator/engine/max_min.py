"""Weighted max-min fair rates, computed once by progressive filling, with demand coefficients and rate caps.

Activity i runs at rate r_i and takes d_ij r_i of resource j, whose capacity is c_j.  All rates rise together, r_i = w_i
t, until a cap binds or a resource saturates; its activities keep their rates, and the others rise further:

    c = 10     |#####.....|  i=0, w=1, cap 2       r = 2
               |##########|  i=1, w=1              r = 8

There are two implementations.  Small problems are filled level by level in plain Python, which is faster than
NumPy with its cost per call.  In large problems, each round freezes every resource that is the tightest of all its
activities: such a resource saturates at its present level whatever happens elsewhere, because the level of a
resource never falls while others freeze below it.  That takes a few dozen rounds instead of thousands of levels.

Levels within `TIE` of each other are equal, so symmetric activities get equal rates despite rounding.

Source: Bertsekas, Gallager, "Data Networks", 2nd ed., 1992, section 6.5.2 (max-min fair flow control); coefficients and
weights as in Legrand, Marchal, Casanova, "Scheduling Distributed Applications: the SimGrid Simulation Framework",
CCGrid 2003.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine.flow_state import TIE, Floats, Integers

SMALL = 150
"""Number of demands and activities below which plain Python is faster than NumPy."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Demand matrix d_ij in compressed rows: units of each resource for each unit of each activity.

    Row i has the entries offsets[i] .. offsets[i + 1] - 1 of `resources` and `coefficients` (units of the resource for
    each unit of the activity).

    >>> Demands.of([{0: 1.0, 1: 2.0}, {}, {1: 0.5}])
    Demands(offsets=[0, 2, 2, 3], resources=[0, 1, 1], coefficients=[1.0, 2.0, 0.5])
    """

    offsets: Sequence[int]
    resources: Sequence[int]
    coefficients: Sequence[float]

    @classmethod
    def of(cls, rows: Sequence[Mapping[int, float]]) -> "Demands":
        """Demands from one mapping of resource to coefficient for each activity."""
        offsets = [0]
        for row in rows:
            offsets.append(offsets[-1] + len(row))
        resources = [resource for row in rows for resource in row]
        return cls(offsets, resources, [coefficient for row in rows for coefficient in row.values()])


def max_min_rates(
    capacities: Sequence[float],
    demands: Demands,
    weights: Sequence[float],
    caps: Sequence[float],
    *,
    small: int = SMALL,
) -> list[float]:
    """The weighted max-min fair rate of each activity, in its own units per second.

    >>> max_min_rates([10.0], Demands.of([{0: 1.0}, {0: 1.0}]), [1.0, 1.0], [2.0, float("inf")])
    [2.0, 8.0]
    >>> max_min_rates([12.0], Demands.of([{0: 1.0}, {0: 1.0}]), [1.0, 3.0], [9.0, 9.0])
    [3.0, 9.0]

    Parameters
    ----------
    capacities : c_j, at least 0 [units/s]; unused resources cost nothing
    demands : d_ij, at least 0
    weights : w_i, above 0
    caps : largest rate of each activity, above 0, infinite if unlimited
    small : number of demands and activities below which plain Python is used, not NumPy

    Raises
    ------
    InputError : an activity that neither a cap nor a resource limits
    """
    if len(demands.resources) + len(weights) < small:
        return _filled_by_level(capacities, demands, weights, caps)
    return _filled_by_bottleneck(
        capacities, demands, np.asarray(weights, dtype=np.float64), np.asarray(caps, dtype=np.float64)
    )


def _unbounded(activity: int) -> InputError:
    return InputError(f"activity {activity} has neither a finite cap nor a resource of finite capacity to hold it back")


def _filled_by_level(
    capacities: Sequence[float], demands: Demands, weights: Sequence[float], caps: Sequence[float]
) -> list[float]:
    """The rates, computed one level after the other."""
    rows = _rows(demands)
    users = _users(rows)
    cap_levels = {i: cap / weight for i, (cap, weight) in enumerate(zip(caps, weights, strict=True))}
    levels = {j: capacities[j] / sum(d * weights[i] for i, d in used.items()) for j, used in users.items()}
    rates = [-1.0] * len(weights)
    while cap_levels:
        level = min(*cap_levels.values(), *levels.values(), inf)
        if level == inf:
            raise _unbounded(next(iter(cap_levels)))
        limit = level * (1 + TIE)
        frozen = [i for i, cap_level in cap_levels.items() if cap_level <= limit]
        frozen += [i for j, own in levels.items() if own <= limit for i in users[j] if i in cap_levels]
        touched: dict[int, None] = {}
        for i in frozen:
            rates[i] = min(weights[i] * level, caps[i])
            cap_levels.pop(i, None)
            touched.update(dict.fromkeys(rows[i]))
        for j in touched:
            _lift(j, level, capacities, users, weights, rates, levels)
    return rates


def _lift(
    j: int,
    level: float,
    capacities: Sequence[float],
    users: Mapping[int, Mapping[int, float]],
    weights: Sequence[float],
    rates: Sequence[float],
    levels: dict[int, float],
) -> None:
    """Compute the level at which resource j saturates, from its capacity and at least `level`."""
    residual, load = capacities[j], 0.0
    for i, d in users[j].items():
        if rates[i] < 0:
            load += d * weights[i]
        else:
            residual -= d * rates[i]
    if load > 0:
        levels[j] = max(level, residual / load)
    else:
        levels.pop(j, None)


def _rows(demands: Demands) -> list[dict[int, float]]:
    """Coefficient by resource, for each activity, without zeros."""
    offsets, rows = demands.offsets, []
    for first, last in pairwise(offsets):
        entries = zip(demands.resources[first:last], demands.coefficients[first:last], strict=True)
        rows.append({j: d for j, d in entries if d > 0})
    return rows


def _users(rows: Sequence[Mapping[int, float]]) -> dict[int, dict[int, float]]:
    """Coefficient by activity, for each used resource."""
    users: dict[int, dict[int, float]] = {}
    for i, row in enumerate(rows):
        for j, d in row.items():
            users.setdefault(j, {})[i] = d
    return users


def _filled_by_bottleneck(
    all_capacities: Sequence[float], demands: Demands, weights: Floats, caps: Floats
) -> list[float]:
    """The rates, computed in rounds with every local bottleneck of a round at once."""
    entry_rows, entry_resources, entry_demands = _entries(demands)
    in_use, entry_resources = np.unique(entry_resources, return_inverse=True)
    capacities = np.array([all_capacities[j] for j in in_use.tolist()], dtype=np.float64)
    cap_levels = caps / weights
    rates = np.zeros(len(weights))
    used = np.zeros(len(capacities))
    floors = np.zeros(len(capacities))
    rising = np.ones(len(weights), dtype=bool)
    while rising.any():
        own, frozen = _frozen_activities(
            capacities - used, floors, entry_rows, entry_resources, entry_demands * weights[entry_rows], cap_levels
        )
        frozen &= rising
        if not np.isfinite(own[frozen]).all() or not frozen.any():
            raise _unbounded(int(np.flatnonzero(rising & ~np.isfinite(own))[0]))
        rates[frozen] = np.minimum(weights[frozen] * own[frozen], caps[frozen])
        rising &= ~frozen
        gone = frozen[entry_rows]
        used += np.bincount(
            entry_resources[gone], entry_demands[gone] * rates[entry_rows[gone]], minlength=len(capacities)
        )
        entry_rows, entry_resources, entry_demands = entry_rows[~gone], entry_resources[~gone], entry_demands[~gone]
    result: list[float] = rates.tolist()
    return result


def _entries(demands: Demands) -> tuple[Integers, Integers, Floats]:
    """Activity, resource and coefficient of every demand above zero."""
    offsets = np.asarray(demands.offsets, dtype=np.int64)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    resources = np.asarray(demands.resources, dtype=np.int64)
    coefficients = np.asarray(demands.coefficients, dtype=np.float64)
    used = coefficients > 0
    return rows[used], resources[used], coefficients[used]


def _frozen_activities(
    residuals: Floats, floors: Floats, rows: Integers, resources: Integers, loads: Floats, cap_levels: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """The level at which each activity freezes at present, and whether that level is final.

    The level is final if the activity's own cap gives it, or a resource that is the tightest of all its activities.
    `floors` keeps the levels of resources from falling by rounding.
    """
    load = np.bincount(resources, loads, minlength=len(residuals))
    levels = np.full(len(residuals), inf)
    np.divide(residuals, load, out=levels, where=load > 0)
    np.maximum(levels, floors, out=levels)
    np.copyto(floors, levels, where=load > 0)
    own = cap_levels.copy()
    np.minimum.at(own, rows, levels[resources])
    lowest = np.full(len(residuals), inf)
    np.minimum.at(lowest, resources, own[rows])
    settled = levels <= lowest * (1 + TIE)
    frozen = cap_levels <= own * (1 + TIE)
    frozen[rows[settled[resources]]] = True
    return own, frozen
