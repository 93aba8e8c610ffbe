# SPDX-License-Identifier: Apache-2.0
"""Logs through the whole pipe: bursts, one endless line, binary, followed while they grow."""

from __future__ import annotations

import asyncio
import hashlib

from bench.harness import server, until_ended

from corral.model.spec import JobSpec, StepSpec
from tests.e2e.support import config, run_of, verified, whole_log

MIB = 1024 * 1024


def _job(name: str, script: str) -> JobSpec:
    return JobSpec(name=name, steps=(StepSpec(name="s", script=script),), runs_on=("local",), checkout=False)


def test_a_burst_right_before_the_end_and_a_line_of_ten_mebibytes_are_complete() -> None:
    async def scenario() -> None:
        async with server(config()) as running:
            run = await running.client.create_run(
                run_of(
                    _job(
                        "burst",
                        "echo first; head -c 10485760 /dev/urandom | tee sum | cat; sha256sum < sum > /dev/null",
                    ),
                    _job("line", "head -c 10485760 /dev/zero | tr '\\0' x"),
                )
            )
            view = await until_ended(running.client, run.id)
            burst, line = view.jobs
            assert len(await whole_log(running, burst)) == 6 + 10 * MIB
            assert await whole_log(running, line) == b"x" * (10 * MIB)
            await verified(running, view)

    asyncio.run(scenario())


def test_following_a_log_sees_every_byte_once_and_ends_after_the_last() -> None:
    async def scenario() -> None:
        async with server(config()) as running:
            job = JobSpec(
                name="j",
                runs_on=("local",),
                checkout=False,
                steps=(
                    StepSpec(name="one", script="for n in 1 2 3; do echo $n; sleep 0.1; done"),
                    StepSpec(name="quiet", script="true"),
                    StepSpec(name="two", script="head -c 300000 /dev/urandom; echo end"),
                ),
            )
            run = await running.client.create_run(run_of(job))
            seen: dict[int, bytes] = {}
            finals = []
            async for part in running.client.follow_log(run.jobs[0].id):
                assert part.offset == len(seen.get(part.step, b""))
                seen[part.step] = seen.get(part.step, b"") + part.data
                finals += [part.step] if part.final else []
            assert seen[0] == b"1\n2\n3\n"
            assert finals == [0, 1, 2]
            whole = await running.client.job(run.jobs[0].id)
            assert hashlib.sha256(seen[2]).hexdigest() == whole.steps[2].log_digest
            assert len(seen[2]) == 300004

    asyncio.run(scenario())
