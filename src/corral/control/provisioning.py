# SPDX-License-Identifier: Apache-2.0
"""Delivers an event to a registered workflow: one run of it for one event, however often the event comes.

The run's ``dedupe`` is the event's id, unique in the database, so that two deliveries of one event, also by two
processes or on both sides of a restart, are one run. A run that ended and did not do what was asked gives the key up
to the next one. Only the leader begins one, and none beside another run for the same instance, so that a slow create
never lands behind a finished destroy. The claim code travels as a secret of the run: sealed, masked in logs, wiped
when the run ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from sqlalchemy import Connection

from corral.control import runs, settle
from corral.control.bell import Bell, run_topic
from corral.control.sessions import Sessions, tell_withdrawn
from corral.control.settle import Wake, ring
from corral.decide import provisioning
from corral.decide.provisioning import JobEnd, RunEnd
from corral.model.errors import Conflict, CorralError, Invalid, TemporaryError
from corral.model.events import Answer, EventKind, Listing, Target, Verdict, WorkflowTarget
from corral.model.ids import RunId
from corral.model.records import RegisteredWorkflow, Run
from corral.model.spec import Lock, Reason, SourceRef
from corral.model.states import RUN
from corral.model.triggers import CLAIM_SECRET, Trigger, read_event
from corral.model.views import NewRun
from corral.runtime.chance import Chance
from corral.runtime.clock import Clock
from corral.store.interface import Database
from corral.store.repo import jobs
from corral.store.repo import runs as run_rows
from corral.store.repo import workflows as workflows_rows
from corral.workflow.lock import LOCK_VERSION

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at a run of which no news came."""

Seal = Callable[[str, str, RunId], bytes]
Fence = Callable[[Connection], None]
"""Raises Conflict where this coordinator does not lead."""


class WorkflowDeliverer:
    """Implements :class:`corral.backends.event.interface.Deliverer` for :class:`WorkflowTarget`.

    Unlike an HTTP request or a program, a run outlives a call that is given up: the next delivery of the same event
    finds it again.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Chance,
        database: Database,
        bell: Bell,
        sessions: Sessions,
        seal: Seal,
        fence: Fence,
    ) -> None:
        self._clock = clock
        self._chance = chance
        self._database = database
        self._bell = bell
        self._sessions = sessions
        self._seal = seal
        self._fence = fence

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        if not isinstance(target, WorkflowTarget):
            raise TypeError(f"a {type(target).__name__} target is not delivered here")
        try:
            return await self._deliver(target, read_event(event), event_id, timeout)
        except Invalid as error:
            detail = f"workflow {target.workflow} cannot run: {error.faults[0]}"
            return Answer(verdict=Verdict.REFUSED, detail=detail[: provisioning.DETAIL_LIMIT])
        except TemporaryError as error:
            return Answer(verdict=Verdict.LATER, detail=error.message)
        except CorralError as error:
            return Answer(verdict=Verdict.REFUSED, detail=error.message)

    async def _deliver(self, target: WorkflowTarget, trigger: Trigger, event_id: str, timeout: float) -> Answer:
        found = await self._database.read(lambda c: run_rows.by_dedupe(c, event_id))
        if found is None or provisioning.begins_anew(found.state):
            begun = await self._begin(target, trigger, event_id)
            if isinstance(begun, Answer):
                return begun
            run_id = begun
        else:
            run_id = found.id
        secret = trigger.secrets.get(CLAIM_SECRET, "")
        end = await self._until_ended(run_id, timeout)
        if end.state in RUN.terminal:
            return provisioning.answer(end, trigger.type, secret)
        await self._give_up(run_id)
        end = await self._database.read(lambda c: _end(c, run_id))
        if end.state in RUN.terminal:
            return provisioning.answer(end, trigger.type, secret)
        return provisioning.not_in_time(end, timeout, secret)

    # --- beginning -----------------------------------------------------------------------------------------

    async def _begin(self, target: WorkflowTarget, trigger: Trigger, event_id: str) -> RunId | Answer:
        registered = await self._database.read(lambda c: workflows_rows.get(c, target.workflow))
        if registered is None:
            return _not_registered(target.workflow)
        if trigger.type not in registered.spec.events:
            return _not_declared(registered, trigger)
        prepared = self._prepared(registered, target, trigger, event_id)
        wake = Wake()
        run_id, made = await self._database.write(lambda c: _insert(c, self._fence, prepared, wake))
        if made:
            ring(self._bell, wake)
            log.info("run %s of workflow %s: %s for %s", run_id, target.workflow, trigger.type, trigger.subject)
        return run_id

    def _prepared(
        self, registered: RegisteredWorkflow, target: WorkflowTarget, trigger: Trigger, event_id: str
    ) -> runs.Prepared:
        """The run ends by itself in the target's time, also where nobody waits for it any more."""
        spec = registered.spec
        spec = msgspec.structs.replace(spec, timeout=min(spec.timeout or target.timeout, target.timeout))
        lock = Lock(version=LOCK_VERSION, hash=registered.lock_hash, files={}, workflows=(spec,))
        new = NewRun(
            lock=lock,
            workflow=spec.name,
            source=source_of(registered),
            title=f"{_short(trigger.type)} {trigger.subject}".strip(),
            secrets=dict(trigger.secrets),
            event=dict(trigger.values),
            project=registered.project,
        )
        return runs.prepare(new, self._chance, self._seal, self._clock.now(), dedupe=event_id, provisioning=True)

    # --- waiting -------------------------------------------------------------------------------------------

    async def _until_ended(self, run_id: RunId, timeout: float) -> RunEnd:
        """The run when it has ended, or as it is after ``timeout`` seconds."""
        topic = run_topic(run_id)
        until = self._clock.monotonic() + timeout
        while True:
            ticket = self._bell.ticket(topic)
            try:
                end = await self._database.read(lambda c: _end(c, run_id))
                left = until - self._clock.monotonic()
                if end.state in RUN.terminal or left <= 0:
                    return end
                await self._bell.wait(topic, ticket, min(left, LOOK))
            finally:
                self._bell.drop(topic, ticket)

    async def _give_up(self, run_id: RunId) -> None:
        wake = Wake()

        def write(connection: Connection) -> None:
            run = run_rows.get(connection, run_id)
            if run is not None and run.state not in RUN.terminal:
                settle.cancel_run(connection, run, force=False, reason=Reason.RUN_TIMEOUT, wake=wake)

        await self._database.write(write)
        tell_withdrawn(self._sessions, wake)
        ring(self._bell, wake)


def source_of(registered: RegisteredWorkflow) -> SourceRef | None:
    if registered.source_hash is None:
        return None
    return SourceRef(hash=registered.source_hash, size=registered.source_size or 0)


def _insert(connection: Connection, fence: Fence, prepared: runs.Prepared, wake: Wake) -> tuple[RunId, bool]:
    """The run of the event, and whether it was made here: somebody else may have been first.

    :raises Conflict: this coordinator does not lead, or another event's run for the same instance goes on.
    """
    assert prepared.dedupe is not None
    fence(connection)
    found = run_rows.by_dedupe(connection, prepared.dedupe)
    if found is not None and not provisioning.begins_anew(found.state):
        return found.id, False
    agent_id = prepared.event.get("agent_id")
    for other in run_rows.live_provisioning(connection) if agent_id else ():
        if other.event.get("agent_id") == agent_id:
            raise Conflict(f"run {other.id} for the same instance goes on")
    if found is not None:
        run_rows.give_up_dedupe(connection, found.id)
    runs.add(connection, prepared, wake)
    return prepared.id, True


def _end(connection: Connection, run_id: RunId) -> RunEnd:
    """:raises NotFound: it was removed meanwhile."""
    run: Run = runs.existing(connection, run_id)
    rows = jobs.listed(connection, run_id)
    return RunEnd(
        id=run.id,
        state=run.state,
        reason=run.reason,
        detail=run.detail,
        jobs=tuple(
            JobEnd(name=job.name, state=job.state, reason=job.reason, detail=job.detail, outputs=job.outputs)
            for job in rows
        ),
    )


def _not_registered(name: str) -> Answer:
    detail = f"no workflow {name!r} is registered with this server: corral workflows register --workflow {name}"
    return Answer(verdict=Verdict.REFUSED, detail=detail)


def _not_declared(registered: RegisteredWorkflow, trigger: Trigger) -> Answer:
    """A provisioner need not be able to list; everything else it was asked in vain."""
    if trigger.type == EventKind.INVENTORY:
        body = msgspec.json.encode(Listing(unsupported=True))
        detail = f"workflow {registered.name} does not declare {EventKind.INVENTORY}"
        return Answer(verdict=Verdict.DONE, detail=detail, body=body)
    declared = ", ".join(registered.spec.events) or "none"
    detail = f"workflow {registered.name} does not declare the event {trigger.type}; it declares {declared}"
    return Answer(verdict=Verdict.REFUSED, detail=detail[: provisioning.DETAIL_LIMIT])


def _short(kind: str) -> str:
    """``scale-up`` of ``corral.scaler.scale-up.v1``."""
    parts = kind.split(".")
    return parts[-2] if len(parts) > 2 else kind
