# SPDX-License-Identifier: Apache-2.0
"""Real processes killed for real: agents, servers, both."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from bench.harness import Server, check_database, restart, server

from corral.model.spec import JobSpec, OnLost, RetrySpec, StepSpec
from corral.model.views import JobView, RunView
from tests.e2e.support import alive, config, run_of, states, verified, whole_log
from tests.waiting import eventually, eventually_async


def _job(name: str, script: str, **options: object) -> JobSpec:
    step = StepSpec(name="s", script=script)
    return JobSpec(name=name, steps=(step,), runs_on=("local",), checkout=False, **options)  # type: ignore[arg-type]


async def _until(running: Server, run_id: str, state: str, job: str) -> JobView:
    async def look() -> JobView | None:
        view = await running.client.run(run_id)
        return next((j for j in view.jobs if j.name == job and j.state == state), None)

    found = await eventually_async(look, f"{job} {state}", 30)
    assert found is not None
    return found


async def _ended(running: Server, run_id: str) -> RunView:
    last: RunView | None = None
    async for view in running.client.watch_run(run_id):
        last = view
    assert last is not None
    return last


def _agent_pid(job: JobView) -> int:
    return eventually(lambda: [pid for pid in alive("corral.agent") if job.agent_id in _config_of(pid)], "agent")[0]


def _config_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_an_agent_killed_mid_job_settles_it_at_once_and_the_next_job_gets_a_new_one(tmp_path: Path) -> None:
    marker = f"sleep 98765.{os.getpid()}"

    async def scenario() -> None:
        async with server(config(max_agents=1)) as running:
            run = await running.client.create_run(
                run_of(
                    _job("victim", f"echo begun; {marker} & (setsid {marker} &) ; wait"),
                    _job("next", "echo fine"),
                )
            )
            victim = await _until(running, run.id, "running", "victim")
            await eventually_async(lambda: len(alive(marker)) >= 2, "both sleepers", 20)
            await eventually_async(lambda: whole_log(running, victim), "its first line", 20)
            killed = time.monotonic()
            os.kill(_agent_pid(victim), signal.SIGKILL)
            await _until(running, run.id, "failed", "victim")
            assert time.monotonic() - killed < 3
            view = await _ended(running, run.id)
            assert states(view) == {"victim": "failed", "next": "succeeded"}
            lost = next(job for job in view.jobs if job.name == "victim")
            assert lost.reason == "instance_lost"
            assert await whole_log(running, lost) == b"begun\n"
            assert view.log_incomplete
            await eventually_async(lambda: not alive(marker), "nothing of the job left", 10)

    asyncio.run(scenario())


def test_a_killed_agents_job_is_tried_again_where_its_policy_says_so(tmp_path: Path) -> None:
    """R3: its own policy decides, and both tries end."""
    flag = tmp_path / "once"

    async def scenario() -> None:
        async with server(config()) as running:
            script = f"if mkdir {flag}; then sleep 600; fi; echo again"
            run = await running.client.create_run(
                run_of(_job("j", script, on_lost=OnLost.RETRY, retry=RetrySpec(attempts=2, delay=0.1)))
            )
            job = await _until(running, run.id, "running", "j")
            await eventually_async(flag.exists, "the first try", 20)
            os.kill(_agent_pid(job), signal.SIGKILL)
            view = await _ended(running, run.id)
            assert view.state == "succeeded"
            whole = await running.client.job(view.jobs[0].id)
            assert [(a.state, a.reason) for a in whole.attempts] == [("lost", "instance_lost"), ("succeeded", "")]

    asyncio.run(scenario())


def test_a_killed_server_started_again_loses_no_job_no_run_and_no_byte(tmp_path: Path) -> None:
    """G1: the log goes on at the last acknowledged offset."""
    counts = tmp_path / "counts"
    counts.mkdir()
    go = tmp_path / "go"
    lines = 20000

    async def scenario() -> None:
        async with server(config(max_agents=2)) as running:
            script = (
                f"echo x >> {counts}/$CORRAL_JOB; "
                f"i=0; while [ ! -e {go} ]; do i=$((i+1)); echo $i waits; done; "
                f"for n in $(seq {lines}); do echo line $n; done"
            )
            jobs = [_job(name, script) for name in ("a", "b", "c")]
            run = await running.client.create_run(run_of(*jobs))
            await eventually_async(lambda: len(list(counts.iterdir())) == 2, "two jobs running", 30)
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
            go.touch()
            restart(running)
            view = await _ended(running, run.id)
            assert states(view) == {"a": "succeeded", "b": "succeeded", "c": "succeeded"}
            assert {p.name: p.read_text() for p in counts.iterdir()} == {"a": "x\n", "b": "x\n", "c": "x\n"}
            assert not view.log_incomplete
            await verified(running, view)
            for job in view.jobs:
                log = await whole_log(running, job)
                assert log.endswith(b"".join(b"line %d\n" % n for n in range(1, lines + 1)))
            check_database(running.state_dir)

    asyncio.run(scenario())


def test_a_server_that_is_stopped_leaves_the_jobs_running_and_finds_them_again(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def scenario() -> None:
        async with server(config()) as running:
            run = await running.client.create_run(
                run_of(_job("j", f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo ended"))
            )
            job = await _until(running, run.id, "running", "j")
            agent = _agent_pid(job)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(40) == 0
            assert _config_of(agent), "the agent outlives its server"
            restart(running)
            go.touch()
            view = await _ended(running, run.id)
            assert view.state == "succeeded"
            assert await whole_log(running, view.jobs[0]) == b"begun\nended\n"
            assert view.jobs[0].attempt == 1

    asyncio.run(scenario())
