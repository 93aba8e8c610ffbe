# SPDX-License-Identifier: Apache-2.0
"""Jobs that fit nothing, agents that come all at once, secrets, cancelling, outputs: through the real wiring."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from pathlib import Path

from bench.agents import Crowd
from bench.harness import server, until_ended

from corral.model.spec import JobSpec, NeedSpec, StepSpec
from corral.model.views import RunView
from tests.e2e.support import config, run_of, states, whole_log
from tests.waiting import eventually_async


def _job(name: str, script: str, label: str = "local", **options: object) -> JobSpec:
    step = StepSpec(name="s", script=script)
    return JobSpec(name=name, steps=(step,), runs_on=(label,), checkout=False, **options)  # type: ignore[arg-type]


def test_a_job_that_fits_nothing_fails_in_time_and_names_the_nearest_pool_and_label() -> None:
    async def scenario() -> None:
        async with server(config(unroutable_after=1)) as running:
            run = await running.client.create_run(run_of(_job("j", "true", "gpu")))
            why = await running.client.why(run.jobs[0].id)
            assert "gpu" in why.fix or "gpu" in " ".join(why.sentences)
            last: RunView | None = None
            async for view in running.client.watch_run(run.id):
                last = view
            assert last is not None
            assert last.state == "failed"
            assert last.jobs[0].reason == "unroutable"
            assert "'gpu'" in last.jobs[0].detail
            assert "local" in last.jobs[0].detail
            assert (last.jobs[0].total or 0) < 5

    asyncio.run(scenario())


def test_two_hundred_agents_at_once_get_each_of_750_jobs_exactly_once() -> None:
    async def scenario() -> None:
        async with server(config(max_agents=0)) as running:
            crowd = await Crowd.make(running.client, running.url, count=200, label="crowd")
            runs = [
                await running.client.create_run(run_of(*(_job(f"j{n}", "true", "crowd") for n in range(250))))
                for _ in range(3)
            ]
            serving = asyncio.create_task(crowd.serve())
            for run in runs:
                view = await until_ended(running.client, run.id)
                assert len(view.jobs) == 250
            crowd.stop()
            await serving
            offered = Counter(crowd.offered)
            assert len(offered) == 750
            assert set(offered.values()) == {1}
            with sqlite3.connect(running.state_dir / "corral.db") as database:
                rows = database.execute("SELECT count(*), count(DISTINCT job_id) FROM attempts").fetchone()
            assert rows == (750, 750)

    asyncio.run(scenario())


def test_outputs_pass_along_needs_and_a_cancel_stops_the_process(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def scenario() -> None:
        async with server(config()) as running:
            first = _job(
                "first", 'echo "answer=42" >> "$CORRAL_OUTPUT"', outputs={"a": "${{ steps.s.outputs.answer }}"}
            )
            second = _job(
                "second", 'echo "got $A"', needs=(NeedSpec(job="first"),), env={"A": "${{ needs.first.outputs.a }}"}
            )
            run = await running.client.create_run(run_of(first, second))
            view = await until_ended(running.client, run.id)
            assert await whole_log(running, view.jobs[1]) == b"got 42\n"
            assert view.jobs[0].outputs == {"a": "42"}

            run = await running.client.create_run(
                run_of(_job("long", f"touch {begun}; sleep 600"), _job("more", "sleep 600"))
            )
            await eventually_async(begun.exists, "the job runs", 20)
            began = time.monotonic()
            await running.client.cancel_run(run.id)
            last: RunView | None = None
            async for view in running.client.watch_run(run.id):
                last = view
            assert last is not None
            assert last.state == "cancelled"
            assert set(states(last).values()) == {"cancelled"}
            assert time.monotonic() - began < 10

    asyncio.run(scenario())


def test_a_secret_reaches_its_job_and_nothing_else(tmp_path: Path) -> None:
    canary = "canary-7f3d1c9b5e"

    async def scenario() -> None:
        async with server(config()) as running:
            job = _job("j", 'echo "token is $TOKEN"; test ${#TOKEN} = 17', secrets=("TOKEN",))
            run = await running.client.create_run(run_of(job, secrets={"TOKEN": canary}))
            view = await until_ended(running.client, run.id)
            log = await whole_log(running, view.jobs[0])
            assert log.startswith(b"token is ")
            assert canary.encode() not in log
            for path in running.state_dir.rglob("*"):
                if path.is_file():
                    assert canary.encode() not in path.read_bytes(), path

    asyncio.run(scenario())
