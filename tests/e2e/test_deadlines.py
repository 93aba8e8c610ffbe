# SPDX-License-Identifier: Apache-2.0
"""Deadlines of steps, jobs, runs and the queue: each says which one it was."""

from __future__ import annotations

import asyncio

from bench.harness import server

from corral.model.spec import JobSpec, RetrySpec, StepSpec
from tests.e2e.support import config, job, run_of, states, until_over


def test_each_timeout_says_which_one_fired() -> None:
    async def scenario() -> None:
        async with server(config(max_agents=3, queue_timeout=2)) as running:
            slow_step = JobSpec(
                name="step",
                steps=(StepSpec(name="slow", script="sleep 60", timeout=0.5),),
                runs_on=("local",),
                checkout=False,
            )
            steps = await running.client.create_run(run_of(slow_step, job("job", "sleep 60", timeout=0.5)))
            whole = await running.client.create_run(run_of(job("first", "sleep 60"), timeout=1.0))
            view = await until_over(running, steps.id)
            found = {each.name: (each.state, each.reason) for each in view.jobs}
            assert found == {"step": ("failed", "step_timeout"), "job": ("failed", "job_timeout")}
            details = {each.name: each.detail for each in view.jobs}
            assert "slow" in details["step"]
            assert "0.5" in details["step"]
            assert "0.5" in details["job"]
            view = await until_over(running, whole.id)
            assert (view.state, view.reason) == ("failed", "run_timeout")
            assert "timeout of 1 s" in view.detail
            assert [each.reason for each in view.jobs] == ["run_timeout"]
            # Three sleepers have all agents; nothing is left for the fourth.
            busy = await running.client.create_run(run_of(*(job(f"b{n}", "sleep 60") for n in range(3))))
            queued = await running.client.create_run(run_of(job("waits", "true")))
            view = await until_over(running, queued.id)
            assert (view.jobs[0].state, view.jobs[0].reason) == ("failed", "queue_timeout")
            assert "2 s" in view.jobs[0].detail
            await running.client.cancel_run(busy.id, force=True)
            await until_over(running, busy.id)

    asyncio.run(scenario())


def test_a_job_that_times_out_is_tried_again_as_its_retry_says() -> None:
    async def scenario() -> None:
        async with server(config()) as running:
            spec = job("j", "sleep 60", timeout=0.5, retry=RetrySpec(attempts=2, delay=0.1))
            run = await running.client.create_run(run_of(spec))
            view = await until_over(running, run.id)
            assert states(view) == {"j": "failed"}
            whole = await running.client.job(view.jobs[0].id)
            assert [(each.state, each.reason) for each in whole.attempts] == [("failed", "job_timeout")] * 2

    asyncio.run(scenario())
