# SPDX-License-Identifier: Apache-2.0
"""What a history's users ask for: random but valid workflows, and the shorthand with which tests write theirs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from corral.model.labels import labels
from corral.model.pools import Pool
from corral.model.spec import JobSpec, NeedSpec, NeedWhen, OnLost, RetrySpec, Scalar, StepSpec, WorkflowSpec
from corral.model.views import NewRun
from corral.sim.jobs import Script
from corral.workflow.lock import make_lock

LABELS = ("linux", "big", "gpu")


def step(name: str = "work", **script: float | int) -> StepSpec:
    """``step("work", seconds=3, log=100)``."""
    return StepSpec(name=name, script=str(Script(**script)), shell=("sh",))  # type: ignore[arg-type]


def job(
    name: str, *steps: StepSpec, needs: Sequence[str] = (), runs_on: Sequence[str] = ("linux",), **more: object
) -> JobSpec:
    """A job with one step of one second, if none is given."""
    return JobSpec(
        name=name,
        steps=steps or (step(seconds=1.0, log=100),),
        needs=tuple(NeedSpec(job=need) for need in needs),
        runs_on=tuple(runs_on),
        checkout=False,
        **more,  # type: ignore[arg-type]
    )


def workflow(*jobs: JobSpec, name: str = "ci") -> NewRun:
    """A run of a workflow of these jobs."""
    spec = WorkflowSpec(name=name, jobs=jobs)
    return NewRun(lock=make_lock([spec], {}), workflow=name)


def pool(name: str = "small", *, max_agents: int = 4, has: Sequence[str] = ("linux",), **more: object) -> Pool:
    return Pool(**{"name": name, "backend": "fake", "labels": labels(has), "max_agents": max_agents, **more})  # type: ignore[arg-type]


# --- by chance ---------------------------------------------------------------------------------------------


def some_pools(chance: random.Random) -> tuple[Pool, ...]:
    made = [pool("small", max_agents=chance.randint(1, 6), spawn_timeout=60.0, idle_timeout=40.0)]
    if chance.random() < 0.6:
        made.append(
            pool("big", max_agents=chance.randint(1, 3), has=("linux", "big"), spawn_timeout=60.0, idle_timeout=20.0)
        )
    return tuple(made)


def some_run(chance: random.Random, pools: Sequence[Pool]) -> NewRun:
    count = chance.choice((1, 1, 2, 3, 4, 6))
    made: list[JobSpec] = []
    for number in range(count):
        made.append(_some_job(chance, f"j{number}", made, pools))
    return workflow(*made)


def _some_job(chance: random.Random, name: str, before: Sequence[JobSpec], pools: Sequence[Pool]) -> JobSpec:
    needs = tuple(
        NeedSpec(job=other.name, when=chance.choice((NeedWhen.SUCCESS, NeedWhen.SUCCESS, NeedWhen.ALWAYS)))
        for other in before
        if chance.random() < 0.3
    )
    matrix: tuple[dict[str, Scalar], ...] = ()
    if chance.random() < 0.25:
        matrix = tuple({"n": n} for n in range(chance.randint(2, 5)))
    retry = None
    if chance.random() < 0.4:
        retry = RetrySpec(attempts=chance.randint(2, 4), delay=chance.choice((0.0, 1.0, 8.0)))
    return JobSpec(
        name=name,
        steps=tuple(_some_step(chance, f"s{n}") for n in range(chance.choice((1, 1, 2, 3)))),
        cleanup=(step("tidy", seconds=0.2, log=20),) if chance.random() < 0.2 else (),
        needs=needs,
        matrix=matrix,
        max_parallel=chance.randint(1, 2) if matrix and chance.random() < 0.4 else None,
        fail_fast=bool(matrix) and chance.random() < 0.3,
        runs_on=_some_labels(chance, pools),
        retry=retry,
        on_lost=chance.choice((None, None, OnLost.FAIL, OnLost.RETRY, OnLost.RETRY, OnLost.WAIT)),
        continue_on_error=chance.random() < 0.1,
        timeout=chance.choice((3600.0, 3600.0, 600.0, 15.0)),
        checkout=False,
    )


def _some_labels(chance: random.Random, pools: Sequence[Pool]) -> tuple[str, ...]:
    if chance.random() < 0.03:
        return ("nowhere",)
    if len(pools) > 1 and chance.random() < 0.25:
        return ("linux", "big")
    return ("linux",)


def _some_step(chance: random.Random, name: str) -> StepSpec:
    seconds = chance.choice((0.0, 0.05, 0.5, 2.0, 8.0, 30.0, 100.0))
    return step(
        name,
        seconds=round(seconds * chance.uniform(0.5, 1.5), 3),
        log=chance.choice((0, 40, 3000, 3000, 200_000)),
        burst=chance.choice((0, 0, 0, 0, 500, 1_500_000)),
        fail=chance.choice((0.0, 0.0, 0.0, 0.1, 0.6)),
    )
