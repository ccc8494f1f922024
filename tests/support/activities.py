"""Activities on an engine: each is a program of one stage."""

from dataclasses import dataclass
from math import isnan, nan
from weakref import WeakKeyDictionary

from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.engine.engine_state import MOVING

FREE = WeakKeyDictionary()
"""By engine and kind, the flows, programs and members of activities that have ended."""


@dataclass(slots=True, eq=False)
class Activity:
    """An activity: the times at which it was requested and at which it ended [s] (NaN until it has ended)."""

    engine: object
    flow: int
    work: float
    requested: float
    ended: float = nan

    @property
    def rate(self):
        """Present rate; 0 while its latency lasts and after its end."""
        state = self.engine._state
        running = isnan(self.ended) and self.flow < len(state.status) and state.status[self.flow] == MOVING
        return state.speed[self.flow] if running else 0.0


def start(engine, work, demands, *, then, **options):
    """A new activity; `then` is called when it ends, and may start others at that instant."""
    free = FREE.setdefault(engine, {}).setdefault((work, *sorted(demands.items()), *sorted(options.items())), [])
    if not free:
        flow = engine.add_flow(work, demands, **options)
        free.append((flow, engine.add_program([ProgramStage(local=flow)]), engine.add_stream()))
    used = flow, program, member = free.pop()
    activity = Activity(engine, flow, work, engine.env.now)

    def ended():
        activity.ended = engine.env.now
        free.append(used)
        then()

    engine.begin(member, program, ended)
    return activity


def event(engine, work, demands, **options):
    """An event of SimPy that succeeds, with the activity as its value, when the activity ends."""
    done = engine.env.event()
    activity = start(engine, work, demands, then=lambda: done.succeed(activity), **options)
    return done
