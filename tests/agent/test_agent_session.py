# SPDX-License-Identifier: Apache-2.0
"""A real agent process whose coordinator goes away, repeats itself, is late, or refuses it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from corral.agent.ending import ExitCode
from corral.model.spec import Reason, Result
from corral.wire import close
from corral.wire.messages import (
    Accept,
    Action,
    Decline,
    DeclineReason,
    Draining,
    FinishedAck,
    Heartbeat,
    HeldState,
    Hello,
    JobAnswer,
    JobFinished,
    JobStarted,
    Limits,
    LogAck,
    Offer,
    Refused,
    RefusedCode,
    Start,
    Withdraw,
)
from tests.agent.coordinator import Coordinator, gone, in_loop, order, running, spawn
from tests.waiting import eventually


async def cut(coordinator: Coordinator) -> None:
    """The connection is lost without a close frame."""
    assert coordinator.connection is not None
    coordinator.connection.transport.abort()


async def reconnected(coordinator: Coordinator, count: int) -> Hello:
    hellos: list[Hello] = await coordinator.until(lambda: len(h := coordinator.said(Hello)) >= count and h)
    return hellos[-1]


def test_G1_a_log_survives_five_cuts_byte_for_byte(tmp_path: Path) -> None:
    script = "for i in $(seq 1 60000); do echo line $i of a log that is cut in the middle; done"
    wanted = "".join(f"line {i} of a log that is cut in the middle\n" for i in range(1, 60001)).encode()

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order(script))
            for number in range(1, 6):
                mark = number * len(wanted) // 8
                await coordinator.until(lambda mark=mark: len(coordinator.log("job_1")) > mark)
                await cut(coordinator)
                await reconnected(coordinator, number + 1)
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.log("job_1") == wanted
            coordinator.verify_logs("job_1")
            sequences = [m.sequence for m in coordinator.messages if hasattr(m, "sequence")]
            assert sorted(set(sequences)) == [1, 2, 3, 4]

    in_loop(work)


def test_a_job_goes_on_and_ends_while_nobody_is_connected(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order('echo $$; while [ ! -e "$HOME/go" ]; do sleep 0.02; done; echo end'))
            await coordinator.until(lambda: b"\n" in coordinator.log("job_1"))
            pid = int(coordinator.log("job_1"))
            await coordinator.stop()
            (tmp_path / "work" / "jobs" / "job_1.1" / "home" / "go").touch()
            eventually(lambda: gone(pid))
            await coordinator.start()
            hello = await reconnected(coordinator, 2)
            assert [(j.job_id, j.attempt) for j in hello.jobs] == [("job_1", 1)]
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.said(JobFinished)[0].result is Result.SUCCEEDED
            assert coordinator.log("job_1").endswith(b"\nend\n")
            assert hello.key == coordinator.said(Hello)[0].key
            assert hello.boot_id == coordinator.said(Hello)[0].boot_id
            assert hello.claim_code == ""

    in_loop(work)


def test_ref46_a_start_lost_after_accept_is_said_again_by_welcome(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            job = order('echo "$TOKEN" > "$HOME/../../../seen"')
            await coordinator.registered()
            await coordinator.send(Offer(job_id="job_1", attempt=1, order=job))
            await coordinator.hears(Accept)
            assert not list((tmp_path / "work").glob("jobs/*")), "nothing is touched before start"
            coordinator.answer_job = lambda hello: tuple(
                JobAnswer(job_id=j.job_id, attempt=j.attempt, action=Action.START, secrets={"TOKEN": "from-welcome"})
                for j in hello.jobs
            )
            await cut(coordinator)
            hello = await reconnected(coordinator, 2)
            assert [j.state for j in hello.jobs] == [HeldState.ACCEPTED]
            assert await agent.ended() == ExitCode.DONE
            assert len(coordinator.said(JobStarted)) == 1
            assert (tmp_path / "work" / "seen").read_text() == "from-welcome\n"

    in_loop(work)


def test_withdrawn_and_offered_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            first, second = order("echo one"), order("echo two", job_id="job_2")
            await coordinator.registered()
            await coordinator.send(Offer(job_id="job_1", attempt=1, order=first))
            await coordinator.hears(Accept, job_id="job_1")
            await coordinator.send(Offer(job_id="job_2", attempt=1, order=second))
            assert (await coordinator.hears(Decline, job_id="job_2")).reason is DeclineReason.BUSY
            await coordinator.send(Withdraw(job_id="job_1", attempt=1))
            await coordinator.send(Withdraw(job_id="job_1", attempt=1))
            await coordinator.begin(second)
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.said(JobStarted, job_id="job_1") == []

    in_loop(work)


def test_repeated_and_late_messages_change_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            job = order("echo once")
            await coordinator.begin(job)
            await coordinator.send(Start(job_id="job_1", attempt=1))
            await coordinator.hears(JobFinished)
            await coordinator.send(Start(job_id="job_1", attempt=1))
            for _ in range(2):
                await coordinator.send(FinishedAck(job_id="job_1", attempt=1))
            await coordinator.send(LogAck(job_id="job_1", attempt=1, step=0, offset=5))
            await coordinator.cancel(job)
            assert (await coordinator.run(order("echo two", job_id="job_2"))).result is Result.SUCCEEDED
            assert coordinator.log("job_1") == b"once\n"
            assert (len(coordinator.said(JobStarted, job_id="job_1")), coordinator.connections) == (1, 1)

    in_loop(work)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Start(job_id="job_never", attempt=1), close.UNEXPECTED),
        (Refused(code=RefusedCode.RETRY, message="too late"), close.UNEXPECTED),
        (b"\xc1 no message", close.BAD_FRAME),
    ],
    ids=["start", "refused", "garbage"],
)
def test_what_the_protocol_forbids_closes_with_its_code_and_the_agent_comes_back(
    tmp_path: Path, message: Any, code: int
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.registered()
            connection = coordinator.connection
            assert connection is not None
            if isinstance(message, bytes):
                await connection.send(message)
            else:
                await coordinator.send(message)
            async with asyncio.timeout(10):
                await connection.wait_closed()
            assert connection.close_code == code
            await reconnected(coordinator, 2)
            assert (await coordinator.run(order("echo fine"))).result is Result.SUCCEEDED
            assert await agent.ended() == ExitCode.DONE

    in_loop(work)


def test_a_lost_welcome_leaves_the_claim_to_be_redeemed_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            coordinator.refuse = Refused(code=RefusedCode.RETRY, message="not now", retry_after=0.01)
            await reconnected(coordinator, 2)
            coordinator.refuse = None
            await coordinator.hears(Heartbeat)
            hellos = coordinator.said(Hello)
            assert len({(h.key, h.claim_code) for h in hellos}) == 1
            assert hellos[0].claim_code == "c" * 64
            assert len(hellos[0].key.removeprefix("corral_agent_")) == 64

    in_loop(work)


@pytest.mark.parametrize("code", [RefusedCode.UNKNOWN, RefusedCode.GONE, RefusedCode.REVOKED])
def test_ref48_refused_for_good_ends_with_its_exit_code(tmp_path: Path, code: RefusedCode) -> None:
    async def work() -> None:
        coordinator = Coordinator()
        coordinator.refuse = Refused(code=code, message="not you")
        await coordinator.start()
        agent = await spawn(tmp_path, (coordinator.url,))
        try:
            assert await agent.ended() == ExitCode.REFUSED
        finally:
            await agent.kill()
            await coordinator.stop()

    in_loop(work)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (close.RELEASED, ExitCode.DONE),
        (close.REPLACED, ExitCode.REPLACED),
        (close.REFUSED, ExitCode.REFUSED),
    ],
)
def test_close_codes_that_stop(tmp_path: Path, code: int, exit_code: ExitCode) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order("echo $$; sleep 600"))
            await coordinator.until(lambda: b"\n" in coordinator.log("job_1"))
            pid = int(coordinator.log("job_1"))
            assert coordinator.connection is not None
            await coordinator.connection.close(code, "")
            assert await agent.ended() == exit_code
            assert gone(pid)

    in_loop(work)


def test_another_coordinator_is_dialled_after_shutting_down(tmp_path: Path) -> None:
    async def work() -> None:
        first, second = Coordinator(), Coordinator()
        await first.start()
        await second.start()
        agent = await spawn(tmp_path, (first.url, second.url))
        try:
            await first.begin(order("sleep 0.5; echo done"))
            assert first.connection is not None
            first.accepting = False
            await first.connection.close(close.SHUTTING_DOWN, "")
            await second.hears(JobFinished)
            assert await agent.ended() == ExitCode.DONE
            assert second.log("job_1") == b"done\n"
            assert second.said(Hello)[0].jobs[0].job_id == "job_1"
        finally:
            await agent.kill()
            await first.stop()
            await second.stop()

    in_loop(work)


def test_told_to_stop_it_kills_flushes_and_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order("echo $$; sleep 600"))
            await coordinator.until(lambda: b"\n" in coordinator.log("job_1"))
            pid = int(coordinator.log("job_1"))
            coordinator.answer_job = lambda hello: tuple(
                JobAnswer(job_id=j.job_id, attempt=j.attempt, action=Action.STOP, sequence=2) for j in hello.jobs
            )
            await cut(coordinator)
            end = await coordinator.hears(JobFinished)
            assert (end.result, end.reason) == (Result.LOST, Reason.AGENT_LOST)
            assert gone(pid)
            assert await agent.ended() == ExitCode.DONE

    in_loop(work)


def test_a_job_that_the_coordinator_does_not_know_is_killed_and_never_reported(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order("echo $$; sleep 600"))
            await coordinator.until(lambda: b"\n" in coordinator.log("job_1"))
            pid = int(coordinator.log("job_1"))
            coordinator.answer_job = lambda hello: ()
            await cut(coordinator)
            assert await agent.ended() == ExitCode.DONE
            assert gone(pid)
            assert coordinator.said(JobFinished) == []

    in_loop(work)


def test_R8_drained_by_its_host_it_finishes_the_job_and_takes_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, agent):
            job = order('echo $$; while [ ! -e "$HOME/go" ]; do sleep 0.02; done')
            await coordinator.begin(job)
            await coordinator.until(lambda: b"\n" in coordinator.log("job_1"))
            agent.process.send_signal(signal.SIGTERM)
            await coordinator.hears(Draining)
            await coordinator.send(Offer(job_id="job_2", attempt=1, order=order("echo", job_id="job_2")))
            assert (await coordinator.hears(Decline)).reason is DeclineReason.DRAINING
            (tmp_path / "work" / "jobs" / "job_1.1" / "home" / "go").touch()
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.said(JobFinished)[0].result is Result.SUCCEEDED

    in_loop(work)


def test_S1_an_idle_agent_ends_when_its_host_asks_even_while_nobody_answers(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = Coordinator()
        await coordinator.start()
        await coordinator.stop()
        agent = await spawn(tmp_path, (coordinator.url,))
        try:
            # The handler is there once the lock is.
            eventually(lambda: (tmp_path / "work" / ".agent.lock").exists())
            eventually(lambda: int(_status(agent.pid, "SigCgt"), 16) & (1 << (signal.SIGTERM - 1)))
            agent.process.send_signal(signal.SIGTERM)
            assert await agent.ended() == ExitCode.DONE
        finally:
            await agent.kill()

    in_loop(work)


def _status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith(field + ":")), "0")


def test_R9_asked_twice_it_ends_the_job_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order("echo $$; sleep 600"))
            await coordinator.until(lambda: b"\n" in coordinator.log("job_1"))
            pid = int(coordinator.log("job_1"))
            agent.process.send_signal(signal.SIGTERM)
            await coordinator.hears(Draining)
            agent.process.send_signal(signal.SIGTERM)
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.said(JobFinished)[0].result is Result.LOST
            assert gone(pid)

    in_loop(work)


def test_a_stalled_log_store_slows_the_step_and_loses_nothing(tmp_path: Path) -> None:
    size = 4 * 1024 * 1024

    async def work() -> None:
        async with running(tmp_path, spool_limit=256 * 1024) as (coordinator, agent):
            coordinator.ack_logs = False
            script = f"head -c {size} /dev/zero | tr '\\0' 'y'; echo finished > \"$HOME/../../../finished\""
            await coordinator.begin(order(script))
            await coordinator.until(lambda: len(coordinator.log("job_1")) >= 256 * 1024)
            beats = len(coordinator.said(Heartbeat))
            await coordinator.until(lambda: len(coordinator.said(Heartbeat)) >= beats + 3)
            assert len(coordinator.log("job_1")) < 2 * 256 * 1024, "no more than the spool holds was taken"
            assert not (tmp_path / "work" / "finished").exists()
            coordinator.ack_logs = True
            await coordinator.send(LogAck(job_id="job_1", attempt=1, step=0, offset=len(coordinator.log("job_1"))))
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.log("job_1") == b"y" * size
            coordinator.verify_logs("job_1")

    in_loop(work)


def test_G2_a_job_killed_in_the_middle_of_printing_loses_none_of_it(tmp_path: Path) -> None:
    """Kill, then flush, then report, then exit: also when the agent itself is told to be quick."""

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order("head -c 4000000 /dev/zero | tr '\\0' z; echo; while :; do echo more; done"))
            await coordinator.until(lambda: len(coordinator.log("job_1")) > 4_000_000)
            for _ in range(3):
                agent.process.send_signal(signal.SIGTERM)
                await coordinator.hears(Draining)
            assert await agent.ended() == ExitCode.DONE
            (end,) = coordinator.said(JobFinished)
            assert end.result is Result.LOST
            assert coordinator.log("job_1").startswith(b"z" * 4_000_000 + b"\nmore\n")
            coordinator.verify_logs("job_1")
            assert coordinator.steps("job_1")[0].log_dropped == 0

    in_loop(work)


@pytest.mark.parametrize("verbose", [False, True])
def test_T5_T6_nothing_secret_is_in_what_an_agent_says_of_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], verbose: bool
) -> None:
    """Neither its environment, nor key or claim, nor a job's secrets: on standard error, in arguments, in its files."""
    canaries = {"claim": "c4n4ry-claim", "secret": "c4n4ry-secret", "own": "c4n4ry-own-environment"}

    async def work() -> None:
        fields = {"claim_code": canaries["claim"], "env": {"OWN_TOKEN": canaries["own"]}, "verbose": verbose}
        async with running(tmp_path, **fields) as (coordinator, agent):
            job = order('test -n "$S"; test -z "${OWN_TOKEN-}"; cat "$S"', secrets=("S",))
            await coordinator.begin(job, {"S": canaries["secret"]})
            arguments = Path(f"/proc/{agent.pid}/cmdline").read_bytes()
            assert await agent.ended() == ExitCode.DONE
            key = coordinator.said(Hello)[0].key
            said = capfd.readouterr()
            texts = [said.out, said.err, arguments.decode(), coordinator.log("job_1").decode()]
            texts += [f.read_bytes().decode(errors="replace") for f in tmp_path.rglob("*") if f.is_file()]
            for canary in (key, *canaries.values()):
                assert not any(canary in text for text in texts), canary
            assert "***" in coordinator.log("job_1").decode()

    in_loop(work)


def test_R7_an_agent_whose_coordinator_falls_silent_dials_anew_and_goes_on(tmp_path: Path) -> None:
    """A half-open connection: nothing closes it, nobody answers."""

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            coordinator.limits = Limits(agent_dead_after=0.6)
            job = order('echo one; while [ ! -e "$HOME/go" ]; do sleep 0.02; done; echo two')
            await coordinator.begin(job)
            await coordinator.until(lambda: coordinator.log("job_1"))
            coordinator.answer_heartbeats = False
            coordinator.ack_logs = False
            await coordinator.until(lambda: coordinator.connections >= 2)
            coordinator.answer_heartbeats = coordinator.ack_logs = True
            (tmp_path / "work" / "jobs" / "job_1.1" / "home" / "go").touch()
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.log("job_1") == b"one\ntwo\n"
            coordinator.verify_logs("job_1")

    in_loop(work)


def test_the_warden_is_told_how_long_the_agent_may_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            async with running(tmp_path, grant_fd=write_end) as (coordinator, agent):
                coordinator.limits = Limits(lost_after=120.0, stranded_after=1000.0)
                await coordinator.begin(order("sleep 0.3"))
                await coordinator.hears(JobStarted)
                assert await agent.ended() == ExitCode.DONE
            told = [float(line) for line in os.read(read_end, 65536).split()]
        finally:
            os.close(read_end)
            os.close(write_end)
        assert len(told) >= 2
        assert told[0] - told[-1] > 700, "the coordinator's own limit (1000 s) replaces the default (1800 s)"
        rest = told[1:]
        assert rest == sorted(rest), "each answer moves it on"

    in_loop(work)
