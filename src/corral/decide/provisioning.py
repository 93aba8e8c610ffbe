# SPDX-License-Identifier: Apache-2.0
"""A workflow as the provisioner of a pool: what keeps it from being one, and what the end of its run answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from corral.decide.listings import read_listing
from corral.decide.matching import Offered, Wanted, fits, nearest, pool_offer
from corral.model.errors import Fault
from corral.model.events import Answer, EventKind, ListedInstance, Listing, Verdict, WorkflowTarget
from corral.model.labels import labels
from corral.model.pools import EVENT, Pool
from corral.model.spec import JobSpec, Reason, WorkflowSpec
from corral.model.states import JobState, RunState
from corral.model.triggers import CLAIM_SECRET

PROVIDER_ID_OUTPUT = "provider_id"
"""Output of any of its jobs: what the provider calls the instance."""
INSTANCES_OUTPUT = "instances"
"""Output of any of its jobs, in a run for an inventory: a ``Listing`` as JSON. Several are put together."""
PROVIDER_ID_LIMIT = 512
DETAIL_LIMIT = 1000
"""Bytes of an answer's sentence."""
MASK = "***"
_NEEDED = (EventKind.SCALE_UP, EventKind.SCALE_DOWN)


# --- may it be one? ----------------------------------------------------------------------------------------


def workflow_faults(spec: WorkflowSpec, pools: Iterable[Pool], static: Iterable[Offered]) -> tuple[Fault, ...]:
    """What keeps the workflow from being a pool's provisioner; empty where nothing does.

    Its jobs must fit an agent that no event brings up: one of ``static``, or one of a pool with another backend.
    """
    offers, known = tuple(static), tuple(pools)
    faults = [*_missing_events(spec)]
    for job in spec.jobs:
        faults += _secret_faults(spec, job)
        faults += _placing_faults(spec, job, known, offers)
    return tuple(faults)


def pool_faults(
    pools: Sequence[Pool], registered: Mapping[str, WorkflowSpec], static: Iterable[Offered]
) -> tuple[Fault, ...]:
    """What is wrong with the workflows that pools name as their provisioners, for the loading of a configuration.

    One that is not registered is no fault here: a server has to run before a workflow can be registered with it.
    """
    offers = tuple(static)
    names = dict.fromkeys(pool.target.workflow for pool in pools if isinstance(pool.target, WorkflowTarget))
    specs = [registered[name] for name in names if name in registered]
    return tuple(fault for spec in specs for fault in workflow_faults(spec, pools, offers))


def users_of(name: str, pools: Iterable[Pool]) -> tuple[str, ...]:
    """Names of the pools whose provisioner is the workflow ``name``."""
    return tuple(
        pool.name for pool in pools if isinstance(pool.target, WorkflowTarget) and pool.target.workflow == name
    )


def _missing_events(spec: WorkflowSpec) -> list[Fault]:
    missing = [kind.value for kind in _NEEDED if kind.value not in spec.events]
    if not missing:
        return []
    message = f"a provisioner needs {' and '.join(missing)} too: what makes instances has to destroy them"
    return [_fault(spec, None, "on", message, f"add {', '.join(map(repr, missing))} to on=event(…)")]


def _secret_faults(spec: WorkflowSpec, job: JobSpec) -> list[Fault]:
    others = [name for name in job.needed_secrets() if name != CLAIM_SECRET]
    if not others:
        return []
    message = f"job {job.name!r} asks for {', '.join(others)}: an event brings no secret but {CLAIM_SECRET}"
    return [_fault(spec, job, "secrets", message, "give the agents that run it what they need, such as a file")]


def _placing_faults(spec: WorkflowSpec, job: JobSpec, pools: Sequence[Pool], static: Sequence[Offered]) -> list[Fault]:
    wanted = Wanted(labels=labels(job.runs_on), excludes=labels(job.excludes))
    usable = [pool for pool in pools if pool.backend != EVENT and not pool.draining]
    if any(fits(wanted, offer) for offer in (*map(pool_offer, usable), *static)):
        return []
    events = [pool.name for pool in pools if pool.backend == EVENT and fits(wanted, pool_offer(pool))]
    if events:
        message = f"job {job.name!r} fits only pool {events[0]}, whose instances an event brings up: it would wait for "
        message += "itself"
    else:
        message = f"job {job.name!r} fits neither a static agent nor a pool that makes its instances itself"
        near = nearest(wanted, usable)
        message += f": {near[1].sentence('pool ' + near[0].name)}" if near else ""
    return [_fault(spec, job, "runs_on", message, "runs_on: the labels of such a pool or agent")]


def _fault(spec: WorkflowSpec, job: JobSpec | None, field: str, message: str, remedy: str) -> Fault:
    where = job if job is not None and job.line else spec
    path = ".".join((spec.name, *([job.name] if job is not None else []), field))
    return Fault(file=where.file or spec.file, line=where.line, path=path, message=message, remedy=remedy)


# --- what did it come to? ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """A job of the run as it is now."""

    name: str
    state: JobState
    reason: str
    detail: str
    outputs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The run; ``jobs`` in the author's order."""

    id: str
    state: RunState
    reason: str
    detail: str
    jobs: tuple[JobEnd, ...]


def begins_anew(state: RunState) -> bool:
    """Whether an event that comes again starts another run, though one was made for it: only where that one ended
    and did not do it."""
    return state in (RunState.FAILED, RunState.CANCELLED)


def not_in_time(run: RunEnd, timeout: float, secret: str = "") -> Answer:
    """It went on past the delivery's time, and is cancelled."""
    sentence = f"run {run.id} had not ended after {timeout:g} s and was cancelled"
    return Answer(verdict=Verdict.UNANSWERED, detail=_masked(sentence, secret), provider_id=_provider_id(run))


def answer(run: RunEnd, kind: str, secret: str = "") -> Answer:
    """What an ended run says to an event of ``kind``. ``secret`` is kept out of the sentence."""
    verdict, sentence = _verdict(run)
    body = b""
    if verdict is Verdict.DONE and kind == EventKind.INVENTORY:
        listing = _listing(run)
        if isinstance(listing, str):
            verdict, sentence = Verdict.REFUSED, f"run {run.id} succeeded, but {listing}"
        else:
            body = msgspec.json.encode(listing)
    return Answer(verdict=verdict, detail=_masked(sentence, secret), provider_id=_provider_id(run), body=body)


def _verdict(run: RunEnd) -> tuple[Verdict, str]:
    if run.state is RunState.SUCCEEDED:
        if all(job.state is not JobState.SUCCEEDED for job in run.jobs):
            return Verdict.REFUSED, f"run {run.id} did nothing: no job of it is for this event, or none succeeded"
        return Verdict.DONE, f"run {run.id} succeeded"
    if run.reason == Reason.RUN_TIMEOUT:
        return Verdict.UNANSWERED, f"run {run.id} had not ended in its time: {run.detail or run.reason}"
    if run.state is RunState.CANCELLED:
        return Verdict.LATER, f"run {run.id} was cancelled"
    return Verdict.REFUSED, f"run {run.id} failed: {_cause(run)}"


def _cause(run: RunEnd) -> str:
    """The first failing job's reason; it is what a person has to look at."""
    failed = next((job for job in run.jobs if job.state is JobState.FAILED), None)
    if failed is None:
        return run.detail or run.reason or "no job says why"
    why = ": ".join(part for part in (failed.reason, failed.detail) if part)
    return f"job {failed.name}: {why}" if why else f"job {failed.name}"


def _provider_id(run: RunEnd) -> str:
    found = (job.outputs.get(PROVIDER_ID_OUTPUT, "").strip() for job in run.jobs)
    return next((value[:PROVIDER_ID_LIMIT] for value in found if value), "")


def _listing(run: RunEnd) -> Listing | str:
    """All that the jobs listed, or why it is no listing."""
    given = [(job.name, job.outputs[INSTANCES_OUTPUT]) for job in run.jobs if INSTANCES_OUTPUT in job.outputs]
    if not given:
        return f"no job has the output {INSTANCES_OUTPUT!r}"
    instances: list[ListedInstance] = []
    complete, unsupported, request = True, False, ""
    for name, text in given:
        part = read_listing(text.encode())
        if part is None:
            return f"the output {INSTANCES_OUTPUT!r} of job {name} is no listing"
        instances += part.instances or ()
        complete &= part.complete
        unsupported |= part.unsupported
        request = request or part.request
    return Listing(instances=tuple(instances), request=request, complete=complete, unsupported=unsupported)


def _masked(sentence: str, secret: str) -> str:
    clean = sentence.replace(secret, MASK) if secret else sentence
    return " ".join(clean.split()).encode()[:DETAIL_LIMIT].decode(errors="ignore")
