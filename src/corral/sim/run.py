# SPDX-License-Identifier: Apache-2.0
"""Runs seeds: each in a loop and world of its own, alone or in several processes."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from msgspec import Struct

from corral.model.errors import CorralError
from corral.sim import chaos, load
from corral.sim.actors import Unkillable, assign
from corral.sim.journal import Entry
from corral.sim.loop import Deadlock, Livelock, VirtualLoop, run
from corral.sim.truth import Violation
from corral.sim.world import Settings, World

MINUTES = 5.0
"""Virtual minutes with faults; what follows until everything rests comes on top."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One history. ``violation``: name of the first invariant that did not hold, empty: all held.
    ``virtual`` seconds were played in ``cpu`` seconds of one core. ``digest``: equal for equal histories."""

    seed: int
    violation: str = ""
    message: str = ""
    virtual: float
    cpu: float
    faults: dict[str, int]
    runs: int
    jobs: int
    teardowns: int
    events: int
    digest: str

    @property
    def counts(self) -> bool:
        """False: it met no fault, or tore nothing down, and so proves little."""
        return bool(self.faults) and self.teardowns > 0


class _Errors(logging.Handler):
    """What the system itself logs as an error is a violation, unless it is one of the faults we made."""

    def __init__(self, report: Callable[[Violation], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, CorralError):
            message = record.getMessage()
            self._report(Violation("no-internal-errors", f"{message}: {type(error).__name__}: {error}"))


def play(main: Callable[[World], Any], make: Callable[[VirtualLoop], World]) -> World:
    """Run ``main(world)`` in a fresh loop; what goes wrong is in the world's violations."""
    loop = VirtualLoop(assign)
    world = make(loop)
    loop.set_exception_handler(lambda loop, context: _unhandled(world, context))
    handler = _Errors(world.report)
    logger = logging.getLogger("corral")
    before = (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        run(main(world), loop)
    except (Deadlock, Livelock, Unkillable) as error:
        world.report(Violation(type(error).__name__.lower(), str(error)))
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
    return world


def _unhandled(world: World, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, CorralError):
        world.report(Violation("no-internal-errors", f"{context.get('message')}: {error!r}"))


def run_seed(seed: int, minutes: float = MINUTES, *, keep: bool = False) -> tuple[Outcome, list[Entry]]:
    """Play one history; the entries are empty unless kept."""
    began = time.process_time()
    histories: list[chaos.Chaos] = []

    def make(loop: VirtualLoop) -> World:
        def world_of(name: str, settings: Settings, chance: random.Random) -> World:
            return World(name, loop, pools=load.some_pools(chance), settings=settings, keep=keep)

        histories.append(chaos.make(seed, world_of))
        return histories[0].world

    world = play(lambda world: histories[0].history(minutes * 60), make)
    first = world.violations[0] if world.violations else None
    outcome = Outcome(
        seed=seed,
        violation=first.name if first else "",
        message=first.message if first else "",
        virtual=world.loop.time(),
        cpu=time.process_time() - began,
        faults=dict(sorted(histories[0].faults.items())),
        runs=len(histories[0].runs),
        jobs=len(world.truth.executions),
        teardowns=sum(1 for agent in world.agents.values() if agent.destroyed),
        events=world.journal.count,
        digest=world.journal.digest,
    )
    return outcome, list(world.journal.entries())


def _outcome(job: tuple[int, float]) -> Outcome:
    return run_seed(*job)[0]


def run_seeds(seeds: Iterable[int], minutes: float = MINUTES, *, processes: int = 1) -> Iterator[Outcome]:
    """In the order of the seeds."""
    jobs = [(seed, minutes) for seed in seeds]
    if processes <= 1 or len(jobs) <= 1:
        yield from map(_outcome, jobs)
        return
    # spawn: a child that was forked would inherit whatever threads and locks the caller has.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_outcome, jobs, chunksize=4)
