# SPDX-License-Identifier: Apache-2.0
"""Frames and changed rows as words for the timeline."""

from __future__ import annotations

from corral.sim.journal import Journal
from corral.sim.stores import Change
from corral.wire.codec import decode_from_agent, decode_to_agent
from corral.wire.messages import (
    Decline,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobFinished,
    Log,
    LogAck,
    Refused,
    StepFinished,
    StepStarted,
    ToAgent,
    Welcome,
)

_NOUN = {
    "runs": "run",
    "jobs": "job",
    "attempts": "attempt",
    "steps": "step",
    "agents": "agent",
    "provisions": "provision",
    "claims": "claim",
}


def describe_change(change: Change, journal: Journal) -> str:
    key = _key(change.key[:12] if change.table == "claims" else change.key, journal)
    old, new = _value(change.old, change, journal), _value(change.new, change, journal)
    what = "" if change.column == "state" else f"{change.column} "
    return f"{_NOUN[change.table]} {key}: {what}{old} → {new}"


def _key(key: str, journal: Journal) -> str:
    """``job_…#2/1`` keeps its tail."""
    for mark in "#":
        head, found, tail = key.partition(mark)
        if found:
            return journal.short(head) + found + tail
    return journal.short(key)


def _value(value: str | None, change: Change, journal: Journal) -> str:
    if value is None:
        return "–"
    return value[:12] if change.table == "claims" else journal.short(value)


def describe_frame(frame: bytes, journal: Journal, direction: str) -> str:
    message = decode_from_agent(frame) if direction == "up" else decode_to_agent(frame)
    return f"{type(message).__name__} {_detail(message, journal)}".rstrip()


def _detail(message: FromAgent | ToAgent, journal: Journal) -> str:
    match message:
        case Heartbeat(number=number) | HeartbeatAck(number=number):
            return str(number)
        case Hello(jobs=jobs):
            return ", ".join(f"{journal.short(held.job_id)}#{held.attempt} {held.state}" for held in jobs)
        case Welcome(session=session, jobs=answers):
            told = ", ".join(f"{journal.short(one.job_id)}#{one.attempt} {one.action}" for one in answers)
            return f"session {session} {told}"
        case Refused(code=code):
            return str(code)
    job_id = getattr(message, "job_id", None)
    if job_id is None:
        return ""
    return f"{journal.short(job_id)}#{getattr(message, 'attempt', '')} {_of_job(message)}"


def _of_job(message: FromAgent | ToAgent) -> str:
    match message:
        case Log(step=step, offset=offset, data=data):
            return f"step {step} {offset}+{len(data)}"
        case LogAck(step=step, offset=offset):
            return f"step {step} {offset}"
        case StepStarted(step=step):
            return f"step {step}"
        case StepFinished(step=step, result=result, log_size=size):
            return f"step {step} {result}, {size} bytes"
        case JobFinished(result=result, reason=reason):
            return f"{result} {reason}"
        case Decline(reason=reason):
            return str(reason)
    return ""
