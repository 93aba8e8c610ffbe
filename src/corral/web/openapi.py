# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, drawn from the table of operations."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from corral import __version__
from corral.model.views import LogEvent, Problem, RunView
from corral.web.operations import Answer, Operation
from corral.web.problems import MEDIA

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_ID = {"type": "string", "pattern": "^[a-z0-9_-]{1,64}$"}
_PATH_PARAMETERS: dict[str, tuple[str, Json]] = {
    "run_id": ("Id of a run.", _ID),
    "job_id": ("Id of a job.", _ID),
    "step": ("Number of the step, from 0.", {"type": "integer", "minimum": 0, "maximum": 9999}),
    "hash": (
        "SHA-256 of the archive, 64 lower-case hex digits.",
        {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    ),
    "token_id": ("Id of a token.", _ID),
    "agent_id": ("Id of an agent.", _ID),
    "name": ("Name of a registered workflow.", {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.-]{0,99}$"}),
}


def document(operations: Sequence[Operation]) -> Json:
    """OpenAPI 3.1, complete: every operation, parameter, body, answer and refusal."""
    return _document(tuple(operations))


@functools.lru_cache(maxsize=1)
def _document(operations: tuple[Operation, ...]) -> Json:
    kinds = _kinds(operations)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = {repr(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: Json = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Corral", "version": __version__, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(operations: Sequence[Operation]) -> list[Any]:
    kinds: dict[str, Any] = {repr(kind): kind for kind in (Problem, RunView, LogEvent)}
    for each in operations:
        bodies = [answer.body for answer in each.answers] + [each.body]
        fields = [field.type for field in msgspec.structs.fields(each.query)]
        kinds |= {repr(kind): kind for kind in [*bodies, *fields] if kind is not None and kind is not bytes}
    return list(kinds.values())


def _operation(each: Operation, schema_of: Json) -> Json:
    shown: Json = {
        "operationId": each.id,
        "summary": each.summary,
        "tags": [each.tag],
        "parameters": _parameters(each, schema_of),
        "responses": _responses(each, schema_of),
    }
    if each.role is not None:
        shown["security"] = [{"token": []}, *([{}] if each.local else [])]
        shown["description"] = f"Needs a token of role {each.role} or above."
    if each.body is not None:
        schema = {} if each.body is bytes else {"schema": schema_of[repr(each.body)]}
        shown["requestBody"] = {"required": each.body_required, "content": {each.body_media: schema}}
    return shown


def _parameters(each: Operation, schema_of: Json) -> list[Json]:
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_PARAMETERS[name][0],
            "schema": _PATH_PARAMETERS[name][1],
        }
        for name in re.findall(r"\{(\w+)\}", each.path)
    ]
    found += [_query_parameter(field, schema_of) for field in msgspec.structs.fields(each.query)]
    found += [_header_parameter(*header) for header in each.headers if header[0] != "Authorization"]
    return found


def _header_parameter(name: str, text: str, pattern: str) -> Json:
    schema = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}


def _query_parameter(field: Any, schema_of: Json) -> Json:
    schema = dict(schema_of[repr(field.type)])
    if "anyOf" in schema:
        # An optional value: in a query its absence says so, not the word null.
        schema = next(dict(each) for each in schema["anyOf"] if each.get("type") != "null")
    if not field.required and field.default is not None:
        schema["default"] = field.default
    return {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}


def _responses(each: Operation, schema_of: Json) -> Json:
    found = {str(answer.status): _answer(answer, schema_of) for answer in each.answers}
    statuses = {400, 422, 500, *each.errors}
    if each.role is not None:
        statuses |= {401, 403, 503}
    if each.body is not None:
        statuses.add(413)
    for status in sorted(statuses):
        found[str(status)] = _problem(HTTPStatus(status).phrase, schema_of, head=each.method == "HEAD")
    return found


def _answer(answer: Answer, schema_of: Json) -> Json:
    shown: Json = {"description": answer.description}
    if answer.body is not None:
        shown["content"] = {answer.media: {"schema": schema_of[repr(answer.body)]}}
    elif answer.media == "text/event-stream":
        shown["content"] = {answer.media: {"schema": {"type": "string"}}}
    elif answer.media:
        shown["content"] = {answer.media: {}}
    if answer.headers:
        shown["headers"] = {name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers}
    return shown


def _problem(phrase: str, schema_of: Json, *, head: bool) -> Json:
    shown: Json = {"description": phrase}
    if not head:
        shown["content"] = {MEDIA: {"schema": schema_of[repr(Problem)]}}
    return shown
