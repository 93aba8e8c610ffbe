# SPDX-License-Identifier: Apache-2.0
"""What only time brings about: deadlines of jobs and runs, agents silent for too long, rows to forget; and the
repair of whatever a lost wake-up left standing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from corral.control import bell, failures, settle
from corral.control.bell import Bell
from corral.control.sessions import Sessions, tell_withdrawn
from corral.control.settle import CANCEL_GRACE, SECOND, Wake, ring
from corral.model.errors import CorralError
from corral.model.ids import AgentId, JobId, RunId
from corral.model.records import Job
from corral.model.spec import Reason
from corral.model.states import ATTEMPT, AgentState, JobEvent, JobState
from corral.runtime.clock import Clock
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import agents, jobs, runs
from corral.store.repo import failures as failure_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.wire.messages import Cancel

log = logging.getLogger(__name__)

DEAF_FOR = 30.0
"""Seconds for which an agent that answered no offers gets none, before a word of it counts: longer than a heartbeat's
interval, so that it is one said since then."""
REPAIR_EVERY = 60.0
"""Seconds between looks at every live run."""
PAUSED_AFTER = 15.0
"""Seconds between two passes beyond which we were not listening ourselves (stopped, suspended, starved): far above the
interval, and above what a pass over a large installation takes."""
GONE_RETENTION = 24 * 3600 * SECOND


@dataclass(frozen=True, kw_only=True)
class SweeperSettings:
    """Seconds."""

    lost_after: float = 120.0
    queue_timeout: float = 24 * 3600.0


class Sweeper(Service):
    name = "sweeper"
    interval = 1.0

    def __init__(
        self,
        clock: Clock,
        database: Database,
        sessions: Sessions,
        bell_: Bell,
        settings: SweeperSettings,
        *,
        coordinator_id: str,
    ) -> None:
        super().__init__(clock)
        self._coordinator_id = coordinator_id
        self._database = database
        self._sessions = sessions
        self._bell = bell_
        self._settings = settings
        self._repaired = -REPAIR_EVERY
        self._listening_since: int | None = None
        self._deaf: dict[AgentId, float] = {}
        """Since when a static agent is seen to be cordoned for offers it did not answer."""
        bell_.listen(bell.STOPS, self.wake)

    async def run_once(self) -> None:
        found = await self._read()
        if found.anything:
            wake = Wake()
            await self._database.write(lambda c: self._settle(c, found, wake))
            tell_withdrawn(self._sessions, wake)
            ring(self._bell, wake)
        await self._tell_stops()
        await self._hear_again()
        await self._repair()

    # --- deadlines and silence ---

    async def _read(self) -> Found:
        """Whoever could not be heard is not silent: after a database that was away (nobody could register) and after
        our own pause, every absence counts anew."""
        if self.last_pass is not None and self.clock.monotonic() - self.last_pass > PAUSED_AFTER:
            self._listening_since = None
        try:
            found = await self._database.read(self._look)
        except CorralError:
            self._listening_since = None
            raise
        return replace(found, online=tuple(pair for pair in found.online if not self._sessions.serves(pair[0])))

    def _look(self, connection: Connection) -> Found:
        moment = now(connection)
        if self._listening_since is None:
            # An agent could not have been heard before this coordinator began to listen.
            self._listening_since = moment
        late = jobs.overdue(connection, queue_timeout=int(self._settings.queue_timeout * SECOND))
        limit = moment - int(self._settings.lost_after * SECOND)
        silent = agents.silent_with_job(connection, limit) if self._listening_since <= limit else ()
        online = agents.online_at(connection, self._coordinator_id)
        return Found(late=late, silent=silent, runs=runs.overdue(connection), online=online)

    def _settle(self, connection: Connection, found: Found, wake: Wake) -> None:
        for agent_id, session in found.online:
            agents.disconnect(connection, agent_id, session)
        for run_id in found.runs:
            run = runs.get(connection, run_id)
            if run is not None:
                settle.cancel_run(connection, run, force=False, reason=Reason.RUN_TIMEOUT, wake=wake)
        for job in found.late:
            current = jobs.get(connection, job.id)
            if current is not None and current.state is job.state:
                _overdue(connection, current, wake, self._settings.queue_timeout)
        for job_id in found.silent:
            _silent(connection, job_id, wake)

    # --- stopping what runs ---

    async def _tell_stops(self) -> None:
        """Every job in ``cancelling`` whose agent is here is told, once; a lost message is repeated on reconnect."""
        for job, force in await self._database.read(_cancelling):
            session = self._sessions.get(job.agent_id) if job.agent_id is not None else None
            if session is not None:
                reason = Reason(job.reason) if job.reason else Reason.CANCELLED
                session.stop_job(
                    job.id,
                    job.attempt,
                    Cancel(job_id=job.id, attempt=job.attempt, reason=reason, grace=CANCEL_GRACE, force=force),
                )

    # --- agents that answer again ---

    async def _hear_again(self) -> None:
        """A static agent that is heard after it was cordoned for its silence gets one more offer: nothing else would
        bring it back before its next registration."""
        moment = self.clock.monotonic()
        cordoned = await self._database.read(agents.unresponsive)
        self._deaf = {agent_id: self._deaf.get(agent_id, moment) for agent_id in cordoned}
        heard = [agent_id for agent_id, since in self._deaf.items() if self._answers(agent_id, since + DEAF_FOR)]
        if heard:
            await self._database.write(lambda c: [agents.try_again(c, agent_id) for agent_id in heard])
            self._bell.ring(bell.QUEUE)

    def _answers(self, agent_id: AgentId, after: float) -> bool:
        session = self._sessions.get(agent_id)
        return session is not None and session.heard_at >= after

    # --- repair ---

    async def _repair(self) -> None:
        """Plan every live run again: normally nothing follows, and nothing is written."""
        if self.clock.monotonic() - self._repaired < REPAIR_EVERY:
            return
        self._repaired = self.clock.monotonic()
        for run_id in await self._database.read(runs.live):
            await self._continue(run_id)
        await self._database.write(lambda c: provisions_rows.purge_gone(c, GONE_RETENTION))
        await self._database.write(lambda c: failure_rows.purge(c, failures.RETENTION, failures.LIMIT))

    async def _continue(self, run_id: RunId) -> None:
        wake = Wake()
        await self._database.write(lambda c: settle.continue_run(c, run_id, wake))
        tell_withdrawn(self._sessions, wake)
        ring(self._bell, wake)


@dataclass(frozen=True, kw_only=True)
class Found:
    late: tuple[Job, ...]
    silent: tuple[JobId, ...]
    runs: tuple[RunId, ...]
    online: tuple[tuple[AgentId, int], ...]
    """Agents said to be connected here, with their session; without those that are."""

    @property
    def anything(self) -> bool:
        return bool(self.late or self.silent or self.runs or self.online)


def _overdue(connection: Connection, job: Job, wake: Wake, queue_timeout: float) -> None:
    match job.state:
        case JobState.CANCELLING:
            settle.give_up_cancelling(connection, job, wake)
        case JobState.QUEUED:
            detail = f"no agent took it within {queue_timeout:g} s (queue_timeout)"
            settle.end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.QUEUE_TIMEOUT, detail=detail)
        case JobState.RUNNING:
            # The agent enforces the job's timeout; one that does not is told, and then left behind.
            limit = now(connection) + int((CANCEL_GRACE + settle.CANCEL_MARGIN) * SECOND)
            jobs.advance(connection, job, JobEvent.CANCEL, reason=Reason.JOB_TIMEOUT, cancel_deadline_at=limit)
            wake.stops = True
        case _:
            pass


def _silent(connection: Connection, job_id: JobId, wake: Wake) -> None:
    """Read again inside the transaction: the agent may have come back."""
    job = jobs.get(connection, job_id)
    agent = agents.get(connection, job.agent_id) if job is not None and job.agent_id is not None else None
    if job is None or agent is None or agent.state is not AgentState.OFFLINE or agent.assignment != job_id:
        return
    row = jobs.attempt(connection, job_id, job.attempt)
    if row is not None and row.state not in ATTEMPT.terminal:
        detail = f"agent {agent.id} was not heard for too long"
        settle.lose(connection, row, Reason.AGENT_LOST, detail, wake, instance_gone=False)


def _cancelling(connection: Connection) -> list[tuple[Job, bool]]:
    found = []
    for job in jobs.in_state(connection, JobState.CANCELLING):
        run = runs.get(connection, job.run_id)
        found.append((job, run is not None and run.cancel_force))
    return found
