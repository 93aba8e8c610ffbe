# SPDX-License-Identifier: Apache-2.0
"""The agents connected to this coordinator, by agent: who is idle, who replaces whom, and the end of all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from corral.control.link import Link
from corral.control.session import Services, Session
from corral.control.settle import Wake
from corral.model.ids import AgentId
from corral.wire import close
from corral.wire.messages import ToAgent, Withdraw


class Sessions:
    """Every session of this coordinator, by agent."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._by_agent: dict[AgentId, Session] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._greeted: Counter[AgentId] = Counter()
        self.draining = False

    def greet(self, agent_id: AgentId) -> None:
        """A connection is about to register this agent; :meth:`part` when it is over and that is recorded."""
        self._greeted[agent_id] += 1

    def part(self, agent_id: AgentId) -> None:
        self._greeted[agent_id] -= 1
        if self._greeted[agent_id] <= 0:
            del self._greeted[agent_id]

    def serves(self, agent_id: AgentId) -> bool:
        """False: an agent that the database says is connected here is not, and its disconnection went unrecorded."""
        return agent_id in self._greeted

    def get(self, agent_id: AgentId) -> Session | None:
        return self._by_agent.get(agent_id)

    def all(self) -> tuple[Session, ...]:
        return tuple(self._by_agent.values())

    def idle(self) -> tuple[Session, ...]:
        """Those that may be offered a job."""
        return tuple(session for session in self._by_agent.values() if session.idle)

    def send(self, agent_id: AgentId, message: ToAgent) -> bool:
        """Put a message into the agent's outbox; False: it is not connected here."""
        session = self._by_agent.get(agent_id)
        if session is None:
            return False
        session.send(message)
        return True

    async def serve(self, link: Link) -> None:
        """Own one connection until it ends; never raises for what the other side does."""
        if self.draining:
            await link.close(close.SHUTTING_DOWN, "this coordinator is shutting down")
            return
        session = Session(link, self._services, self)
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
        try:
            await session.run()
        finally:
            if task is not None:
                self._serving.discard(task)

    async def ended(self, agent_id: AgentId, timeout: float) -> None:
        """Wait for the agent's session to have read its last frame, at the most ``timeout`` seconds."""
        session = self._by_agent.get(agent_id)
        if session is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.until_over(), timeout)

    async def stop(self, grace: float) -> None:
        """Close every session; what is unfinished goes on when the agent reconnects."""
        self.draining = True
        for session in self.all():
            session.close(close.SHUTTING_DOWN, "this coordinator is shutting down")
        tasks = set(self._serving)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def adopt(self, session: Session) -> None:
        """The newest session of an agent replaces an older one, in whatever order they come here."""
        assert session.agent_id is not None
        older = self._by_agent.get(session.agent_id)
        if older is not None and older.number > session.number:
            session.close(close.REPLACED, "replaced by a newer session")
            return
        self._by_agent[session.agent_id] = session
        if older is not None:
            older.close(close.REPLACED, "replaced by a newer session")

    def drop(self, session: Session) -> None:
        if session.agent_id is not None and self._by_agent.get(session.agent_id) is session:
            del self._by_agent[session.agent_id]


def tell_withdrawn(sessions: Sessions, wake: Wake) -> None:
    """Agents whose offer was taken back."""
    for agent_id, job_id, attempt in wake.withdrawn:
        session = sessions.get(agent_id)
        if session is not None:
            session.vacate(job_id, attempt)
            session.send(Withdraw(job_id=job_id, attempt=attempt))
