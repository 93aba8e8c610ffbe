# SPDX-License-Identifier: Apache-2.0
"""The real :class:`~corral.agent.interface.JobRunner`: jobs as processes of this host."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from corral.agent import cgroup
from corral.agent.interface import Reports, RunningJob
from corral.agent.spool import Budget
from corral.model.agentconfig import AgentConfig
from corral.model.spec import JobOrder, StepKind

MIB = 1024 * 1024


class HostRunner:
    """:param coordinators: URLs to fetch sources from, best first. :param key: authenticates fetching.
    :param nice: the priority of steps. :param alone: this process has no other children than its jobs' and is their
    subreaper, so that whatever descends from it when a job ends is killed.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        coordinators: Callable[[], Sequence[str]],
        key: str,
        nice: int = 0,
        alone: bool = False,
    ) -> None:
        self._config = config
        self._coordinators = coordinators
        self._headers = {"Authorization": f"Bearer {key}", "Corral-Agent": config.agent_id}
        self._nice = nice
        self._alone = alone
        self._budget = Budget(config.spool_limit, drop=config.spool_full == "drop")
        self._cgroups = cgroup.parents()
        if alone:
            cgroup.clear(self._cgroups)
        self._removals: set[asyncio.Task[None]] = set()

    def unfit(self, order: JobOrder) -> str:
        known = set(StepKind)
        strange = [step.name for step in (*order.spec.steps, *order.spec.cleanup) if step.kind not in known]
        if strange:
            return f"steps of an unknown kind: {', '.join(strange)}"
        if order.spec.git is not None and order.spec.checkout and shutil.which("git") is None:
            return "the job's source is a git repository, and this agent has no git"
        return self._no_room()

    def _no_room(self) -> str:
        place = os.statvfs(self._config.work_dir)
        free = place.f_bavail * place.f_frsize
        if free >= self._config.min_free:
            return ""
        return (
            f"{free // MIB} MiB are free in {self._config.work_dir}, a job needs {self._config.min_free // MIB} MiB: "
            "make room, or lower min_free in the agent's configuration"
        )

    def start(self, order: JobOrder, secrets: Mapping[str, str], reports: Reports) -> RunningJob:
        # Imported with the first job: it is none of what registering needs.
        from corral.agent.environment import base, inherited
        from corral.agent.gitfetch import GitFetch
        from corral.agent.job import Host, LocalJob
        from corral.agent.pyenv import Environments
        from corral.agent.source import Sources

        config = self._config
        work, cache = Path(config.work_dir), Path(config.cache_dir)
        own_prefixes = (sys.prefix, os.environ.get("VIRTUAL_ENV", "")) if sys.prefix != sys.base_prefix else ()
        outside = {
            **base(os.environ, home="/", tmp="/tmp", own_prefixes=own_prefixes),
            **inherited(os.environ, config.inherit_env),
        }
        host = Host(
            agent_id=self._config.agent_id,
            jobs=work / "jobs",
            spool=work,
            cache=cache,
            budget=self._budget,
            sources=Sources(
                cache,
                coordinators=self._coordinators,
                headers=lambda: self._headers,
                limit=config.source_cache_limit,
            ),
            git=GitFetch(protocols=config.git_protocols, env=outside),
            environments=Environments(cache, limit=config.python_cache_limit),
            cgroups=self._cgroups,
            variables=dict(os.environ),
            inherit=self._config.inherit_env,
            own_prefixes=own_prefixes,
            nice=self._nice,
            alone=self._alone,
            removals=self._removals,
        )
        return LocalJob(order, secrets, reports, host)

    async def close(self) -> None:
        self._budget.close()
        await asyncio.gather(*self._removals, return_exceptions=True)
