# SPDX-License-Identifier: Apache-2.0
"""A ``hello`` in one transaction: who is it, may it come in, and what becomes of each job it holds."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from sqlalchemy import Connection

from corral.control import settle
from corral.control.holding import STATIC, drain_message
from corral.control.settle import Wake
from corral.decide.matching import UNSIZED, Size
from corral.decide.scaling import ReleaseReason
from corral.model.errors import Conflict
from corral.model.ids import AgentId, JobId, RunId, TokenId
from corral.model.labels import Labels, label_fault
from corral.model.records import Agent, Attempt, Hold, Provision
from corral.model.spec import Reason
from corral.model.states import ATTEMPT, AgentState, AttemptState, ProvisionEvent, ProvisionState
from corral.store.repo import agents, jobs, tokens
from corral.store.repo import claims as claims_rows
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.wire.messages import PROTOCOL, Action, Drain, HeldJob, HeldState, Hello, RefusedCode

CLAIM_MARGIN = 60 * 1_000_000
"""Microseconds that redeeming leaves an agent at least to finish registering."""
IN_USE_RETRY = 5.0
CLAIM_MEMORY = 3600 * 1_000_000
"""Microseconds for which the redeemer of an ended claim is told how it ended."""


def digest(credential: str) -> str:
    """What is stored of a credential."""
    return hashlib.sha256(credential.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Refused. ``verified``: the credential was right, so no limiter counts it."""

    code: RefusedCode
    message: str
    retry_after: float = 0.0
    verified: bool = False
    wake: Wake = field(default_factory=Wake)


@dataclass(frozen=True, kw_only=True)
class HeldAnswer:
    job_id: JobId
    run_id: RunId
    attempt: int
    action: Action
    sequence: int


@dataclass(frozen=True, kw_only=True)
class Registered:
    agent_id: AgentId
    session: int
    labels: Labels
    pool: str
    single_use: bool
    bound: JobId | None
    size: Size
    releasing: bool
    cordoned: bool
    held: bool
    drain: Drain | None
    """To be told to an agent that an operator drains."""
    assignment: tuple[JobId, int] | None
    answers: tuple[HeldAnswer, ...]
    wake: Wake = field(default_factory=Wake)


def register(connection: Connection, hello: Hello, coordinator_id: str) -> Registered | Turned:
    """:raises Conflict: the rows changed meanwhile; run it again."""
    agent_id = AgentId(hello.agent_id)
    agent = agents.get(connection, agent_id)
    if agent is None:
        return _unknown()
    provision = provisions_rows.get(connection, agent_id)
    turned = _verify(connection, hello, agent, provision)
    if turned is not None:
        return turned
    agents.knock(connection, agent_id)
    turned = _gone(connection, agent, provision)
    if turned is not None:
        return turned
    if hello.protocol != PROTOCOL:
        # Told only after the credential was verified: a knock is a knock, and no limiter counts it.
        message = f"this coordinator speaks protocol {PROTOCOL}, the agent {hello.protocol}: use matching releases"
        return Turned(code=RefusedCode.PROTOCOL, message=message, verified=True)
    if agent.state is AgentState.ONLINE and agent.boot_id != hello.boot_id:
        message = "another process is connected as this agent; it must end first"
        return Turned(code=RefusedCode.IN_USE, message=message, retry_after=IN_USE_RETRY, verified=True)
    if agent.boot_id == hello.boot_id and 0 < hello.connection <= agent.connection:
        # What it says of its jobs was true before the newer connection: taken for news, it would put a job that
        # runs by now back into the queue.
        message = "a newer connection of this agent has registered"
        return Turned(code=RefusedCode.RETRY, message=message, verified=True)
    return _welcome(connection, hello, agent_id, provision, coordinator_id)


# --- who is it ---------------------------------------------------------------------------------------------


def _unknown() -> Turned:
    return Turned(code=RefusedCode.UNKNOWN, message="no such agent, claim or key")


def _verify(connection: Connection, hello: Hello, agent: Agent, provision: Provision | None) -> Turned | None:
    """By key or by claim; None: it is this agent, and its key is bound (an agent of another protocol binds none)."""
    if agent.kind == STATIC:
        return _static_key(connection, hello, agent)
    if agent.key_digest is not None and hmac.compare_digest(agent.key_digest, digest(hello.key)):
        return None
    if not hello.claim_code:
        return _unknown()
    claim = digest(hello.claim_code)
    owner = claims_rows.owner(connection, claim)
    if owner is None or owner[0] != agent.id or provision is None:
        return _unknown()
    if provision.state is not ProvisionState.REQUESTED:
        return _ended_claim(connection, provision, spent=owner[1] is not None)
    if hello.protocol != PROTOCOL:
        return None
    if not claims_rows.redeem(connection, digest=claim, agent_id=agent.id, key_digest=digest(hello.key)):
        return _used()
    return None


def _static_key(connection: Connection, hello: Hello, agent: Agent) -> Turned | None:
    """Each token of the agent is a key while it lives: two of them during a rotation."""
    found = tokens.of_key(connection, agent.id, digest(hello.key))
    if found is None:
        return _unknown()
    token, live = found
    if live:
        return None
    replaced = token.replaced_by is not None and token.revoked_at is None
    message = "this token was replaced and its grace is over; give the agent the new one"
    if not replaced:
        message = "this agent's token was revoked"
    wake = Wake()
    if agent.boot_id == hello.boot_id:
        # It ends now and takes its job with it: nobody has to wait until it is missed.
        lose_job(connection, agent, message, wake)
    return Turned(code=RefusedCode.REVOKED, message=message, verified=True, wake=wake)


def lose_job(connection: Connection, agent: Agent, detail: str, wake: Wake) -> None:
    """Settle the job of an agent that will not come back."""
    if agent.assignment is None or agent.assigned_attempt is None:
        return
    row = jobs.attempt(connection, agent.assignment, agent.assigned_attempt)
    if row is not None and row.state not in ATTEMPT.terminal:
        settle.lose(connection, row, Reason.AGENT_LOST, detail, wake, instance_gone=True)


def _ended_claim(connection: Connection, provision: Provision, *, spent: bool) -> Turned:
    """The code is right and its time is over: its redeemer is told how, for an hour after the provision left
    ``requested``. Who has the code of an instance that was accounted as gone shows that it exists."""
    ended = provision.adopted_at or provision.released_at or provision.gone_at or provision.requested_at
    if provision.state in (ProvisionState.GONE, ProvisionState.ABANDONED):
        agents.knock(connection, provision.agent_id)
        _reappeared(connection, provision)
    if now(connection) - ended > CLAIM_MEMORY:
        return _unknown()
    if spent:
        return _used()
    message = "this claim has expired: its instance is not wanted any more"
    return Turned(code=RefusedCode.EXPIRED, message=message, verified=True)


def _used() -> Turned:
    message = "this claim was already used by another agent process"
    return Turned(code=RefusedCode.USED, message=message, verified=True)


def _reappeared(connection: Connection, provision: Provision) -> None:
    provisions_rows.advance(connection, provision, ProvisionEvent.REAPPEARED, gone_at=None, release_attempts=0)


def _gone(connection: Connection, agent: Agent, provision: Provision | None) -> Turned | None:
    """An instance accounted as gone that knocks exists after all: it goes back to being destroyed."""
    unwanted = Turned(
        code=RefusedCode.GONE, message="this instance is not wanted any more and is being destroyed", verified=True
    )
    if provision is not None and provision.state in (ProvisionState.GONE, ProvisionState.ABANDONED):
        _reappeared(connection, provision)
        return unwanted
    if agent.state is AgentState.ENDED:
        revoked = Turned(code=RefusedCode.REVOKED, message="this agent's credential was revoked", verified=True)
        return unwanted if provision is not None else revoked
    return None


# --- what becomes of it ------------------------------------------------------------------------------------


def _welcome(
    connection: Connection, hello: Hello, agent_id: AgentId, provision: Provision | None, coordinator_id: str
) -> Registered:
    agent = agents.get(connection, agent_id)
    assert agent is not None
    if agent.kind == STATIC:
        _settle_in(connection, agent, hello)
        agent = agents.get(connection, agent_id)
        assert agent is not None
    labels = (provision.labels if provision else _own(agent.labels)) | _fact_labels(hello)
    session = agents.register(
        connection,
        agent,
        coordinator_id=coordinator_id,
        boot_id=hello.boot_id,
        number=hello.connection,
        facts=hello.facts,
        labels=labels,
    )
    if session is None:
        raise Conflict("the agent's row changed while it registered")
    releasing = provision is not None and provision.state is ProvisionState.RELEASING
    if provision is not None and provision.state is ProvisionState.REQUESTED:
        _activate(connection, provision, coordinator_id)
    wake = Wake(queue=True)
    answers = tuple(_answer(connection, agent, held, wake) for held in hello.jobs)
    _settle_missing(connection, agent, hello, wake)
    _cordon_at_registration(connection, agent, hello)
    if not _flushes(hello, answers):
        agents.recordon(connection, agent_id, ReleaseReason.LOST, ReleaseReason.RETURNED)
    after = agents.get(connection, agent_id)
    assert after is not None
    assignment = None
    if after.assignment is not None and after.assigned_attempt is not None:
        assignment = (after.assignment, after.assigned_attempt)
    return Registered(
        agent_id=agent_id,
        session=session,
        labels=labels,
        pool=agent.pool,
        single_use=agent.kind == "provisioned",
        bound=provision.job_id if provision else None,
        size=Size(cpu=provision.cpu, memory=provision.memory) if provision else UNSIZED,
        releasing=releasing,
        cordoned=after.cordon_reason is not None,
        held=after.hold is not None,
        drain=drain_message(after, now(connection)) if after.hold is Hold.DRAIN else None,
        assignment=assignment,
        answers=answers,
        wake=wake,
    )


def _settle_in(connection: Connection, agent: Agent, hello: Hello) -> None:
    """A static agent's key is the one it uses; the first use of a new one ends the one that it replaces."""
    key = digest(hello.key)
    if agent.key_digest == key:
        return
    agents.set_key(connection, agent.id, key)
    found = tokens.of_key(connection, agent.id, key)
    if found is not None:
        tokens.expire(connection, TokenId(found[0].id))


def _cordon_at_registration(connection: Connection, agent: Agent, hello: Hello) -> None:
    """Corral's own cordon of a static agent is over, whatever it was for: it is here and answers. An operator's hold
    stays. One whose host told it to stop takes nothing more."""
    if agent.kind == STATIC:
        agents.uncordon(connection, agent.id)
    if hello.draining:
        agents.cordon(connection, agent.id, ReleaseReason.DRAIN)


def _flushes(hello: Hello, answers: tuple[HeldAnswer, ...]) -> bool:
    """It was told to stop something that it began: what that printed comes yet, and then its end."""
    pairs = zip(hello.jobs, answers, strict=True)
    return any(answer.action is Action.STOP and held.state is not HeldState.ACCEPTED for held, answer in pairs)


def _activate(connection: Connection, provision: Provision, coordinator_id: str) -> None:
    moment = now(connection)
    deadline = max(provision.deadline_at or 0, moment + CLAIM_MARGIN)
    moved = provisions_rows.advance(
        connection,
        provision,
        ProvisionEvent.REGISTERED,
        adopted_by=coordinator_id,
        adopted_at=moment,
        deadline_at=deadline,
    )
    if not moved:
        raise Conflict("the provision's row changed while its agent registered")
    pool_health_rows.succeeded(connection, provision.pool)


def _own(stored: Labels) -> Labels:
    """A static agent's own labels, without those of its facts at an earlier registration."""
    return frozenset(label for label in stored if not label.startswith(("corral:os:", "corral:arch:", "corral:host:")))


def _fact_labels(hello: Hello) -> Labels:
    """Only facts that make a label of the right form: one with a blank would be two when it is read from the database
    again, and the second would be of the agent's own choice."""
    facts = hello.facts
    named = {"corral:os:": facts.os, "corral:arch:": facts.arch, "corral:host:": facts.host}
    made = ((prefix + value).lower() for prefix, value in named.items() if value)
    return frozenset(label for label in made if label_fault(label) is None and label == label.strip())


def _answer(connection: Connection, agent: Agent, held: HeldJob, wake: Wake) -> HeldAnswer:
    job_id = JobId(held.job_id)
    row = jobs.attempt(connection, job_id, held.attempt)
    run_id = jobs.run_of(connection, job_id)
    if row is None or row.agent_id != agent.id or run_id is None:
        return HeldAnswer(job_id=job_id, run_id=RunId(""), attempt=held.attempt, action=Action.STOP, sequence=0)
    return HeldAnswer(
        job_id=job_id,
        run_id=run_id,
        attempt=held.attempt,
        action=_action(connection, row, held, wake),
        # The end is known and its acknowledgement was lost: let it be said again, so that it is acknowledged.
        sequence=min(row.sequence, held.sequence - 1) if held.state is HeldState.FINISHED else row.sequence,
    )


def _action(connection: Connection, row: Attempt, held: HeldJob, wake: Wake) -> Action:
    if row.state is AttemptState.OFFERED:
        # The accept was never committed, so no start was: another agent may be asked, this one drops it.
        settle.withdraw(connection, row, "the accept did not arrive", wake, counts=False)
        return Action.STOP
    if row.state in ATTEMPT.terminal:
        return Action.STOP
    return Action.START if held.state is HeldState.ACCEPTED else Action.CONTINUE


def _settle_missing(connection: Connection, agent: Agent, hello: Hello, wake: Wake) -> None:
    """A job assigned to this agent that it does not hold."""
    if agent.assignment is None or agent.assigned_attempt is None:
        return
    if any(h.job_id == agent.assignment and h.attempt == agent.assigned_attempt for h in hello.jobs):
        return
    row = jobs.attempt(connection, agent.assignment, agent.assigned_attempt)
    if row is None or row.state in ATTEMPT.terminal:
        agents.unassign(connection, agent.id, job_id=agent.assignment, attempt=agent.assigned_attempt)
    elif row.began_at is None and row.boot_id == hello.boot_id:
        settle.withdraw(connection, row, "the start did not arrive", wake, counts=False)
    else:
        detail = "the agent came back as another process" if row.boot_id != hello.boot_id else "the agent dropped it"
        settle.lose(connection, row, Reason.AGENT_LOST, detail, wake, instance_gone=True)
