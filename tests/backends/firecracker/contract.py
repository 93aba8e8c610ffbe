# SPDX-License-Identifier: Apache-2.0
"""A server that holds every request to Firecracker's public API description, and answers by it.

It knows no Firecracker beyond that document: an unknown path, method, field, or a value outside its schema is
answered with 400 and a ``fault_message``, as Firecracker does. The metadata store is real.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import h11
import pytest
from jsonschema import Draft4Validator
from ruamel.yaml import YAML

DOCUMENT = Path(__file__).resolve().parents[4] / "shared" / "data" / "firecracker-openapi.yaml"
METHODS = ("get", "put", "patch")
# The document requires every field of a "subset", which its own text contradicts.
PARTIAL = {("PATCH", "/machine-config")}


@cache
def description() -> dict[str, Any]:
    """The document, every object closed to unknown fields; skips where it is absent."""
    if not DOCUMENT.exists():
        pytest.skip("Firecracker's API description is not beside the repository (../shared/data)")
    loaded: dict[str, Any] = YAML(typ="safe").load(DOCUMENT.read_text(encoding="utf-8"))
    for definition in loaded["definitions"].values():
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
        _mend(definition)
    return loaded


def _mend(schema: dict[str, Any]) -> None:
    """An enum's bare None means the string; formats that are regular expressions are dropped."""
    if "enum" in schema:
        schema["enum"] = ["None" if value is None else value for value in schema["enum"]]
    schema.pop("format", None)
    for inner in schema.get("properties", {}).values():
        _mend(inner)
    if "items" in schema:
        _mend(schema["items"])


def operations() -> list[tuple[str, str]]:
    """``(method, path template)`` of all there are."""
    return [
        (method.upper(), path) for path, item in description()["paths"].items() for method in METHODS if method in item
    ]


def operation(method: str, template: str) -> dict[str, Any]:
    found: dict[str, Any] = description()["paths"][template][method.lower()]
    return found


def body_schema(method: str, template: str) -> dict[str, Any] | None:
    """The schema of the request's body; ``None`` where there is none."""
    parameters = operation(method, template).get("parameters", [])
    schema = next((p["schema"] for p in parameters if p["in"] == "body"), None)
    if schema is None or (method, template) not in PARTIAL:
        return schema
    part = copy.deepcopy(resolved(schema))
    part.pop("required", None)
    return part


def answer_schema(method: str, template: str) -> dict[str, Any] | None:
    answers = operation(method, template)["responses"]
    found: dict[str, Any] | None = answers.get(200, answers.get("200", {})).get("schema")
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = description()["definitions"][schema["$ref"].rsplit("/", 1)[1]]
        return found
    return schema


def full(schema: dict[str, Any], name: str = "value") -> Any:
    """A value with *every* field that the schema knows."""
    schema = resolved(schema)
    if "enum" in schema:
        return schema["enum"][-1]
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {key: full(inner, key) for key, inner in schema["properties"].items()}
        case "object":
            return {"key": "text"}
        case "array":
            return [full(schema["items"], name)]
        case "boolean":
            return True
        case "integer":
            return max(7, schema.get("minimum", 0))
        case _:
            return f"a {name}"


def faults(value: object, schema: dict[str, Any]) -> list[str]:
    """What does not fit the schema."""
    document = {**schema, "definitions": description()["definitions"]}
    return [error.message for error in Draft4Validator(document).iter_errors(value)]


def template_of(path: str) -> str | None:
    for template in description()["paths"]:
        pattern = re.sub(r"\{[^}]+\}", "[^/]+", template)
        if re.fullmatch(pattern, path):
            return str(template)
    return None


class Contract:
    """What the server has seen, and its metadata store."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, object]] = []
        self.connections = 0
        self.store: object = None

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """``(status, JSON value or None)``."""
        template = template_of(path)
        if template is None or method.lower() not in description()["paths"][template]:
            return 400, {"fault_message": f"Invalid request method and/or path: {method} {path}."}
        value = json.loads(body) if body else None
        self.seen.append((method, path, value))
        wrong = self._faults(method, template, path, value)
        if wrong:
            return 400, {"fault_message": "; ".join(wrong)}
        return self._effect(method, template, value)

    def _faults(self, method: str, template: str, path: str, value: object) -> list[str]:
        schema = body_schema(method, template)
        if schema is None:
            return [] if value is None else ["a body where none belongs"]
        required = any(p.get("required") for p in operation(method, template)["parameters"] if p["in"] == "body")
        if value is None:
            return ["the body is missing"] if required else []
        wrong = faults(value, schema)
        if "{" in template and isinstance(value, dict):
            key = re.findall(r"\{([^}]+)\}", template)[0]
            if value.get(key) != path.rsplit("/", 1)[1]:
                wrong.append("path and body name different ids")
        return wrong

    def _effect(self, method: str, template: str, value: object) -> tuple[int, object]:
        if template == "/mmds":
            return self._metadata(method, value)
        return _answer_to(method, template)

    def _metadata(self, method: str, value: object) -> tuple[int, object]:
        if method == "GET":
            return 200, self.store if self.store is not None else {}
        self.store = value if method == "PUT" else {**(self.store or {}), **value}  # type: ignore[dict-item]
        return 204, None


@cache
def _answer_to(method: str, template: str) -> tuple[int, object]:
    schema = answer_schema(method, template)
    return (204, None) if schema is None else (200, full(schema))


class _Connection(asyncio.Protocol):
    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._http = h11.Connection(our_role=h11.SERVER)
        self._body = b""
        self._request: h11.Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._contract.connections += 1

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            match event:
                case h11.Request():
                    self._request, self._body = event, b""
                case h11.Data():
                    self._body += event.data
                case h11.EndOfMessage():
                    self._answer()
                case _:
                    return

    def _answer(self) -> None:
        assert self._request is not None
        method, path = self._request.method.decode(), self._request.target.decode()
        status, value = self._contract.answer(method, path, self._body)
        body = b"" if value is None else json.dumps(value).encode()
        headers = [("Server", "Firecracker API"), ("Connection", "keep-alive")]
        if value is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        events = [h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        self._http.start_next_cycle()


@asynccontextmanager
async def contract_server(path: Path | str) -> AsyncIterator[Contract]:
    """Serve on ``path`` until left."""
    description()
    contract = Contract()
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Connection(contract), str(path))
    try:
        yield contract
    finally:
        server.close()


def all_fields(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of every field below ``schema``."""
    schema = resolved(schema)
    for key, inner in schema.get("properties", {}).items():
        yield prefix + key
        yield from all_fields(inner, f"{prefix}{key}.")
    if "items" in schema:
        yield from all_fields(schema["items"], prefix)


if __name__ == "__main__":
    import sys

    async def serve(path: str) -> None:
        async with contract_server(path):
            print("ready", flush=True)
            await asyncio.get_running_loop().create_future()

    asyncio.run(serve(sys.argv[1]))
