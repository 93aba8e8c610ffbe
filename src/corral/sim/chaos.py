# SPDX-License-Identifier: Apache-2.0
"""One seed is one history: users, operators and faults at random moments of some minutes, then peace, and a bound
within which everything must come to rest."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from corral.backends.fake import Fail, Hang, Late, LoseAnswer
from corral.backends.interface import NoCapacity, Transient
from corral.control.coordinator import CoordinatorSettings
from corral.model.errors import CorralError
from corral.model.ids import RunId
from corral.model.states import RUN
from corral.model.views import Rerun
from corral.sim import load
from corral.sim.agents import SimAgent
from corral.sim.waiting import rest, static_agent
from corral.sim.world import URL, Settings, World


@dataclass(kw_only=True)
class Chaos:
    """``faults``: how many of each kind were really injected."""

    world: World
    random: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    runs: list[RunId] = field(default_factory=list)

    async def history(self, seconds: float) -> None:
        world = self.world
        await world.start()
        if self.random.random() < 0.3:
            world.run_static(await static_agent(world, "own", ("linux",)), "own-1")
        keeper = asyncio.create_task(self._keep_up())
        others = [asyncio.create_task(one) for one in (self._users(seconds), self._operators(seconds))]
        others.append(asyncio.create_task(self._troubles(seconds)))
        await asyncio.gather(*others)
        keeper.cancel()
        await self._peace()
        await rest(self.world)

    async def _peace(self) -> None:
        world = self.world
        world.settings.lost_rings = 0.0
        world.database.inline.away = world.database.inline.read_only = False
        world.logs.resume()
        if world.site is None:
            await world.start()
        world.journal.note("faults", "are over")

    async def _keep_up(self) -> None:
        """A supervisor: the coordinator is started again some time after it ended."""
        while True:
            await asyncio.sleep(0.5)
            if self.world.site is None and self.random.random() < 0.3:
                await self.world.start()

    # --- users -------------------------------------------------------------------------------------------------

    async def _users(self, seconds: float) -> None:
        for at in sorted(self.random.uniform(0, seconds) for _ in range(self.random.randint(2, 7))):
            await asyncio.sleep(max(0.0, at - self.world.loop.time()))
            await self._ask(self._submit)

    async def _submit(self) -> None:
        view = await self.world.coordinator.create_run(load.some_run(self.random, self.world.pools))
        self.world.journal.note("user", f"submits {view.id} with {view.jobs_total} jobs")
        self.runs.append(RunId(view.id))

    async def _ask(self, what: Callable[[], Awaitable[None]]) -> None:
        """One API call, inside the coordinator's process: it may be refused, fail, or die with it."""
        site = self.world.site
        if site is None:
            return

        async def call() -> None:
            try:
                await what()
            except CorralError as error:
                self.world.journal.note("user", f"is told: {error}")

        await asyncio.wait([site.actor.spawn(call())])

    # --- operators ---------------------------------------------------------------------------------------------

    async def _operators(self, seconds: float) -> None:
        for _ in range(self.random.randint(0, 5)):
            await asyncio.sleep(self.random.uniform(0, seconds / 4))
            if self.world.loop.time() > seconds or not self.runs:
                return
            await self._ask(self.random.choice((self._cancel, self._cancel, self._rerun)))

    async def _cancel(self) -> None:
        run_id, force = self.random.choice(self.runs), self.random.random() < 0.3
        self.world.journal.note("operator", f"cancels {run_id}{' by force' if force else ''}")
        await self.world.coordinator.cancel_run(run_id, force=force)
        if self.random.random() < 0.3:
            await self.world.coordinator.cancel_run(run_id, force=self.random.random() < 0.5)

    async def _rerun(self) -> None:
        run_id = self.random.choice(self.runs)
        view = await self.world.coordinator.run(run_id)
        if view.state not in {str(state) for state in RUN.terminal}:
            return
        again = await self.world.coordinator.rerun(run_id, Rerun(failed_only=self.random.random() < 0.5))
        self.world.journal.note("operator", f"reruns {run_id} as {again.id}")
        self.runs.append(RunId(again.id))

    # --- faults ------------------------------------------------------------------------------------------------

    async def _troubles(self, seconds: float) -> None:
        kinds: list[Callable[[], Awaitable[bool]]] = [
            self._disconnect,
            self._disconnect,
            self._agent_crash,
            self._restart,
            self._reboot,
            self._delay,
            self._lost_notifications,
            self._half_open,
            self._cut_off,
            self._overtaken,
            self._static_agent_restarts,
            self._database_away,
            self._database_read_only,
            self._log_store_stalls,
            self._backend_fails,
        ]
        while True:
            await asyncio.sleep(self.random.expovariate(12 / seconds))
            if self.world.loop.time() > seconds:
                return
            kind = self.random.choice(kinds)
            name = kind.__name__.lstrip("_")
            if await kind():
                self.faults[name] += 1

    def _someone(self, among: Callable[[SimAgent], bool]) -> SimAgent | None:
        """An agent, one with a job rather than an idle one."""
        alive = [agent for agent in self.world.agents.values() if agent.alive and among(agent)]
        busy = [agent for agent in alive if self._busy(agent)]
        return self.random.choice(busy or alive) if alive else None

    def _busy(self, agent: SimAgent) -> bool:
        return any(one.agent_id == agent.id for one in self.world.truth.running.values())

    def _connected(self, agent: SimAgent) -> bool:
        return agent.wire is not None and not agent.wire.over

    def _note(self, text: str) -> None:
        self.world.journal.note("fault", text)

    async def _disconnect(self) -> bool:
        agent = self._someone(self._connected)
        if agent is None or agent.wire is None:
            return False
        self._note(f"{agent.name}: the connection breaks")
        agent.wire.cut()
        return True

    async def _cut_off(self) -> bool:
        """Disconnected, and for a while nobody can be reached."""
        agent = self._someone(self._connected)
        if agent is None or agent.wire is None:
            return False
        seconds = self.random.choice((5.0, 40.0, 130.0, 400.0))
        self._note(f"{agent.name}: cut off for {seconds:g} s")
        agent.cut_until = self.world.loop.time() + seconds
        agent.wire.cut()
        return True

    async def _half_open(self) -> bool:
        agent = self._someone(self._connected)
        if agent is None or agent.wire is None:
            return False
        self._note(f"{agent.name}: the connection is half-open")
        agent.wire.half_open()
        return True

    async def _delay(self) -> bool:
        agent = self._someone(self._connected)
        if agent is None or agent.wire is None:
            return False
        up, down = self.random.choice(((0.3, 0.0), (0.0, 0.3), (12.0, 0.0), (0.0, 12.0), (45.0, 45.0), (2.0, 2.0)))
        self._note(f"{agent.name}: what it says comes {up:g} s late, what it is told {down:g} s")
        agent.wire.hold(up, down)
        return True

    async def _overtaken(self) -> bool:
        """The agent's side ends at once, the coordinator still reads what was on the way: perhaps seconds later, when
        the agent has long dialled again."""
        agent = self._someone(self._connected)
        if agent is None or agent.wire is None:
            return False
        seconds = self.random.choice((0.0, 0.5, 3.0))
        self._note(f"{agent.name}: hangs up; what it said arrives over {seconds:g} s")
        agent.wire.hold(seconds, 0.0)
        agent.wire.slip()
        return True

    async def _static_agent_restarts(self) -> bool:
        agent = next((one for one in self.world.agents.values() if one.static), None)
        if agent is None:
            return False
        if agent.alive and agent.worker is not None and self.random.random() < 0.5:
            self._note(f"{agent.name}: is asked to stop")
            agent.actor.call_soon(agent.worker.stop, "the host shuts down")
            await asyncio.sleep(self.random.uniform(0.1, 20.0))
        await self.world.crash_agent(agent)
        await asyncio.sleep(self.random.uniform(0.1, 5.0))
        self.world.run_static(agent.config, agent.name)
        return True

    async def _agent_crash(self) -> bool:
        agent = self._someone(lambda _: True)
        if agent is None:
            return False
        await self.world.crash_agent(agent)
        return True

    async def _restart(self) -> bool:
        if self.world.site is None:
            return False
        if self.random.random() < 0.25:
            await self.world.stop()
        else:
            await self.world.crash()
        return True

    async def _reboot(self) -> bool:
        """Rarely: it leaves little of what else was going on."""
        if self.world.site is None or self.random.random() < 0.7:
            return False
        await self.world.reboot()
        return True

    async def _lost_notifications(self) -> bool:
        self.world.settings.lost_rings = self.random.choice((0.3, 0.9, 1.0))
        self._note(f"{self.world.settings.lost_rings:.0%} of the notifications are lost")
        await asyncio.sleep(self.random.uniform(1.0, 60.0))
        self.world.settings.lost_rings = 0.0
        return True

    async def _database_away(self) -> bool:
        seconds = self.random.choice((0.1, 2.0, 20.0, 150.0))
        self._note(f"the database is away for {seconds:g} s")
        self.world.database.inline.away = True
        await asyncio.sleep(seconds)
        self.world.database.inline.away = False
        self.world.watch.takes_over()
        self._note("the database is back")
        return True

    async def _database_read_only(self) -> bool:
        self._note("the database cannot be written")
        self.world.database.inline.read_only = True
        await asyncio.sleep(self.random.choice((0.5, 10.0, 50.0)))
        self.world.database.inline.read_only = False
        self.world.watch.takes_over()
        self._note("the database can be written")
        return True

    async def _log_store_stalls(self) -> bool:
        self._note("the log store stalls")
        self.world.logs.stall()
        await asyncio.sleep(self.random.choice((0.5, 5.0, 70.0)))
        self.world.logs.resume()
        self._note("the log store goes on")
        return True

    async def _backend_fails(self) -> bool:
        if self.world.site is None:
            return False
        inner = self.world.site.backend.inner
        late = Late(seconds=self.random.choice((1.0, 50.0, 90.0)))
        fault = self.random.choice((Fail(error=NoCapacity("no room")), Hang(), LoseAnswer(), late))
        if self.random.random() < 0.6:
            self._note(f"the next create: {type(fault).__name__}")
            inner.next_create.append(fault)
        else:
            self._note(f"the next destroy: {type(fault).__name__}")
            inner.next_destroy.append(fault if not isinstance(fault, Fail) else Fail(error=Transient("not now")))
        return True


def make(seed: int, world_of: Callable[[str, Settings, random.Random], World]) -> Chaos:
    """The history of one seed, not begun."""
    chance = random.Random(f"chaos/{seed}")
    settings = Settings(
        coordinator=CoordinatorSettings(urls=(URL,), unroutable_after=20.0),
        boot=(0.0, chance.choice((0.2, 3.0, 30.0))),
        create=(0.0, chance.choice((0.01, 0.5, 5.0))),
        destroy=(0.0, chance.choice((0.01, 0.5))),
    )
    return Chaos(world=world_of(str(seed), settings, chance), random=chance)
