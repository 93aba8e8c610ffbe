# SPDX-License-Identifier: Apache-2.0
"""Steps that do their worst, at a real server: bounded memory, a clear result, whole logs, nothing left running.

One server and one agent that stays run all of them, so that what one job leaves behind meets the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.harness import Server, server

from corral.model.spec import JobSpec, StepSpec
from corral.model.views import JobView, RunView
from tests.e2e.ownagent import own_agent, peak_memory
from tests.e2e.support import alive, config, run_of, whole_log
from tests.waiting import eventually_async

MIB = 1024 * 1024
AGENT_MEMORY = 80 * MIB
"""What an agent may ever take: 40 MiB of its own, the pipe, a read, its masked copy, the frames on their way."""


@dataclass(kw_only=True)
class Stage:
    running: Server
    agent: int

    async def play(self, *steps: str | StepSpec, **options: object) -> tuple[JobView, list[bytes]]:
        """Run a job of these steps to its end: how it ended, and its logs, each as long and as digested as said."""
        specs = tuple(s if isinstance(s, StepSpec) else StepSpec(name=f"s{n}", script=s) for n, s in enumerate(steps))
        spec = JobSpec(name="j", steps=specs, runs_on=("own",), checkout=False, **options)  # type: ignore[arg-type]
        run = await self.running.client.create_run(run_of(spec))
        await self.ended(run)
        return await self.looked(run.jobs[0].id)

    async def ended(self, run: RunView) -> None:
        async for _ in self.running.client.watch_run(run.id):
            pass

    async def looked(self, job_id: str) -> tuple[JobView, list[bytes]]:
        job = await self.running.client.job(job_id)
        logs = [await whole_log(self.running, job, step.index) for step in job.steps]
        for step, log in zip(job.steps, logs, strict=True):
            if step.log_size is not None and step.log_digest:
                assert (len(log), hashlib.sha256(log).hexdigest()) == (step.log_size, step.log_digest)
                assert step.log_missing == 0
        return job, logs


@contextlib.asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    async with server(config()) as running:
        agent = await own_agent(running, directory, "own")
        yield Stage(running=running, agent=agent.pid)
        assert agent.poll() is None, "the agent survived everything"
        assert peak_memory(agent.pid) < AGENT_MEMORY, peak_memory(agent.pid)


def on_stage(directory: Path, *scenes: Callable[[Stage], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with stage(directory) as made:
            for scene in scenes:
                await scene(made)

    asyncio.run(whole())


def sleeper(number: int) -> str:
    return f"sleep 86{number}.{os.getpid()}"


async def gone(marker: str) -> None:
    await eventually_async(lambda: not alive(marker), f"{marker} is gone", 10)


def away(command: str, *, twice: bool = False) -> str:
    """Shell: run ``command`` in a session of its own, ``twice``: of a parent that is gone, and go on once it is there
    (before that it is still one of the step's group, and dies with it)."""
    inner = f"setsid sh -c ': > away; exec {command}' >/dev/null 2>&1 </dev/null &"
    outer = f'setsid sh -c "({inner})"' if twice else f"({inner})"
    return f"rm -f away; {outer}; while [ ! -e away ]; do sleep 0.01; done; "


async def daemons(stage: Stage) -> None:
    marker = sleeper(1)
    job, logs = await stage.play(
        f"{marker} >/dev/null 2>&1 & {away(marker)} {away(marker, twice=True)} echo done",
        # The arguments of all processes, one a line; the pattern does not match itself.
        f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '[8]{marker[7:]}' || true",
    )
    assert job.state == "succeeded" and logs[0] == b"done\n"
    assert int(logs[1]) == 2, "the group's died with the step; those that left it live as long as the job"
    await gone(marker)


async def ignores_every_signal(stage: Stage) -> None:
    marker = sleeper(2)
    step = StepSpec(
        name="deaf", script=f"trap '' TERM INT HUP; (trap '' TERM INT; {marker}) & wait; {marker}", timeout=0.5
    )
    job, _ = await stage.play(step)
    assert (job.state, job.reason) == ("failed", "step_timeout")
    await gone(marker)


async def stops_itself(stage: Stage) -> None:
    marker = sleeper(3)
    job, _ = await stage.play(StepSpec(name="stopped", script=f"{marker} & kill -STOP $$; wait", timeout=0.5))
    assert (job.state, job.reason) == ("failed", "step_timeout")
    await gone(marker)


async def prints_one_endless_line(stage: Stage) -> None:
    job, logs = await stage.play("head -c 104857600 /dev/zero | tr '\\0' x")
    assert job.state == "succeeded"
    assert logs[0] == b"x" * 104857600


async def prints_binary(stage: Stage) -> None:
    job, logs = await stage.play("head -c 3000000 /dev/urandom | tee bytes; sha256sum < bytes")
    assert job.state == "succeeded"
    assert logs[0][3000000:] == f"{hashlib.sha256(logs[0][:3000000]).hexdigest()}  -\n".encode()


async def closes_its_pipes(stage: Stage) -> None:
    job, logs = await stage.play("echo before; exec >&- 2>&- <&-; for n in 1 2 3; do :; done; exit 7")
    assert (job.state, job.reason, job.steps[0].exit_code) == ("failed", "exit_code", 7)
    assert logs == [b"before\n"]


async def keeps_a_pipe_open(stage: Stage) -> None:
    marker = sleeper(4)
    noise = f"(setsid sh -c ': > noisy; while echo noise; do {marker}; done' &)"
    job, logs = await stage.play(f"{noise}; while [ ! -e noisy ]; do sleep 0.01; done; echo main", "echo next")
    assert job.state == "succeeded"
    assert b"main\n" in logs[0] and b"a process that outlived this step held its output open" in logs[0]
    assert logs[1] == b"next\n"
    await gone(marker)


async def forks_without_end(stage: Stage) -> None:
    """Faster than one look at the processes can kill them."""
    marker = f"corral-hostile-{os.getpid()}"
    relay = (
        f"cat > {marker} <<'EOF'\n#!/bin/sh\nsetsid \"$0\" >/dev/null 2>&1 </dev/null &\nEOF\n"
        f"chmod +x {marker}; for n in 1 2 3; do ./{marker}; done; echo relayed"
    )
    job, logs = await stage.play(relay)
    assert (job.state, logs) == ("succeeded", [b"relayed\n"])
    await gone(marker)


async def removes_its_own_tools(stage: Stage) -> None:
    """The files through which agent and step talk, replaced by what must not be followed or waited for."""
    job, _ = await stage.play(
        'rm -f "$CORRAL_OUTPUT" "$CORRAL_MASK"; mkfifo "$CORRAL_OUTPUT" "$CORRAL_MASK"; echo fine',
        'rm -f "$CORRAL_OUTPUT"; ln -s /etc/passwd "$CORRAL_OUTPUT"; chmod 000 "$HOME" "$TMPDIR" .; true',
    )
    assert (job.state, job.reason) == ("failed", "outputs_invalid")


async def is_cancelled_while_deaf(stage: Stage) -> None:
    marker = sleeper(5)
    spec = JobSpec(
        name="j",
        steps=(StepSpec(name="deaf", script=f"trap '' TERM INT; echo up; (setsid {marker} &); {marker}"),),
        runs_on=("own",),
        checkout=False,
    )
    run = await stage.running.client.create_run(run_of(spec))
    await eventually_async(lambda: len(alive(marker)) >= 2, "it is up")
    await stage.running.client.cancel_run(run.id, force=True)
    await stage.ended(run)
    job, _ = await stage.looked(run.jobs[0].id)
    assert job.state == "cancelled"
    await gone(marker)


def test_whatever_a_step_does_the_result_is_clear_and_nothing_is_left(tmp_path: Path) -> None:
    on_stage(
        tmp_path,
        daemons,
        stops_itself,
        prints_binary,
        closes_its_pipes,
        keeps_a_pipe_open,
        forks_without_end,
        removes_its_own_tools,
        is_cancelled_while_deaf,
        prints_one_endless_line,
        ignores_every_signal,
        daemons,
    )
    assert list((tmp_path / "work" / "jobs").iterdir()) == []


def test_a_step_that_fills_the_disk_ends_clearly_and_the_next_job_has_room_again(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    work = tmp_path / "work"
    work.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "corral-test", str(work)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode()}")

    async def fills(stage: Stage) -> None:
        script = "cat /dev/zero > big 2>/dev/null || true; while printf x >> more 2>/dev/null; do :; done; echo filled"
        spec = JobSpec(
            name="j",
            steps=(StepSpec(name="fills", script=script), StepSpec(name="after", script="echo never")),
            cleanup=(StepSpec(name="tidy", script="echo never"),),
            runs_on=("own",),
            checkout=False,
        )
        run = await stage.running.client.create_run(run_of(spec))
        await stage.ended(run)
        job = await stage.running.client.job(run.jobs[0].id)
        assert (job.state, job.reason) == ("failed", "disk_full")
        assert [step.state for step in job.steps] == ["succeeded", "failed", "failed"]
        assert [step.reason for step in job.steps] == ["", "disk_full", "disk_full"]
        again, logs = await stage.play("head -c 1000000 /dev/zero > room; echo room")
        assert (again.state, logs) == ("succeeded", [b"room\n"])

    try:
        on_stage(tmp_path, fills)
    finally:
        subprocess.run(["umount", str(work)], check=True)
