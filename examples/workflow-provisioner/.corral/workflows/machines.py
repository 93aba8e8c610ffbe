# SPDX-License-Identifier: Apache-2.0
"""The provisioner of an event pool, as a workflow: put your cloud's API in the place of ``call``."""

import json
import os
import urllib.error
import urllib.request

from corral.workflow import StepContext, Workflow, event

CLOUD = "http://127.0.0.1:8093"

machines = Workflow(
    "machines",
    description="Makes, destroys and lists instances",
    on=event("corral.scaler.scale-up.v1", "corral.scaler.scale-down.v1", "corral.scaler.inventory.v1"),
    env={"CLOUD": CLOUD},
    timeout="10m",
)


def call(method, path, body=None):
    """One request to the cloud; its answer, or None where there is no such instance."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["CLOUD"] + path, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise SystemExit(f"the cloud answered {error.code} to {method} {path}: {error.read().decode()[:200]}") from None


def create(ctx: StepContext):
    """The instance is named after its agent, so that asking twice makes one."""
    seen = ctx.event
    agent = {
        "version": 1,
        "agent_id": seen["agent_id"],
        "coordinator_urls": seen["coordinator_urls"].split(","),
        "claim_code": os.environ["CORRAL_CLAIM_CODE"],
    }
    tags = {"cluster_id": seen["cluster_id"], "pool": seen["pool"]}
    made = call("PUT", f"/instances/{seen['agent_id']}", {"tags": tags, "agent": agent})
    return {"provider_id": made["id"]}


def destroy(ctx: StepContext):
    """That there is nothing to destroy is success."""
    call("DELETE", f"/instances/{ctx.event['agent_id']}")


def listing(ctx: StepContext):
    found = call("GET", f"/instances?cluster_id={ctx.event['cluster_id']}")
    instances = [
        {
            "agent_id": each["name"],
            "cluster_id": each["tags"]["cluster_id"],
            "pool": each["tags"]["pool"],
            "provider_id": each["id"],
        }
        for each in found
    ]
    return {"instances": json.dumps({"request": ctx.event["request"], "instances": instances})}


machines.job(
    "create",
    if_='event.type == "corral.scaler.scale-up.v1"',
    runs_on=["provisioner"],
    secrets=["CORRAL_CLAIM_CODE"],
    steps=[create],
)
machines.job(
    "destroy", if_='event.type == "corral.scaler.scale-down.v1"', runs_on=["provisioner"], retry=3, steps=[destroy]
)
machines.job("list", if_='event.type == "corral.scaler.inventory.v1"', runs_on=["provisioner"], steps=[listing])
