# SPDX-License-Identifier: Apache-2.0
"""Workflows are registered with the server, looked at, and removed: what events may start."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from corral.decide import provisioning
from corral.decide.matching import Offered
from corral.model.errors import Fault, Invalid, NotFound, Refused
from corral.model.events import WorkflowTarget, target_key
from corral.model.pools import Pool
from corral.model.records import RegisteredWorkflow
from corral.model.spec import WorkflowSpec
from corral.model.triggers import PROVISIONER_EVENTS
from corral.model.views import RegisterWorkflows, WorkflowView
from corral.runtime.clock import rfc3339
from corral.store.repo import agents
from corral.store.repo import workflows as workflows_rows
from corral.workflow.words import did_you_mean

NAMED = 5
"""Instances that a refusal names."""


def chosen(wanted: RegisterWorkflows) -> tuple[WorkflowSpec, ...]:
    """Those that are named; without names every one that declares an event. :raises Invalid: with every fault."""
    there = {workflow.name: workflow for workflow in wanted.lock.workflows}
    names = wanted.workflows or tuple(name for name, spec in there.items() if spec.events)
    faults = [_unknown(index, name, there) for index, name in enumerate(names) if name not in there]
    found = [there[name] for name in dict.fromkeys(names) if name in there]
    faults += [_deaf(spec) for spec in found if not spec.events]
    if not names:
        faults.append(
            Fault(path="workflows", message="no workflow here declares an event", remedy="Workflow(…, on=event(…))")
        )
    if faults:
        raise Invalid("the registration", faults)
    return tuple(found)


def _unknown(index: int, name: str, there: dict[str, WorkflowSpec]) -> Fault:
    message = f"no workflow {name!r}{did_you_mean(name, there)}"
    return Fault(path=f"workflows[{index}]", message=message, remedy=f"there are: {', '.join(there) or 'none'}")


def _deaf(spec: WorkflowSpec) -> Fault:
    return Fault(
        file=spec.file,
        line=spec.line,
        path=f"{spec.name}.on",
        message=f"workflow {spec.name!r} declares no event: nothing would ever start it here",
        remedy="Workflow(…, on=event(…))",
    )


def register(
    connection: Connection, specs: Sequence[WorkflowSpec], wanted: RegisterWorkflows, pools: Sequence[Pool], by: str
) -> None:
    """All of them or none. :raises Invalid: one of them cannot be a provisioner. :raises Refused: another project has
    one of the names."""
    static = static_offers(connection)
    faults = [
        fault
        for spec in specs
        if PROVISIONER_EVENTS & set(spec.events)
        for fault in provisioning.workflow_faults(spec, pools, static)
    ]
    if faults:
        raise Invalid("the registration", faults)
    for spec in specs:
        before = workflows_rows.get(connection, spec.name)
        if before is not None and before.project != wanted.project:
            raise Refused(f"workflow {spec.name} is registered in project {before.project}; name yours differently")
        workflows_rows.put(
            connection, spec, project=wanted.project, lock_hash=wanted.lock.hash, source=wanted.source, by=by
        )


def static_offers(connection: Connection) -> tuple[Offered, ...]:
    """What the static agents that there are can run."""
    return tuple(Offered(labels=row.labels) for row in agents.live(connection) if row.kind == "static")


def remove(connection: Connection, name: str, pools: Sequence[Pool]) -> RegisteredWorkflow:
    """What it was. :raises NotFound: there is none. :raises Refused: a pool, or an instance, needs it."""
    registered = existing(connection, name)
    # Of a pool that drains only its instances matter, and they are asked for below.
    users = provisioning.users_of(name, [pool for pool in pools if not pool.draining])
    if users:
        raise Refused(
            f"workflow {name} is the provisioner of pool {', '.join(users)}; give the pool another one, or remove it, "
            "in the configuration first"
        )
    key = target_key(WorkflowTarget(workflow=name))
    agents_left = workflows_rows.needed_by(connection, [key], NAMED + 1)
    if agents_left:
        more = " and more" if len(agents_left) > NAMED else ""
        raise Refused(
            f"workflow {name} made {', '.join(agents_left[:NAMED])}{more}, and only it can destroy them; wait until "
            "they are gone"
        )
    workflows_rows.remove(connection, name)
    return registered


def existing(connection: Connection, name: str) -> RegisteredWorkflow:
    """:raises NotFound: no workflow of this name is registered."""
    found = workflows_rows.get(connection, name)
    if found is None:
        known = [row.name for row in workflows_rows.every(connection)]
        raise NotFound(f"no workflow {name!r} is registered{did_you_mean(name, known)}")
    return found


def view(row: RegisteredWorkflow, pools: Sequence[Pool]) -> WorkflowView:
    spec = row.spec
    return WorkflowView(
        name=row.name,
        project=row.project,
        description=spec.description,
        events=spec.events,
        jobs=tuple(job.name for job in spec.jobs),
        pools=provisioning.users_of(row.name, pools),
        file=spec.file,
        line=spec.line,
        lock_hash=row.lock_hash,
        source_hash=row.source_hash or "",
        source_size=row.source_size,
        registered_at=rfc3339(row.registered_at),
        registered_by=row.registered_by,
        version=row.version,
    )
