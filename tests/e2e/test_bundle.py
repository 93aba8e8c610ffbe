# SPDX-License-Identifier: Apache-2.0
"""A bundle that was moved, in an empty environment, at a real server."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.harness import online, server, until_ended

from corral.cli.bundle import Target, build
from corral.model.spec import JobSpec, StepSpec
from corral.model.views import NewToken
from tests.e2e.support import config, run_of, whole_log


def test_a_moved_bundle_registers_and_runs_a_job(tmp_path: Path) -> None:
    build(tmp_path / "made", Target.parse(f"3.{sys.version_info.minor}", os.uname().machine))
    moved = tmp_path / "moved here"
    shutil.move(tmp_path / "made", moved)
    token = tmp_path / "agent.token"

    async def scenario() -> None:
        async with server(config()) as running:
            made = await running.client.create_token(NewToken(name="b", role="agent", labels=("bundled",)))
            token.write_text(made.token)
            # -I: neither this tree nor what is installed here; -S: no site-packages either.
            command = ["env", "-i", sys.executable, "-I", "-S", str(moved / "corral-agent"), "--url", running.url]
            command += ["--token-file", str(token), "--work-dir", str(tmp_path / "state")]
            running.agents.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            await online(running, 1)
            step = StepSpec(name="s", script='echo "$CORRAL_JOB in $PATH"; env | grep -c PYTHON || true')
            run = await running.client.create_run(
                run_of(JobSpec(name="j", steps=(step,), runs_on=("bundled",), checkout=False))
            )
            view = await until_ended(running.client, run.id)
            log = (await whole_log(running, view.jobs[0])).decode()
            assert log == "j in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n0\n"

    asyncio.run(scenario())
