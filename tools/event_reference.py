# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/reference/events.md`` from ``model/events.py``; with ``--check`` only says whether it is up to date."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from generated import main

from corral.model.events import (
    CONTENT_TYPE,
    SPEC_VERSION,
    CloudEvent,
    EventKind,
    Inventory,
    ListedInstance,
    Listing,
    ProvisionReport,
    Resources,
    ScaleDown,
    ScaleUp,
    Verdict,
)
from corral.model.ids import AgentId, ClusterId

PLACE = Path(__file__).parents[1] / "docs" / "reference" / "events.md"
HEAD = f"""\
# Events to provisioners

Written by `tools/event_reference.py` from `src/corral/model/events.py` (`make docs`). What a provisioner has to do
with them is in [provisioners.md](../provisioners.md).

Each is a CloudEvent {SPEC_VERSION} in structured mode (`{CONTENT_TYPE}`): `id` is the delivery's and the same at every
repetition, `subject` the agent id, `source` is `/corral/CLUSTER_ID`, and `data` is what follows here. Fields may be
added in later releases; ignore those that you do not know.
"""
CLUSTER, AGENT = ClusterId("corral-k3m5p7r9t2v4x6z8"), AgentId("agent_b2c3d4e5f6g7h8i9jk2m3n4p5q")
EXAMPLES: dict[EventKind, ScaleUp | ScaleDown | Inventory] = {
    EventKind.SCALE_UP: ScaleUp(
        cluster_id=CLUSTER,
        agent_id=AGENT,
        sequence=1,
        epoch="1.7",
        pool="cloud",
        labels=("corral:pool:cloud", "linux", "x86_64"),
        mandatory_labels=(),
        resources=Resources(cpu=2.0, memory=4 * 1024**3),
        coordinator_urls=("https://ci.example.com",),
        claim_code="claim_…",
        job_id="job_k3m5p7r9t2v4x6z8",
        run_id="run_k3m5p7r9t2v4x6z8",
    ),
    EventKind.SCALE_DOWN: ScaleDown(
        cluster_id=CLUSTER,
        agent_id=AGENT,
        sequence=2,
        epoch="1.7",
        pool="cloud",
        reason="job-complete",
        evidence={"job": "job_k3m5p7r9t2v4x6z8", "state": "succeeded"},
        provider_id="i-0abc",
    ),
    EventKind.INVENTORY: Inventory(cluster_id=CLUSTER, epoch="1.7", request="inventory-12"),
}
ANSWERS: tuple[type[Any], ...] = (Listing, ListedInstance, ProvisionReport)


def reference() -> str:
    """The whole file."""
    return "\n".join([HEAD, *_events(), *_answers(), *_verdicts(), *_schema()])


def _events() -> Iterator[str]:
    for kind, data in EXAMPLES.items():
        yield f"## `{kind}`\n\n{_text(type(data))}\n"
        yield _fields(type(data))
        event = CloudEvent(
            specversion=SPEC_VERSION,
            id="evt_k3m5p7r9t2v4x6z8",
            source=f"/corral/{CLUSTER}",
            type=kind,
            time="2026-01-31T10:00:00.000000Z",
            subject="" if isinstance(data, Inventory) else AGENT,
            datacontenttype="application/json",
            data=data,
        )
        yield f"```json\n{json.dumps(msgspec.to_builtins(event), indent=2, ensure_ascii=False)}\n```\n"


def _answers() -> Iterator[str]:
    yield "## What a provisioner says\n"
    for kind in ANSWERS:
        yield f"### {kind.__name__}\n\n{_text(kind)}\n"
        yield _fields(kind)


def _verdicts() -> Iterator[str]:
    yield "## What its answers mean\n\n| verdict | webhook, program, workflow |\n|---|---|"
    docs = _member_texts()
    yield "\n".join(f"| `{verdict}` | {docs[verdict.name]} |" for verdict in Verdict) + "\n"


def _schema() -> Iterator[str]:
    kinds = [type(data) for data in EXAMPLES.values()]
    schemas, components = msgspec.json.schema_components([*kinds, *ANSWERS], ref_template="#/$defs/{name}")
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": list(schemas),
        "$defs": components,
    }
    yield f"## JSON Schema\n\n```json\n{json.dumps(whole, indent=2, ensure_ascii=False)}\n```\n"


def _fields(kind: type[Any]) -> str:
    rows = ["| field | type | |", "|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        optional = "" if field.required else "optional"
        rows.append(f"| `{field.encode_name}` | {_type(field.type)} | {optional} |")
    return "\n".join(rows) + "\n"


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not getattr(kind, "__args__", None) else str(kind)
    text = text.replace("corral.model.ids.", "").replace("corral.model.events.", "")
    names = {"ClusterId": "text", "AgentId": "text", "str": "text", "int": "whole number", "float": "number"}
    names |= {"tuple[str, ...]": "list of texts", "dict[str, str]": "texts by name", "bool": "true or false"}
    names |= {"str | None": "text or null", "float | None": "number or null", "int | None": "whole number or null"}
    return names.get(text, f"`{text}`")


def _text(kind: type[Any]) -> str:
    words = " ".join((kind.__doc__ or "").split())
    return words.replace(":class:", "").replace("``", "`")


def _member_texts() -> dict[str, str]:
    """The lines below the members of ``Verdict``: no object carries them."""
    import ast
    import inspect

    (body,) = (node.body for node in ast.parse(inspect.getsource(Verdict)).body if isinstance(node, ast.ClassDef))
    found, name = {}, ""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=str(target))]):
                name = target
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = " ".join(text.split())
    return found


if __name__ == "__main__":
    sys.exit(main(PLACE, reference))
