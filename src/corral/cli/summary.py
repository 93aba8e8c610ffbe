# SPDX-License-Identifier: Apache-2.0
"""A run in a table, and the commands to look further."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from corral.cli.logreading import incomplete
from corral.cli.output import clean, moment, seconds, table
from corral.runtime.clock import SECOND, parse_rfc3339

if TYPE_CHECKING:
    from corral.model.views import JobView, RunView, StepView


def run_state(run: RunView) -> str:
    return f"{run.state}, log incomplete" if run.log_incomplete else run.state


def run_lines(run: RunView) -> str:
    """Head and jobs of one run."""
    head = [f"run {run.id}  {run_state(run)}" + (f" ({run.reason})" if run.reason else "")]
    head.append(f"workflow {clean(run.workflow)}  created {moment(run.created_at)}")
    if run.title:
        head.append(clean(run.title))
    if run.original:
        head.append(f"a re-run of {run.original}")
    return "\n".join([*head, "", job_table(run)])


def job_table(run: RunView) -> str:
    """One line per job: where its seconds went, and why it ended so."""
    rows = [
        (
            job.name,
            job.state,
            seconds(job.queued),
            seconds(job.provisioned),
            seconds(job.running),
            seconds(job.total),
            note(job),
        )
        for job in run.jobs
    ]
    return table(("JOB", "STATE", "QUEUED", "PROVISIONED", "RUNNING", "TOTAL", ""), rows)


def step_table(jobs: Sequence[JobView]) -> str:
    """One line per step: how it ended, how much it printed."""
    rows = [
        (
            job.name,
            f"{step.index} {step.name}",
            step.state,
            _exit(step),
            seconds(_took(step)),
            "-" if step.log_size is None and not step.log_stored else size(step.log_size or step.log_stored),
            _step_note(step),
        )
        for job in jobs
        for step in job.steps
    ]
    return table(("JOB", "STEP", "STATE", "EXIT", "TOOK", "LOG", ""), rows)


def _exit(step: StepView) -> str:
    if step.signal is not None:
        return f"signal {step.signal}"
    return "-" if step.exit_code is None else str(step.exit_code)


def _took(step: StepView) -> float | None:
    if step.started_at is None or step.finished_at is None:
        return None
    return max(0.0, (parse_rfc3339(step.finished_at) - parse_rfc3339(step.started_at)) / SECOND)


def _step_note(step: StepView) -> str:
    missing = incomplete(step)
    ended = step.detail or step.reason if step.state != "succeeded" else ""
    return "; ".join(clean(part) for part in (ended, missing and f"log {missing}") if part)


def size(count: int) -> str:
    """``512 B``, ``1.5 KiB``, ``20.0 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def note(job: JobView, limit: int = 100) -> str:
    """Why it waits or how it ended, in one line."""
    text = clean(job.waiting_for or job.detail or job.reason)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def further(run: RunView, state_dir: Path | None, url: str | None) -> str:
    """The commands to look further, as they can be pasted."""
    where = f" --url {quote(url)}" if url else f" --state-dir {quote(str(state_dir))}" if state_dir else ""
    job = _interesting(run)
    corral = _called()
    lines = [
        f"{corral} logs {run.id} {quote(job)}{where}" if job else f"{corral} logs {run.id}{where}",
        f"{corral} why {run.id} {quote(job)}{where}" if job else f"{corral} runs {run.id}{where}",
        f"{corral} rerun {run.id}{where}",
    ]
    return "look further:\n" + "\n".join(f"  {line}" for line in lines)


def _called() -> str:
    """``corral`` where the shell finds it, else the way this program was called."""
    called = Path(sys.argv[0])
    return "corral" if shutil.which("corral") or called.name != "corral" else quote(str(called))


def _interesting(run: RunView) -> str:
    """The first job that did not succeed, else the last."""
    bad = [job.name for job in run.jobs if job.state in ("failed", "cancelled")]
    return bad[0] if bad else run.jobs[-1].name if run.jobs else ""
