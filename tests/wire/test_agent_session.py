# SPDX-License-Identifier: Apache-2.0
"""The agent's session without IO: the tables walked, replay, and random conversations."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.spec import JobOrder, JobSpec, Reason, Result
from corral.wire import agent as wire
from corral.wire import close
from corral.wire.agent import (
    JOB_TABLE,
    LINK_TABLE,
    LOG_WINDOW,
    AgentSession,
    Answered,
    Begin,
    Forget,
    Handling,
    JobKey,
    JobOutcome,
    JobPhase,
    LinkState,
    LogSlice,
    Move,
    Registered,
    Send,
    StepOutcome,
    StopJob,
    Stored,
)
from corral.wire.codec import ProtocolError, decode_from_agent, encode
from corral.wire.messages import (
    Accept,
    Action,
    Cancel,
    Decline,
    DeclineReason,
    Drain,
    Draining,
    Facts,
    FinishedAck,
    Heartbeat,
    HeartbeatAck,
    HeldState,
    Hello,
    JobAnswer,
    JobFinished,
    JobStarted,
    Limits,
    Log,
    LogAck,
    LogPosition,
    Offer,
    Refused,
    RefusedCode,
    Start,
    StepFinished,
    StepStarted,
    ToAgent,
    Welcome,
    Withdraw,
)

KEY = JobKey("job_1", 1)
DONE = JobOutcome(result=Result.SUCCEEDED)


def order(key: JobKey = KEY) -> JobOrder:
    spec = JobSpec(name="j", steps=())
    return JobOrder(run_id="run_1", job_id=key.job_id, attempt=key.attempt, name="j", workflow="w", spec=spec)


def welcome(*jobs: JobAnswer, single_use: bool = False) -> Welcome:
    return Welcome(
        session=1,
        coordinator_urls=("http://c:1",),
        heartbeat_interval=20.0,
        limits=Limits(),
        single_use=single_use,
        jobs=jobs,
    )


def messages(key: JobKey = KEY) -> dict[type, Any]:
    job: dict[str, Any] = {"job_id": key.job_id, "attempt": key.attempt}
    return {
        Welcome: welcome(),
        Refused: Refused(code=RefusedCode.RETRY, message="no"),
        Offer: Offer(order=order(key), **job),
        Withdraw: Withdraw(**job),
        Start: Start(secrets={"A": "b"}, **job),
        Cancel: Cancel(**job),
        LogAck: LogAck(step=0, offset=10, **job),
        FinishedAck: FinishedAck(**job),
        Drain: Drain(reason="r", deadline=1.0),
        Heartbeat: Heartbeat(number=3),
        HeartbeatAck: HeartbeatAck(number=4),
    }


def fresh(*, single_use: bool = False) -> AgentSession:
    return AgentSession(
        agent_id="agent_1",
        key="k" * 64,
        claim_code="c" * 64,
        boot_id="b",
        facts=Facts(os="linux", arch="x", host="h", version="1"),
        single_use=single_use,
    )


def ready(*, single_use: bool = False) -> AgentSession:
    session = fresh(single_use=single_use)
    session.connected()
    session.received(welcome())
    return session


def sent(outputs: tuple[wire.Output, ...]) -> list[Any]:
    return [output.message for output in outputs if isinstance(output, Send)]


def in_phase(phase: JobPhase) -> AgentSession:
    session = ready()
    if phase is JobPhase.UNKNOWN:
        return session
    session.received(messages()[Offer])
    if phase is JobPhase.ACCEPTED:
        return session
    session.received(messages()[Start])
    session.job_started(KEY, 1)
    session.log_grew(KEY, 0, 10)
    (piece,) = session.pending_logs()
    session.log(piece, b"x" * 10, 1)
    if phase is JobPhase.DROPPED:
        session.received(messages()[FinishedAck])
        return session
    if phase in (JobPhase.FINISHED, JobPhase.FORGOTTEN):
        session.job_finished(KEY, DONE, 2)
    if phase is JobPhase.FORGOTTEN:
        session.received(messages()[FinishedAck])
    return session


def in_link(state: LinkState) -> AgentSession:
    if state is LinkState.READY:
        return ready()
    session = fresh()
    if state is LinkState.GREETING:
        session.connected()
    if state is LinkState.ENDED:
        session.refused_for_good()
    return session


# --- tables ------------------------------------------------------------------------------------------------


def test_the_tables_are_total() -> None:
    kinds = set(get_args(ToAgent))
    assert set(LINK_TABLE) == {(state, kind) for state in LinkState for kind in kinds}
    about_jobs = {Offer, Withdraw, Start, Cancel, LogAck, FinishedAck}
    assert set(JOB_TABLE) == {(phase, kind) for phase in JobPhase for kind in about_jobs}


@pytest.mark.parametrize(("state", "kind"), sorted(LINK_TABLE, key=str))
def test_every_state_of_the_link_with_every_message(state: LinkState, kind: type) -> None:
    session = in_link(state)
    if LINK_TABLE[state, kind] is Handling.REFUSE:
        with pytest.raises(ProtocolError) as refused:
            session.received(messages()[kind])
        assert refused.value.close == close.UNEXPECTED
        assert session.link is state
    elif kind is Start:
        with pytest.raises(ProtocolError):
            session.received(messages()[kind])
    else:
        session.received(messages()[kind])


EXPECTED = {
    Move.ACCEPT_AGAIN: [Send(Accept(job_id="job_1", attempt=1))],
    Move.BEGIN: [Begin(KEY, order(), {"A": "b"})],
    Move.CANCEL: [StopJob(key=KEY, reason=Reason.CANCELLED, grace=10.0, force=False)],
    Move.ACKNOWLEDGE: [Stored(KEY, 0, 10)],
    Move.FORGET: [Forget(KEY)],
    Move.DROP: [StopJob(key=KEY, reason=Reason.AGENT_LOST, grace=0.0, force=True)],
    Move.IGNORE: [],
}
AFTER = {
    Move.BEGIN: JobPhase.RUNNING,
    Move.FORGET: JobPhase.FORGOTTEN,
    Move.DROP: JobPhase.DROPPED,
}


@pytest.mark.parametrize(("phase", "kind"), sorted(JOB_TABLE, key=str))
def test_every_phase_of_a_job_with_every_message(phase: JobPhase, kind: type) -> None:
    session = in_phase(phase)
    assert session.phase(KEY) is phase
    move = JOB_TABLE[phase, kind]
    if move is Move.REFUSE:
        with pytest.raises(ProtocolError) as refused:
            session.received(messages()[kind])
        assert refused.value.close == close.UNEXPECTED
        assert session.phase(KEY) is phase
        return
    out = session.received(messages()[kind])
    if move is Move.ANSWER:
        assert sent(out) == [Accept(job_id="job_1", attempt=1)]
        assert session.phase(KEY) is JobPhase.ACCEPTED
        return
    assert list(out) == EXPECTED[move]
    assert session.phase(KEY) is AFTER.get(move, phase)


# --- registering -------------------------------------------------------------------------------------------


def test_hello_carries_the_claim_until_it_was_answered() -> None:
    session = fresh()
    (first,) = sent(session.connected())
    session.disconnected()
    (second,) = sent(session.connected())
    assert first.claim_code == second.claim_code == "c" * 64
    assert (first.connection, second.connection) == (1, 2)
    session.received(welcome())
    session.disconnected()
    (third,) = sent(session.connected())
    assert (third.claim_code, third.key, third.boot_id) == ("", first.key, first.boot_id)


def test_welcome_is_acknowledged_and_answers_the_hello() -> None:
    session = fresh()
    session.connected()
    out = session.received(welcome())
    assert isinstance(out[0], Registered) and out[1] == Answered(0)
    assert encode(sent(out)[0])
    assert session.session == 1


def test_hello_says_what_is_held() -> None:
    session = in_phase(JobPhase.FINISHED)
    session.disconnected()
    (hello,) = sent(session.connected())
    (job,) = hello.jobs
    assert (job.job_id, job.attempt, job.state, job.sequence) == ("job_1", 1, HeldState.FINISHED, 2)
    assert job.logs == (LogPosition(step=0, offset=10),)


# --- offers ------------------------------------------------------------------------------------------------


def test_ref50_one_job_at_a_time_but_a_finished_one_is_no_hindrance() -> None:
    other = JobKey("job_2", 1)
    for phase, wanted in (
        (JobPhase.ACCEPTED, Decline),
        (JobPhase.RUNNING, Decline),
        (JobPhase.DROPPED, Decline),
        (JobPhase.FINISHED, Accept),
        (JobPhase.FORGOTTEN, Accept),
    ):
        (answer,) = sent(in_phase(phase).received(messages(other)[Offer]))
        assert isinstance(answer, wanted), phase
        assert wanted is Accept or answer.reason is DeclineReason.BUSY


def test_a_single_use_agent_takes_one_job_and_a_draining_one_none() -> None:
    session = ready(single_use=True)
    session.received(messages()[Offer])
    session.received(messages()[Withdraw])
    assert not session.done(), "what was never started does not spend it"
    session.received(messages()[Offer])
    session.received(messages()[Start])
    session.job_finished(KEY, DONE, 1)
    (answer,) = sent(session.received(messages(JobKey("job_2", 1))[Offer]))
    assert answer.reason is DeclineReason.DRAINING
    assert not session.done()
    session.received(messages()[FinishedAck])
    assert session.done()

    draining = ready()
    assert sent(draining.drain("host")) == [Draining(reason="host")]
    assert draining.drain("host") == ()
    (answer,) = sent(draining.received(messages()[Offer]))
    assert answer.reason is DeclineReason.DRAINING and draining.done()


def test_an_order_for_another_job_is_unfit() -> None:
    offer = Offer(job_id="job_1", attempt=1, order=order(JobKey("job_1", 2)))
    (answer,) = sent(ready().received(offer))
    assert answer.reason is DeclineReason.UNFIT


# --- reports and replay ------------------------------------------------------------------------------------


def running_with_reports() -> AgentSession:
    session = ready()
    session.received(messages()[Offer])
    session.received(messages()[Start])
    session.job_started(KEY, 1)
    session.step_started(KEY, 0, 2)
    session.log_grew(KEY, 0, 100)
    (piece,) = session.pending_logs()
    session.log(piece, b"x" * 100, 1)
    return session


def test_reports_are_numbered_and_replayed_above_the_stored_sequence() -> None:
    session = running_with_reports()
    session.disconnected()
    assert session.step_finished(KEY, 0, StepOutcome(result=Result.SUCCEEDED), 3) == ()
    session.connected()
    answer = JobAnswer(
        job_id="job_1", attempt=1, action=Action.CONTINUE, sequence=1, logs=(LogPosition(step=0, offset=40),)
    )
    out = session.received(welcome(answer))
    reports = [m for m in sent(out) if hasattr(m, "sequence")]
    assert [(type(r), r.sequence) for r in reports] == [(StepStarted, 2), (StepFinished, 3)]
    assert Stored(KEY, 0, 40) in out
    assert session.pending_logs() == [LogSlice(KEY, 0, 40, 60)]


def test_nothing_acknowledged_is_sent_again() -> None:
    session = running_with_reports()
    session.received(LogAck(job_id="job_1", attempt=1, step=0, offset=100))
    session.disconnected()
    session.connected()
    session.received(welcome(JobAnswer(job_id="job_1", attempt=1, action=Action.CONTINUE, sequence=2)))
    assert session.pending_logs() == []


@pytest.mark.parametrize("offset", [101, 10**9])
def test_bytes_that_were_never_made_cannot_be_stored(offset: int) -> None:
    session = running_with_reports()
    with pytest.raises(ProtocolError) as refused:
        session.received(LogAck(job_id="job_1", attempt=1, step=0, offset=offset))
    assert refused.value.close == close.UNEXPECTED
    session.disconnected()
    session.connected()
    answer = JobAnswer(job_id="job_1", attempt=1, action=Action.CONTINUE, logs=(LogPosition(step=0, offset=offset),))
    with pytest.raises(ProtocolError):
        session.received(welcome(answer))


def test_an_acknowledgement_of_the_old_session_is_taken_after_a_rewind() -> None:
    session = running_with_reports()
    session.disconnected()
    session.connected()
    session.received(welcome(JobAnswer(job_id="job_1", attempt=1, action=Action.CONTINUE, sequence=2)))
    assert session.received(LogAck(job_id="job_1", attempt=1, step=0, offset=100)) == (Stored(KEY, 0, 100),)
    assert session.pending_logs() == []


@pytest.mark.parametrize(
    ("phase", "action", "kinds", "after"),
    [
        (JobPhase.ACCEPTED, Action.START, [Begin], JobPhase.RUNNING),
        (JobPhase.ACCEPTED, Action.CONTINUE, [], JobPhase.ACCEPTED),
        (JobPhase.ACCEPTED, Action.STOP, [Forget], JobPhase.FORGOTTEN),
        (JobPhase.ACCEPTED, None, [Forget], JobPhase.FORGOTTEN),
        (JobPhase.RUNNING, Action.START, [], JobPhase.RUNNING),
        (JobPhase.RUNNING, Action.CONTINUE, [], JobPhase.RUNNING),
        (JobPhase.RUNNING, Action.STOP, [StopJob], JobPhase.RUNNING),
        (JobPhase.RUNNING, None, [StopJob], JobPhase.DROPPED),
        (JobPhase.FINISHED, Action.START, [], JobPhase.FINISHED),
        (JobPhase.FINISHED, Action.CONTINUE, [], JobPhase.FINISHED),
        (JobPhase.FINISHED, Action.STOP, [], JobPhase.FINISHED),
        (JobPhase.FINISHED, None, [Forget], JobPhase.FORGOTTEN),
        (JobPhase.DROPPED, None, [], JobPhase.DROPPED),
    ],
)
def test_what_welcome_says_of_a_job(phase: JobPhase, action: Action | None, kinds: list[type], after: JobPhase) -> None:
    session = in_phase(phase)
    session.disconnected()
    session.connected()
    answers = () if action is None else (JobAnswer(job_id="job_1", attempt=1, action=action, sequence=9),)
    out = session.received(welcome(*answers))
    about = [type(o) for o in out if isinstance(o, Begin | Forget | StopJob)]
    assert about == kinds
    assert session.phase(KEY) is after


def test_a_report_that_fits_no_frame_is_sent_without_its_outputs() -> None:
    session = running_with_reports()
    large = {f"n{i}": "x" * 250_000 for i in range(5)}
    outcome = StepOutcome(result=Result.SUCCEEDED, outputs=large, detail="d" * 10**6 + "\udcff")
    (report,) = sent(session.step_finished(KEY, 0, outcome, 1))
    assert (report.result, report.reason, report.outputs) == (Result.FAILED, Reason.OUTPUTS_INVALID, {})
    odd = JobOutcome(result=Result.FAILED, detail="a file named \udcff")
    (end,) = sent(session.job_finished(KEY, odd, 1))
    assert decode_from_agent(encode(end)) == end


def test_a_dropped_job_is_never_reported_again() -> None:
    session = in_phase(JobPhase.DROPPED)
    assert session.step_finished(KEY, 0, StepOutcome(result=Result.SUCCEEDED), 1) == ()
    session.log_grew(KEY, 0, 5000)
    assert session.pending_logs() == []
    assert session.job_finished(KEY, DONE, 1) == (Forget(KEY),)
    assert session.phase(KEY) is JobPhase.FORGOTTEN


def test_no_more_than_the_window_is_sent_without_acknowledgement() -> None:
    session = ready()
    session.received(messages()[Offer])
    session.received(messages()[Start])
    session.log_grew(KEY, 0, 3 * LOG_WINDOW)
    total = 0
    while pieces := session.pending_logs():
        session.log(pieces[0], b"x" * pieces[0].length, 1)
        total += pieces[0].length
    assert total == LOG_WINDOW
    session.received(LogAck(job_id="job_1", attempt=1, step=0, offset=LOG_WINDOW))
    assert session.pending_logs() != []


# --- fuzz --------------------------------------------------------------------------------------------------

KEYS = st.sampled_from([JobKey("job_1", 1), JobKey("job_1", 2), JobKey("job_2", 1)])
STEPS = st.integers(0, 2)
OFFSETS = st.integers(0, 200)


def answers() -> st.SearchStrategy[tuple[JobAnswer, ...]]:
    logs = st.lists(st.builds(lambda s, o: LogPosition(step=s, offset=o), STEPS, OFFSETS), max_size=2)
    one = st.builds(
        lambda key, action, sequence, positions: JobAnswer(
            job_id=key.job_id, attempt=key.attempt, action=action, sequence=sequence, logs=tuple(positions)
        ),
        KEYS,
        st.sampled_from(Action),
        st.integers(0, 9),
        logs,
    )
    return st.lists(one, max_size=3).map(tuple)


INCOMING = st.one_of(
    answers().map(lambda jobs: welcome(*jobs)),
    st.tuples(KEYS, st.sampled_from(list(messages()))).map(lambda pair: messages(pair[0])[pair[1]]),
    st.builds(
        lambda key, step, offset: LogAck(job_id=key.job_id, attempt=key.attempt, step=step, offset=offset),
        KEYS,
        STEPS,
        OFFSETS,
    ),
)
LOCAL = st.one_of(
    st.just(lambda s: s.connected()),
    st.just(lambda s: s.disconnected()),
    st.just(lambda s: s.drain("x")),
    KEYS.map(lambda key: lambda s: s.job_started(key, 1)),
    st.tuples(KEYS, STEPS).map(lambda p: lambda s: s.step_started(p[0], p[1], 1)),
    st.tuples(KEYS, STEPS).map(lambda p: lambda s: s.step_finished(p[0], p[1], StepOutcome(result=Result.FAILED), 1)),
    KEYS.map(lambda key: lambda s: s.job_finished(key, DONE, 1)),
    st.tuples(KEYS, STEPS, OFFSETS).map(lambda p: lambda s: s.log_grew(p[0], p[1], p[2])),
    st.just("send logs"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(INCOMING, LOCAL), max_size=60))
def test_no_conversation_crashes_the_session(happenings: list[Any]) -> None:
    session = fresh()
    sequences: dict[JobKey, int] = {}
    for happening in happenings:
        try:
            outputs = step(session, happening)
        except ProtocolError as error:
            assert error.close in close.CODES
            session.disconnected()
            continue
        for message in sent(outputs):
            assert decode_from_agent(encode(message)) == message
            if isinstance(message, JobStarted | StepStarted | StepFinished | JobFinished):
                key = JobKey(message.job_id, message.attempt)
                assert message.sequence <= sequences.get(key, 0) + 1 or session.link is LinkState.READY
                sequences[key] = max(sequences.get(key, 0), message.sequence)
        if session.link is not LinkState.READY:
            assert session.pending_logs() == []


def step(session: AgentSession, happening: Any) -> tuple[wire.Output, ...]:
    if happening == "send logs":
        found: list[wire.Output] = []
        for piece in session.pending_logs():
            message = session.log(piece, b"x" * piece.length, 1)
            assert isinstance(message, Log) and 0 < len(message.data) <= 64 * 1024
            found.append(Send(message))
        return tuple(found)
    if callable(happening):
        return happening(session) or ()
    return session.received(happening)


def test_hello_is_the_only_thing_said_before_welcome() -> None:
    session = fresh()
    assert [type(m) for m in sent(session.connected())] == [Hello]
    assert session.drain("x") == ()
