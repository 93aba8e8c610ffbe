# SPDX-License-Identifier: Apache-2.0
"""Python-function steps through a real agent, and what tells their endings apart."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from corral.model.spec import NeedResult, Reason, Result, SourceRef, StepKind, StepSpec
from tests.agent.coordinator import Coordinator, in_loop, order, running
from tests.agent.test_agent_process import archive

AUTHOR = b"""
import os, signal

def good(ctx):
    print("matrix", ctx.matrix["n"], "need", ctx.needs["build"].outputs["v"], "job", ctx.run["job"])
    return {"answer": 42}

def bad():
    raise ValueError("the author's own mistake")

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

def leaves():
    raise SystemExit(9)
"""


def function(name: str) -> StepSpec:
    digest = hashlib.sha256(AUTHOR).hexdigest()
    return StepSpec(name=name, kind=StepKind.FUNCTION, function=name, file="ci/steps.py", file_hash=digest)


async def run(coordinator: Coordinator, name: str, **fields: Any) -> Any:
    data = archive({"ci/steps.py": AUTHOR})
    digest = hashlib.sha256(data).hexdigest()
    coordinator.sources[digest] = data
    job = order(function(name), order_source=SourceRef(hash=digest, size=len(data)), **fields)
    return await coordinator.run(job)


def test_a_function_sees_its_context_and_returns_outputs(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            needs = {"build": NeedResult(result=Result.SUCCEEDED, outputs={"v": "7"})}
            end = await run(coordinator, "good", order_needs=needs, order_matrix={"n": 3})
            await agent.ended()
            assert coordinator.log("job_1") == b"matrix 3 need 7 job test\n"
            assert (end.result, end.outputs) == (Result.SUCCEEDED, {"answer": "42"})

    in_loop(work)


@pytest.mark.parametrize(
    ("name", "reason", "code", "log"),
    [
        ("bad", Reason.EXCEPTION, 1, b"ValueError: the author's own mistake"),
        ("leaves", Reason.EXCEPTION, 9, b""),
        ("not_there", Reason.EXCEPTION, 2, b"not_there"),
        ("dies", Reason.INTERPRETER_LOST, None, b""),
    ],
)
def test_the_endings_of_a_function_are_told_apart(
    tmp_path: Path, name: str, reason: Reason, code: int | None, log: bytes
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await run(coordinator, name)
            assert (end.result, end.reason) == (Result.FAILED, reason)
            assert coordinator.steps("job_1")[0].exit_code == code
            await agent.ended()
            assert log in coordinator.log("job_1")

    in_loop(work)
