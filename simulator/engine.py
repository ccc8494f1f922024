"""The flow engine: everything that shares something, in one place, as one SimPy event.

Theory of operation
-------------------
An *activity* (a transfer, a GEMM, a reduction) is an amount of work that runs at
a rate; it takes `demands[j]` units of resource j per unit of its own work.  The
rates are weighted max-min and change only when an activity starts or ends
(`sharing/shares.py`), so the engine goes from change to change and is exact.

*Classes.*  Activities with the same demands, weight and cap run at the same rate
and are one class.  A class keeps the work that one member has been served since
the class was last empty; a member that joins at service s with work w ends when
the service reaches s + w.  So a change of rate costs one update per class,
however many members it has, and the next end of a class is the top of a heap.

*One instant, one batch.*  SimPy sees a single event, the next change; an earlier
change makes the pending event stale, and a version number tells.  Whatever ends
within `TIE` of that instant ends now, in the order in which it was started.
Then the processes of SimPy that wait for these ends run, and only when nothing
else happens at this instant (an event of the lowest priority says so) are the
resources shared anew, once.

An activity starts when the caller says so: for a message, when both ends are
ready (rendezvous).  Latency is paid once, before, and holds no resource.

`Environment.run()` without `until` may move the clock on to a stale event after
the last end; run until the event that ends the simulation.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain, repeat
from math import inf, isfinite, isnan
from operator import attrgetter

import simpy
from simpy.events import NORMAL, EventPriority

from algorithms.errors import InputError
from simulator.sharing.flow_class import Activity, FlowClass
from simulator.sharing.max_min import TIE
from simulator.sharing.moments import Moment, Recurring, Stride
from simulator.sharing.shares import Shares, Tally

_number = attrgetter("number")
LATE = EventPriority(2)  # after everything else that happens at an instant


class Alarm(simpy.Event):
    """An event of SimPy that calls `action` after `delay` seconds."""

    def __init__(self, env: simpy.Environment, action: Callable[[], None], priority: EventPriority, delay: float):
        super().__init__(env)
        self._ok = True
        self._value = None
        assert self.callbacks is not None
        self.callbacks.append(lambda _: action())
        env.schedule(self, priority, delay)


class FlowEngine:
    """Resources, and the activities that share them, on the clock of `env`.

    >>> env = simpy.Environment()
    >>> engine = FlowEngine(env)
    >>> link = engine.add_resource(10.0, "leaf:0>spine:0")
    >>> ends = []
    >>> for size in (10.0, 30.0):
    ...     _ = engine.start(size, {link: 1.0}, latency=1.0, then=lambda: ends.append(env.now))
    >>> env.run()
    >>> ends
    [3.0, 5.0]
    >>> engine.resource_load(link)
    40.0

    Parameters
    ----------
    memory : remember the rates of states seen before
    local : solve only the connected component that changed
    """

    def __init__(self, env: simpy.Environment, *, memory: bool = True, local: bool = True) -> None:
        self.env = env
        self._shares = Shares(memory=memory, local=local)
        self._names: list[str | Callable[[], str]] = []
        self._busy: list[float] = []  # seconds of use, up to the last time that nobody used it
        self._used_since: list[float] = []
        self._classes_of: list[list[FlowClass]] = []  # all classes by resource
        self._classes: dict[tuple[tuple[tuple[int, float], ...], float, float], FlowClass] = {}
        self._starting: list[tuple[float, int, Activity]] = []
        self._ending: list[tuple[float, int, FlowClass]] = []
        self._numbers = 0
        self._stamps = 0
        self._version = 0
        self._next_change = inf
        self._in_batch = False
        self._change_requested = False
        self.settled: Callable[[], None] | None = None
        """Called when all that happens at an instant has happened, and nothing else is due then."""

    @property
    def tally(self) -> Tally:
        """How often rates changed, and how they were found."""
        return self._shares.tally

    # Resources

    def add_resource(self, capacity: float, name: str | Callable[[], str] = "") -> int:
        """Number of a new resource that serves `capacity` units per second (may be infinite).

        Parameters
        ----------
        name : or what makes it when somebody asks

        Raises
        ------
        InputError : a capacity that is not above zero
        """
        if not capacity > 0:
            told = name if isinstance(name, str) else name()
            raise InputError(f"capacity {capacity!r} of resource {told!r}: a capacity is a number above 0")
        self._shares.capacities.append(float(capacity))
        self._names.append(name)
        self._shares.users.append({})
        self._classes_of.append([])
        self._busy.append(0.0)
        self._used_since.append(0.0)
        return len(self._names) - 1

    @property
    def resource_count(self) -> int:
        return len(self._names)

    def loads(self) -> list[tuple[float, float]]:
        """Units served so far, and seconds of use, of every resource."""
        return [(self.resource_load(one), self.resource_busy(one)) for one in range(self.resource_count)]

    def resource_busy(self, resource: int) -> float:
        """Seconds so far in which anything used the resource."""
        since = float(self.env.now) - self._used_since[resource] if self._shares.users[resource] else 0.0
        return self._busy[resource] + since

    def resource_name(self, resource: int) -> str:
        name = self._names[resource]
        return name if isinstance(name, str) else name()

    def resource_capacity(self, resource: int) -> float:
        """Units per second."""
        return self._shares.capacities[resource]

    def resource_load(self, resource: int) -> float:
        """Units that the resource has served so far; over capacity and time, its mean use."""
        return sum(c.coefficients[c.resources.index(resource)] * self._served(c) for c in self._classes_of[resource])

    def _served(self, c: FlowClass) -> float:
        return c.served + c.rate * len(c.members) * (float(self.env.now) - c.updated)

    # Activities

    def start(
        self,
        work: float,
        demands: Mapping[int, float],
        *,
        weight: float = 1.0,
        cap: float = inf,
        latency: float = 0.0,
        then: Callable[[], object],
    ) -> Activity:
        """A new activity; `then` is called when it ends, and may start others at that instant.

        Parameters
        ----------
        work : size in the activity's own units (bytes, flop, seconds); 0 ends right after the latency
        demands : units of each resource that one unit of work takes
        weight : share relative to the others
        cap : largest rate [units of work per second]
        latency : paid once, before the work starts [s]

        Raises
        ------
        InputError : a number out of range, an unknown resource, nothing that limits the rate
        """
        return self.begin(self.flow_class(demands, weight=weight, cap=cap), work, latency=latency, then=then)

    def begin(
        self, flow_class: FlowClass, work: float, *, latency: float = 0.0, then: Callable[[], object]
    ) -> Activity:
        """A new activity of a class that is known; arguments as `start`."""
        if not 0 <= work < inf:
            raise InputError(f"work {work!r}: the size of an activity is a finite number from 0")
        if not 0 <= latency < inf:
            raise InputError(f"latency {latency!r} s: a latency is a finite number from 0")
        self._numbers = number = self._numbers + 1
        now = self.env.now
        activity = Activity(number, flow_class, work, then, now)
        heappush(self._starting, (now + latency, number, activity))
        if not (self._in_batch or self._change_requested):
            self._request_change()
        return activity

    def event(
        self,
        work: float,
        demands: Mapping[int, float],
        *,
        weight: float = 1.0,
        cap: float = inf,
        latency: float = 0.0,
    ) -> simpy.Event:
        """An event of SimPy that succeeds, with the activity as its value, when the activity ends."""
        return self.event_of(self.flow_class(demands, weight=weight, cap=cap), work, latency=latency)

    def event_of(self, flow_class: FlowClass, work: float, *, latency: float = 0.0) -> simpy.Event:
        """The same, for an activity of a class that is known."""
        done = self.env.event()
        activity = self.begin(flow_class, work, latency=latency, then=lambda: done.succeed(activity))
        return done

    def rate(self, activity: Activity) -> float:
        """Present rate of an activity; 0 while its latency lasts and after its end."""
        running = not isnan(activity.started) and isnan(activity.ended)
        return activity.flow_class.rate if running else 0.0

    def flow_class(self, demands: Mapping[int, float], *, weight: float = 1.0, cap: float = inf) -> FlowClass:
        """The class of activities with these demands, made when it is new; arguments and errors as `start`."""
        key = (tuple(sorted(demands.items())), weight, cap)
        found = self._classes.get(key)
        if found is None:
            self._check(demands, weight, cap)
            resources = tuple(resource for resource, d in key[0] if d > 0)
            coefficients = tuple(float(d) for _, d in key[0] if d > 0)
            capacities = self._shares.capacities
            entries = tuple(one for one in zip(resources, coefficients, strict=True) if capacities[one[0]] < inf)
            found = FlowClass(len(self._classes), resources, coefficients, entries, weight, cap)
            self._classes[key] = found
            for resource in resources:
                self._classes_of[resource].append(found)
        return found

    def _check(self, demands: Mapping[int, float], weight: float, cap: float) -> None:
        for resource, demand in demands.items():
            if not 0 <= resource < self.resource_count:
                raise InputError(f"resource {resource}: there are {self.resource_count}, numbered from 0")
            if not (isfinite(demand) and demand >= 0):
                raise InputError(
                    f"demand {demand!r} on {self.resource_name(resource)!r}: a demand is a finite number from 0"
                )
        if not (isfinite(weight) and weight > 0):
            raise InputError(f"weight {weight!r}: a weight is a finite number above 0")
        if not cap > 0:
            raise InputError(f"cap {cap!r}: a cap is a rate above 0")
        if cap == inf and not any(demand > 0 and self._shares.capacities[j] < inf for j, demand in demands.items()):
            raise InputError("an activity needs a finite cap, or a demand on a resource of finite capacity")

    # From change to change

    def _request_change(self) -> None:
        """Has the engine look again once everything else at this instant has happened."""
        self._change_requested = True
        Alarm(self.env, self._requested_change, LATE, 0.0)

    def _requested_change(self) -> None:
        self._change_requested = False
        self._change()

    def _change(self) -> None:
        """Ends and starts what is due; then shares anew, or waits for those who answer at this instant."""
        answers = False
        self._in_batch = True
        while ended := self._due():
            answers = True
            ended.sort(key=_number)
            for activity in ended:
                activity.then()
        self._in_batch = False
        if answers and self.env.peek() <= self.env.now:
            if not self._change_requested:
                self._request_change()
        else:
            self._share()
            if self.settled is not None and self.env.peek() > self.env.now:
                self.settled()
            self._arm()

    def _due(self) -> list[Activity]:
        """Activities that end now; those whose latency is over have joined their class."""
        now = float(self.env.now)
        limit = now * (1 + TIE)
        ended: list[Activity] = []
        while self._starting and self._starting[0][0] <= limit:
            activity = heappop(self._starting)[2]
            activity.started = now
            if activity.work > 0:
                self._join(activity, now)
            else:
                ended.append(activity)
        while self._ending and self._ending[0][0] <= limit:
            _, stamp, flow_class = heappop(self._ending)
            if stamp == flow_class.stamp:
                ended += self._leave(flow_class, now)
        for activity in ended:
            activity.ended = now
        return ended

    def _join(self, activity: Activity, now: float) -> None:
        c = activity.flow_class
        if c.members:
            c.advance(now)
            heappush(c.members, (c.service + activity.work, activity.number, activity))
            self._shares.changed[c] = None
            return
        c.rate, c.service, c.updated = 0.0, 0.0, now
        c.members.append((activity.work, activity.number, activity))
        users = self._shares.users
        for resource in c.resources:
            if not users[resource]:
                self._used_since[resource] = now
        self._shares.enter(c)

    def _leave(self, c: FlowClass, now: float) -> list[Activity]:
        """The members of a class whose first end is due: that one, and all within `TIE` of it."""
        c.advance(now)
        limit = max(c.members[0][0], c.service + c.rate * now * TIE)
        ended = []
        while c.members and c.members[0][0] <= limit:
            ended.append(heappop(c.members)[2])
        c.stamp = 0
        if c.members:
            self._shares.changed[c] = None
            return ended
        c.rate = 0.0
        self._shares.leave(c)
        users = self._shares.users
        for resource in c.resources:
            if not users[resource]:
                self._busy[resource] += now - self._used_since[resource]
        return ended

    def _arm(self) -> None:
        """Leaves exactly one valid alarm, at the next change."""
        while self._ending and self._ending[0][1] != self._ending[0][2].stamp:
            heappop(self._ending)
        following = min(self._starting[0][0] if self._starting else inf, self._ending[0][0] if self._ending else inf)
        if following == self._next_change:
            return
        self._next_change = following
        self._version += 1
        if following < inf:
            version = self._version
            delay = max(0.0, following - float(self.env.now))
            Alarm(self.env, lambda: self._ring(version), NORMAL, delay)

    def _ring(self, version: int) -> None:
        if version == self._version:
            self._next_change = inf
            self._change()

    # Stretches that repeat

    def moment(self) -> Moment:
        """The present state, once everything has settled."""
        now = float(self.env.now)
        services = {c: c.service + c.rate * (now - c.updated) for c in self._shares.active}
        return Moment(
            now,
            [(due, activity) for due, _, activity in sorted(self._starting)],
            {c: [(end - service, one) for end, _, one in sorted(c.members)] for c, service in services.items()},
            services,
            [self._served(c) for c in self._classes.values()],
            [self.resource_busy(one) for one in range(self.resource_count)],
        )

    def leap(self, before: Moment, after: Moment, found: Stride, times: int) -> None:
        """Go on as if what happened between two moments, the later one now, had happened so many times more."""
        shift = times * found.seconds
        later = after.now + shift
        for activity in after.activities():
            if activity.number not in found.staying:
                assert isinstance(activity.then, Recurring)
                activity.then.begun += shift
                activity.requested += shift
                activity.started += shift
        for c, was, served in zip(
            self._classes.values(), chain(before.served, repeat(0.0)), after.served, strict=False
        ):
            c.served = served + times * (served - was)
        for c, service in after.services.items():
            c.service, c.updated = service + times * found.moved.get(c, 0.0), later
            self._await(c, later)
        self._starting = [
            (due if one.number in found.staying else due + shift, number, one) for due, number, one in self._starting
        ]
        heapify(self._starting)
        for resource, (was, busy) in enumerate(zip(chain(before.busy, repeat(0.0)), after.busy, strict=False)):
            self._busy[resource] += times * (busy - was)
            if self._shares.users[resource]:
                self._used_since[resource] += shift

    # Sharing

    def _share(self) -> None:
        """New rates and ends wherever members came or went."""
        changed = self._shares.changed
        if not changed:
            return
        now = float(self.env.now)
        for c, rate in self._shares.found():
            if rate != c.rate or c in changed:
                c.advance(now)
                c.rate = rate
                self._await(c, now)
        self._drop_stale()

    def _await(self, c: FlowClass, now: float) -> None:
        """Enters the first end of a class, in place of the one entered before."""
        self._stamps += 1
        c.stamp = self._stamps
        heappush(self._ending, (now + max(0.0, c.members[0][0] - c.service) / c.rate, c.stamp, c))

    def _drop_stale(self) -> None:
        """Rebuilds the heap of ends when most of its entries are stale."""
        if len(self._ending) > 4 * len(self._shares.active) + 64:
            self._ending = [entry for entry in self._ending if entry[1] == entry[2].stamp]
            heapify(self._ending)
