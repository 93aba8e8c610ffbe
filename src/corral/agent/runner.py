# SPDX-License-Identifier: Apache-2.0
"""The real :class:`~corral.agent.interface.JobRunner`: jobs as processes of this host."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from corral.agent.interface import Reports, RunningJob
from corral.agent.spool import Budget
from corral.model.agentconfig import AgentConfig
from corral.model.spec import JobOrder, StepKind


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
        self._budget = Budget(config.spool_limit)
        self._removals: set[asyncio.Task[None]] = set()

    def unfit(self, order: JobOrder) -> str:
        known = set(StepKind)
        strange = [step.name for step in (*order.spec.steps, *order.spec.cleanup) if step.kind not in known]
        return f"steps of an unknown kind: {', '.join(strange)}" if strange else ""

    def start(self, order: JobOrder, secrets: Mapping[str, str], reports: Reports) -> RunningJob:
        # Imported with the first job: it is none of what registering needs.
        from corral.agent.job import Host, LocalJob
        from corral.agent.source import Sources

        work, cache = Path(self._config.work_dir), Path(self._config.cache_dir)
        host = Host(
            agent_id=self._config.agent_id,
            jobs=work / "jobs",
            spool=work,
            cache=cache,
            budget=self._budget,
            sources=Sources(cache, coordinators=self._coordinators, headers=lambda: self._headers),
            variables=dict(os.environ),
            inherit=self._config.inherit_env,
            own_prefixes=(sys.prefix, os.environ.get("VIRTUAL_ENV", "")) if sys.prefix != sys.base_prefix else (),
            nice=self._nice,
            alone=self._alone,
            removals=self._removals,
        )
        return LocalJob(order, secrets, reports, host)

    async def close(self) -> None:
        self._budget.close()
        await asyncio.gather(*self._removals, return_exceptions=True)
