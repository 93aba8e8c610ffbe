# SPDX-License-Identifier: Apache-2.0
"""From a work tree to a finished run: what ``run``, ``submit``, ``rerun`` and ``demo`` have in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.exits import ExitCode
from corral.cli.failing import say
from corral.cli.interrupts import Interrupts
from corral.cli.output import clean, write, write_json
from corral.cli.progress import Screen, screen
from corral.cli.summary import further, job_table, run_state
from corral.model.errors import CorralError, Fault, Invalid, Refused
from corral.model.ids import RunId
from corral.model.views import NewRun, RegisterWorkflows
from corral.runtime.clock import SystemClock

if TYPE_CHECKING:
    from corral.cli.source import Source
    from corral.cli.wired import AllInOne, Wiring
    from corral.client import Client
    from corral.model.spec import GitSource, Lock
    from corral.model.views import RunView

KILL_PATIENCE = 2.0
"""Seconds that a killing cancel may take to be said; then the coordinator ends without it."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What of a tree is to run, as the options say."""

    path: Path
    workflow: str = ""
    jobs: tuple[str, ...] = ()
    env: dict[str, str]
    secrets: dict[str, str]
    git: GitSource | None = None
    """What the jobs shall run on instead of the tree."""


@contextlib.contextmanager
def prepared(wanted: Wanted) -> Iterator[tuple[NewRun, Source | None]]:
    """Compile the tree (a stale lock file does not matter) and take a snapshot of it, if its jobs run on it.

    :raises Invalid: the workflows, the workflow's name or a job's name, with every fault.
    :raises NotATree, TooLarge: see :func:`corral.cli.source.snapshot`.
    """
    from corral.cli.source import snapshot
    from corral.compile import compile_tree, find_tree

    tree = find_tree(wanted.path)
    lock = compile_tree(tree, diagnose=lambda text: say(text.rstrip("\n")))
    workflow = _workflow(lock, wanted)
    _say_unused(lock, workflow, wanted)
    if wanted.git is not None:
        yield _of_commit(lock, workflow, wanted, wanted.git), None
        return
    with snapshot(tree, say) as source:
        history = source.history
        event = {"kind": "local", "commit": history.head, "branch": history.branch}
        yield (
            NewRun(
                lock=lock,
                workflow=workflow,
                source=source.ref,
                title=clean(f"{tree.name}: {history.subject}"),
                jobs=wanted.jobs,
                env=wanted.env,
                secrets=wanted.secrets,
                event=event,
            ),
            source,
        )


@contextlib.contextmanager
def snapshot_of(path: Path, names: tuple[str, ...]) -> Iterator[tuple[RegisterWorkflows, Source]]:
    """Compile the tree and take a snapshot of it, to register its workflows. :raises: as :func:`prepared`."""
    from corral.cli.source import snapshot
    from corral.compile import compile_tree, find_tree

    tree = find_tree(path)
    lock = compile_tree(tree, diagnose=lambda text: say(text.rstrip("\n")))
    with snapshot(tree, say) as source:
        yield RegisterWorkflows(lock=lock, workflows=names, source=source.ref), source


def _of_commit(lock: Lock, workflow: str, wanted: Wanted, git: GitSource) -> NewRun:
    return NewRun(
        lock=lock,
        workflow=workflow,
        git=git,
        title=clean(f"{git.url}: {git.commit[:12]}"),
        jobs=wanted.jobs,
        env=wanted.env,
        secrets=wanted.secrets,
        event={"kind": "git", "commit": git.commit, "repository": git.url},
    )


def _say_unused(lock: Lock, workflow: str, wanted: Wanted) -> None:
    """A secret reaches only the jobs that name it: one that none names is worth a word, and so is an empty one."""
    jobs = [job for each in lock.workflows if each.name == workflow for job in each.jobs]
    named = {name for job in jobs for name in job.secrets}
    for name, value in wanted.secrets.items():
        if name not in named:
            say(f"no job of {workflow} asks for the secret {name}; a job that needs it says secrets=[{name!r}]")
        elif not value:
            say(f"the secret {name} is empty")


def _workflow(lock: Lock, wanted: Wanted) -> str:
    """The one that is named, or the only one; jobs and secrets are checked here so that nothing is uploaded in vain."""
    names = [workflow.name for workflow in lock.workflows]
    if not wanted.workflow and len(names) > 1:
        raise Refused(f"there are {len(names)} workflows; choose one with --workflow: {', '.join(names)}")
    name = wanted.workflow or names[0]
    chosen = next((workflow for workflow in lock.workflows if workflow.name == name), None)
    if chosen is None:
        fault = Fault(path="--workflow", message=f"no workflow {name!r}", remedy=f"there is {', '.join(names)}")
        raise Invalid("the run", [fault])
    jobs = [job.name for job in chosen.jobs]
    faults = [
        Fault(path="--job", message=f"workflow {name} has no job {job!r}", remedy=f"there is {', '.join(jobs)}")
        for job in wanted.jobs
        if job not in jobs
    ]
    if faults:
        raise Invalid("the run", faults)
    return name


async def submit(client: Client, new: NewRun, source: Source | None) -> RunView:
    """Upload the source, unless the server has it, and create the run."""
    if source is not None and await client.source_size(source.hash) is None:
        await client.put_source(source.hash, source.chunks())
    return await client.create_run(new)


async def follow(
    client: Client, run: RunView, shown: Screen, interrupts: Interrupts, kill: Callable[[], Awaitable[object]]
) -> RunView:
    """Show the run until it has ended. The first interrupt cancels it, the second kills it and calls ``kill``."""
    run_id = RunId(run.id)
    latest = [run]
    watching = asyncio.create_task(_watch(client, run_id, shown, latest))
    seen = 0
    try:
        while True:
            signal = asyncio.create_task(interrupts.after(seen))
            await asyncio.wait({watching, signal}, return_when=asyncio.FIRST_COMPLETED)
            signal.cancel()
            if watching.done():
                watching.result()
                return latest[0]
            seen = interrupts.count
            if seen > 1:
                shown.tell("killing")
                await _cancel(client, run_id, force=True)
                await kill()
                return latest[0]
            shown.tell("cancelling; press Ctrl-C again to kill")
            await _cancel(client, run_id, force=False)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(client: Client, run_id: RunId, shown: Screen, latest: list[RunView]) -> None:
    async for view in client.watch_run(run_id):
        latest[0] = view
        shown.show(view)


async def _cancel(client: Client, run_id: RunId, *, force: bool) -> None:
    # It may have ended by itself in between, or the coordinator may be too busy: killing goes on all the same.
    with contextlib.suppress(CorralError, TimeoutError):
        await asyncio.wait_for(client.cancel_run(run_id, force=force), KILL_PATIENCE if force else None)


async def run_here(
    wiring: Wiring,
    state_dir: Path,
    begin: Callable[[Client], Awaitable[RunView]],
    *,
    max_agents: int | None,
    as_json: bool,
    shown_dir: Path | None,
) -> int:
    """Begin a run on a coordinator inside this process, follow it to its end, print it; the exit code."""
    interrupts = Interrupts()
    with interrupts.watched():
        async with wiring.all_in_one(state_dir, max_agents=max_agents) as whole:
            return await _run_on(whole, begin, interrupts, as_json=as_json, shown_dir=shown_dir)


async def _run_on(
    whole: AllInOne,
    begin: Callable[[Client], Awaitable[RunView]],
    interrupts: Interrupts,
    *,
    as_json: bool,
    shown_dir: Path | None,
) -> int:
    with screen(SystemClock()) as shown:
        run = await begin(whole.client)
        following = follow(whole.client, run, shown, interrupts, lambda: whole.stop(kill=True))
        view = await _unless(whole, following)
    left = await whole.stop(kill=interrupts.count > 1)
    if left:
        say(f"{left} agents are not confirmed gone; the next start on this state directory takes care of them")
    return report(view, interrupts, as_json=as_json, state_dir=shown_dir, url=None)


async def _unless(whole: AllInOne, following: Coroutine[None, None, RunView]) -> RunView:
    """What ``following`` returns. :raises CorralError: nothing can go on any more; everything is stopped."""
    task = asyncio.create_task(following)
    trouble = asyncio.create_task(whole.trouble())
    try:
        await asyncio.wait({task, trouble}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        await whole.stop(kill=True)
        raise trouble.result()
    finally:
        for each in (task, trouble):
            each.cancel()
        await asyncio.gather(task, trouble, return_exceptions=True)


async def follow_there(client: Client, run: RunView, *, as_json: bool, state_dir: Path | None, url: str | None) -> int:
    """Follow a run on a server that goes on without us; the exit code."""
    interrupts = Interrupts()

    async def nothing() -> None:
        pass

    with interrupts.watched(), screen(SystemClock()) as shown:
        view = await follow(client, run, shown, interrupts, nothing)
    return report(view, interrupts, as_json=as_json, state_dir=state_dir, url=url)


def report(run: RunView, interrupts: Interrupts, *, as_json: bool, state_dir: Path | None, url: str | None) -> int:
    """Print how it ended; the exit code."""
    if as_json:
        write_json(run)
    else:
        write(job_table(run))
        say(f"run {run.id} {run_state(run)}" + (f": {run.reason}" if run.reason else ""))
        say(further(run, state_dir, url))
    if interrupts.count:
        return interrupts.exit_code
    return ExitCode.OK if run.state == "succeeded" else ExitCode.RUN_FAILED
