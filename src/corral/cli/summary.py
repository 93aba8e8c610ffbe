# SPDX-License-Identifier: Apache-2.0
"""A run in a table, and the commands to look further."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from corral.cli.output import clean, moment, seconds, table

if TYPE_CHECKING:
    from corral.model.views import JobView, RunView


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


def note(job: JobView, limit: int = 100) -> str:
    """Why it waits or how it ended, in one line."""
    text = clean(job.waiting_for or job.detail or job.reason)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def further(run: RunView, state_dir: Path | None, url: str | None) -> str:
    """The commands to look further, as they can be pasted."""
    where = f" --url {quote(url)}" if url else f" --state-dir {quote(str(state_dir))}" if state_dir else ""
    job = _interesting(run)
    lines = [
        f"corral logs {run.id} {quote(job)}{where}" if job else f"corral logs {run.id}{where}",
        f"corral why {run.id} {quote(job)}{where}" if job else f"corral runs {run.id}{where}",
        f"corral rerun {run.id}{where}",
    ]
    return "look further:\n" + "\n".join(f"  {line}" for line in lines)


def _interesting(run: RunView) -> str:
    """The first job that did not succeed, else the last."""
    bad = [job.name for job in run.jobs if job.state in ("failed", "cancelled")]
    return bad[0] if bad else run.jobs[-1].name if run.jobs else ""
