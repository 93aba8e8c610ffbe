# SPDX-License-Identifier: Apache-2.0
"""A run on a commit that its agent fetches: from the API to the step, and nowhere the credential."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from bench.harness import server, until_ended

from corral.model.errors import Invalid
from corral.model.ids import RunId
from corral.model.spec import GitSource, JobSpec, StepSpec
from corral.model.views import NewRun, Rerun
from tests.agent.gitserver import Repository, serving
from tests.e2e.ownagent import own_agent
from tests.e2e.support import config, run_of, whole_log

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
TOKEN = "c4n4ry-repository-token"


def test_a_run_on_a_commit_its_rerun_and_no_trace_of_the_credential(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "git" / "repository")

    async def scenario(url: str) -> None:
        async with server(config()) as running:
            await own_agent(running, tmp_path / "agent", "own", git_protocols=("http",))
            step = StepSpec(name="s", script='cat file; git rev-parse HEAD; echo "<${CRED-}>"')
            new = run_of(JobSpec(name="j", steps=(step,), runs_on=("own",)), secrets={"CRED": TOKEN, "OTHER": "unused"})
            source = GitSource(url=url, commit=repository.first, credential="CRED")
            run = await running.client.create_run(_with(new, source))
            first = await until_ended(running.client, run.id)
            expected = f"one\n{repository.first}\n<>\n".encode()
            assert await whole_log(running, first.jobs[0]) == expected
            with pytest.raises(Invalid, match="CRED"):
                await running.client.rerun(RunId(run.id), Rerun())
            again = await running.client.rerun(RunId(run.id), Rerun(secrets={"CRED": TOKEN}))
            second = await until_ended(running.client, again.id)
            assert await whole_log(running, second.jobs[0]) == expected
            for file in (f for f in (*running.state_dir.rglob("*"), *tmp_path.rglob("*")) if f.is_file()):
                assert TOKEN.encode() not in file.read_bytes(), file

    with serving(repository.path.parent) as served:
        served.password = TOKEN
        asyncio.run(scenario(served.url()))
        assert len(served.given) >= 2 and served.leaks == []


def _with(new: NewRun, source: GitSource) -> NewRun:
    return msgspec.structs.replace(new, git=source)
