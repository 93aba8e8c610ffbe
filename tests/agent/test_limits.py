# SPDX-License-Identifier: Apache-2.0
"""What a job may take of its host: disk, memory, cpu; what it gets when there is none; and that heartbeats go on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import cgroup, kernel
from corral.model.spec import GitSource, Reason, Resources, Result, StepSpec
from corral.wire.messages import Decline, DeclineReason, Heartbeat, Offer, StepFinished
from tests.agent.coordinator import gone, in_loop, order, running
from tests.waiting import eventually_async

MIB = 1024 * 1024


@contextlib.contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "corral-test", str(directory)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


# --- disk --------------------------------------------------------------------------------------------------


def test_an_agent_without_room_declines_and_says_what_it_needs(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False, min_free=2**60) as (coordinator, _):
            await coordinator.registered()
            job = order("true")
            await coordinator.send(Offer(job_id=job.job_id, attempt=1, order=job))
            said = await coordinator.hears(Decline)
            assert said.reason is DeclineReason.UNFIT
            assert "MiB are free in" in said.detail and "min_free" in said.detail
            assert not (tmp_path / "work" / "jobs").exists(), "nothing was touched"

    in_loop(work)


def test_an_agent_without_git_declines_a_git_source(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "bin").mkdir()
        async with running(tmp_path, single_use=False, env={"PATH": str(tmp_path / "bin")}) as (coordinator, _):
            await coordinator.registered()
            job = order("true", git=GitSource(url="https://host/r", commit="0" * 40))
            await coordinator.send(Offer(job_id=job.job_id, attempt=1, order=job))
            said = await coordinator.hears(Decline)
            assert (said.reason, "no git" in said.detail) == (DeclineReason.UNFIT, True)

    in_loop(work)


def test_a_disk_that_fills_up_gives_every_remaining_step_its_result(tmp_path: Path) -> None:
    steps = (
        "cat /dev/zero > big 2>/dev/null || true; while printf x >> more 2>/dev/null; do :; done; echo filled",
        "echo never",
        StepSpec(name="always", script="echo never", condition="always()"),
    )
    cleanup = (StepSpec(name="tidy", script="rm -f big"),)

    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            end = await coordinator.run(order(*steps, cleanup=cleanup))
            ends = coordinator.steps("job_1")
            assert sorted(ends) == [0, 1, 2, 3]
            assert ends[0].result is Result.SUCCEEDED
            assert (ends[1].result, ends[1].reason) == (Result.FAILED, Reason.DISK_FULL)
            assert "s1" in ends[1].detail and "No space left" in ends[1].detail
            assert {ends[2].reason, ends[3].reason} == {Reason.DISK_FULL}
            assert (end.result, end.reason) == (Result.FAILED, Reason.DISK_FULL)
            assert (await coordinator.run(order("echo room again", job_id="job_2"))).result is Result.SUCCEEDED

    with small_disk(tmp_path / "work", "4m"):
        in_loop(work)


def test_a_disk_without_room_for_the_jobs_directory_skips_every_step(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            await coordinator.registered()
            while True:
                try:
                    (tmp_path / "work" / f"full-{os.urandom(4).hex()}").touch()
                except OSError:
                    break
            end = await coordinator.run(order("echo a", "echo b"))
            assert (end.result, end.reason) == (Result.FAILED, Reason.DISK_FULL)
            assert {(m.result, m.reason) for m in coordinator.said(StepFinished)} == {
                (Result.SKIPPED, Reason.DISK_FULL)
            }
            assert sorted(coordinator.steps("job_1")) == [0, 1]

    with small_disk(tmp_path / "work", "4m,nr_inodes=40"):
        in_loop(work)


# --- memory ------------------------------------------------------------------------------------------------

EAT = "python3 -c 'x = bytearray(400 * 1024 * 1024)'"
needs_memory_group = pytest.mark.skipif(
    not any(parent.kind == "memory" for parent in cgroup.parents()),
    reason="needs a writable memory cgroup (version 1)",
)


@needs_memory_group
@pytest.mark.parametrize(
    ("script", "code", "number"),
    [(f"exec {EAT}", None, 9), (EAT, 137, None), (f"{EAT} || {{ echo went on; exit 2; }}", 2, None)],
)
def test_a_job_above_its_memory_is_told_apart_from_any_other_kill(
    tmp_path: Path, script: str, code: int | None, number: int | None
) -> None:
    """Also where the step's own process lives on and only exits with an error of its own."""
    script = script.replace("python3", sys.executable)

    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, agent):
            end = await coordinator.run(order(script, resources=Resources(memory=64 * MIB)))
            step = coordinator.steps("job_1")[0]
            assert (step.reason, step.exit_code, step.signal) == (Reason.OUT_OF_MEMORY, code, number)
            assert "out of memory" in end.detail
            killed = await coordinator.run(order("kill -KILL $$", resources=Resources(memory=64 * MIB), job_id="job_2"))
            assert killed.reason is Reason.SIGNAL
            fine = f"{EAT.replace('python3', sys.executable)}; exit 3"
            other = await coordinator.run(order(fine, job_id="job_3"))
            assert (other.reason, coordinator.steps("job_3")[0].exit_code) == (Reason.EXIT_CODE, 3)
            left = [g for p in cgroup.parents() for g in p.path.glob(f"{cgroup.PREFIX}*.{agent.pid}")]
            assert left == [], "the jobs' groups are removed"

    in_loop(work)


@pytest.mark.skipif(not cgroup.parents(), reason="needs a writable cgroup")
def test_a_daemon_in_a_session_of_its_own_stays_in_the_jobs_group(tmp_path: Path) -> None:
    script = "(setsid sh -c 'setsid sleep 4711 & wait' >/dev/null 2>&1 </dev/null &) ; cat /proc/self/cgroup"

    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            assert (await coordinator.run(order(script, resources=Resources(cpu=1)))).result is Result.SUCCEEDED
            await coordinator.until(lambda: b"corral-job-job_1.1" in coordinator.log("job_1"))

    in_loop(work)


def test_groups_that_a_killed_agent_left_are_removed(tmp_path: Path) -> None:
    (tmp_path / f"{cgroup.PREFIX}old.1").mkdir()
    (tmp_path / "corral-agent_1").mkdir()
    cgroup.clear([cgroup.Parent("memory", tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["corral-agent_1"], "instances' groups are not ours"


def test_where_no_group_can_be_made_a_job_has_none(tmp_path: Path) -> None:
    group = cgroup.JobGroup([cgroup.Parent("memory", tmp_path / "not-there")], "job_1.1", memory=1)
    assert (group.doors(), group.counters()) == ((), ())
    group.kill()
    group.remove()


# --- cpu ---------------------------------------------------------------------------------------------------

HOG = """
n=$(($(nproc) * 4))
i=0
while [ $i -lt $n ]; do
  (nice -n -20 sh -c 'while :; do :; done' 2>/dev/null) &
  (while :; do (true); done) &
  i=$((i + 1))
done
echo eating
wait
"""
INTERVAL = 0.6


def test_R5_heartbeats_go_on_while_a_job_eats_all_cpu(tmp_path: Path) -> None:
    """Spinning children at the highest priority that they can give themselves, and others that fork without end."""

    async def work() -> None:
        async with running(tmp_path, single_use=False, heartbeat=INTERVAL) as (coordinator, agent):
            job = order(HOG, resources=Resources(cpu=1))
            await coordinator.begin(job)
            await coordinator.until(lambda: b"eating" in coordinator.log("job_1"))
            loop = asyncio.get_running_loop()
            beats, seen = [loop.time()], len(coordinator.said(Heartbeat))
            while len(beats) < 5:
                await coordinator.until(lambda seen=seen: len(coordinator.said(Heartbeat)) > seen)
                seen = len(coordinator.said(Heartbeat))
                beats.append(loop.time())
            longest = max(after - before for before, after in itertools.pairwise(beats))
            assert longest < 2 * INTERVAL, beats
            await coordinator.cancel(job, force=True)
            await coordinator.until(lambda: coordinator.steps("job_1"))
            children = await asyncio.to_thread(kernel.descendants, agent.pid)
            await eventually_async(lambda: all(map(gone, children)), "what ate is dead")

    in_loop(work)
