# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/api.md`` from the table of operations; with ``--check`` only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from generated import main

import corral.web.app  # noqa: F401  (fills the table)
from corral.web.bodies import BODY_LIMIT
from corral.web.operations import OPERATIONS
from corral.web.sources import SOURCE_LIMIT

PLACE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = f"""\
# The HTTP API

Written by `tools/api_reference.py` from the table of operations (`make docs`). The server shows the same, with every
parameter and schema, as an OpenAPI 3.1 document at `/api/v1/openapi.json`.

- **Who asks**: `Authorization: Bearer TOKEN`. Roles include the ones before them: viewer, operator, admin.
- **Bodies** are JSON, at most {BODY_LIMIT // 1024**2} MiB; a source archive may have {SOURCE_LIMIT // 1024**3} GiB.
  Unknown fields and unknown query parameters are refused.
- **Times** are RFC 3339 in UTC with microseconds, durations seconds, sizes bytes.
- **Lists** of runs come in pages: `next` is the `cursor` of the following one, empty at the end.

## Refusals

Every refusal is `application/problem+json` (RFC 9457). `code` is stable, `detail` is a sentence, `faults` lists *every*
fault of a body or query with its place, and `retry_after` (also the header `Retry-After`) says that the same call may
succeed later. The header `Corral-Problem` repeats the code, for answers without a body.

```json
{{"type": "urn:corral:problem:invalid", "title": "Unprocessable Entity", "status": 422, "code": "invalid",
 "detail": "the body: 2 faults", "retry_after": null,
 "faults": ["$.jobs[0]: 1 is not of type 'string'", "$: no field 'titel' here (did you mean 'title'?)"]}}
```

## Following

`/api/v1/runs/RUN/events` and `/api/v1/jobs/JOB/log/events` are server-sent events. A stream ends with an event `end`;
one that ends without it was cut (by the network, or by a server that stops), and its reader comes back. A log event
carries the bytes of a log in base64, and its `id` is `STEP:OFFSET`, where to go on: sent back as `Last-Event-ID` (or
the query `from`), nothing is missing and nothing comes twice. In silence a comment comes every 15 seconds. `problem`
carries a refusal that came up on the way.

A log can also be read by byte range: `Range: bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LAST_N`. While it grows its
size is `*` in `Content-Range`, and `Corral-Log-Final` is `false`.

## Operations

| operation | role | does |
|---|---|---|
"""
FOOT = """
Agents connect to `/agent/v1` with a WebSocket, subprotocol `corral.agent.v1`: binary frames of MessagePack, at most
1 MiB.
"""


def reference() -> str:
    """The whole file."""
    rows = [f"| `{each.method} {each.path}` | {each.role or 'none'} | {each.summary} |" for each in OPERATIONS]
    return HEAD + "\n".join(rows) + "\n" + FOOT


if __name__ == "__main__":
    sys.exit(main(PLACE, reference))
