# SPDX-License-Identifier: Apache-2.0
"""The API as its callers see it, over the in-process transport."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import msgspec
import pytest

from corral.client import AppTransport
from corral.control.api import Principal, Role
from corral.model.errors import StoreUnavailable
from corral.model.ids import TokenId
from corral.model.views import Problem
from corral.web.app import create_app
from corral.web.bodies import BODY_LIMIT
from tests.web.fake_api import TOKENS, FakeApi, lock_of, new_run

Test = Callable[[FakeApi, httpx2.AsyncClient], Awaitable[None]]


def with_app(test: Test, *, token: str = TOKENS[Role.ADMIN], local: Principal | None = None) -> None:
    async def run() -> None:
        api = FakeApi()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        app = create_app(api, local=local)
        async with httpx2.AsyncClient(transport=AppTransport(app), base_url="http://corral", headers=headers) as client:
            await asyncio.wait_for(test(api, client), 20)

    asyncio.run(run())


def problem(response: httpx2.Response, status: int, code: str) -> Problem:
    """The answer is a whole problem: right status everywhere, right type, a sentence."""
    assert response.headers["content-type"].startswith("application/problem+json"), response.text
    found = msgspec.json.decode(response.content, type=Problem)
    assert (response.status_code, found.status, found.code) == (status, status, code), found
    assert found.type == f"urn:corral:problem:{code}"
    assert found.detail
    return found


def body_of(new: Any) -> Any:
    return json.loads(msgspec.json.encode(new))


def test_a_run_is_created_listed_shown_and_run_again() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        made = await client.post("/api/v1/runs", json=body_of(new_run("build", "test", title="first")))
        assert made.status_code == 201
        run_id = made.json()["id"]
        assert made.headers["location"] == f"/api/v1/runs/{run_id}"
        shown = (await client.get(f"/api/v1/runs/{run_id}")).json()
        assert [job["name"] for job in shown["jobs"]] == ["build", "test"]
        again = await client.post(f"/api/v1/runs/{run_id}/rerun")
        assert (again.status_code, again.json()["original"]) == (201, run_id)
        listed = (await client.get("/api/v1/runs")).json()
        assert [each["id"] for each in listed["items"]] == [again.json()["id"], run_id]

    with_app(test)


def test_runs_come_in_pages_that_a_cursor_continues() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        ids = [(await api.create_run(new_run())).id for _ in range(5)]
        seen: list[str] = []
        cursor = ""
        while True:
            page = (await client.get("/api/v1/runs", params={"limit": "2", "cursor": cursor})).json()
            seen += [each["id"] for each in page["items"]]
            cursor = page["next"]
            if not cursor:
                break
        assert seen == ids[::-1]

    with_app(test)


def test_every_fault_of_a_body_is_named_with_its_place() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        body = body_of(new_run())
        body["titel"] = "x"
        body["jobs"] = [1, "ok", None]
        body["env"] = {"A": 1}
        body["lock"]["workflows"][0]["jobs"][0]["steps"] = "none"
        body["lock"]["version"] = "one"
        del body["workflow"]
        found = problem(await client.post("/api/v1/runs", json=body), 422, "invalid")
        assert len(found.faults) == 7
        places = " ".join(found.faults)
        for place in ("$.jobs[0]", "$.jobs[2]", "$.env.A", "$.lock.version", "$.lock.workflows[0].jobs[0].steps"):
            assert place in places
        assert "did you mean 'title'?" in places
        assert "'workflow' is missing" in places

    with_app(test)


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b"nul", b"[" * 100_000, b'{"name": 1} x', b'{"name": "\\ud800"}'])
def test_a_body_that_is_no_json_is_refused_as_such(raw: bytes) -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        problem(await client.post("/api/v1/tokens", content=raw), 400, "malformed")

    with_app(test)


def test_a_body_above_the_limit_is_refused_whether_its_length_was_stated_or_not() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        problem(await client.post("/api/v1/runs", content=b"x" * (BODY_LIMIT + 1)), 413, "too_large")

        async def unsized() -> Any:
            for _ in range(9):
                yield b" " * 1024 * 1024

        problem(await client.post("/api/v1/runs", content=unsized()), 413, "too_large")
        problem(await client.post("/api/v1/runs", content=b" " * (BODY_LIMIT - 2) + b"{}"), 422, "invalid")

    with_app(test)


def test_the_query_is_checked_as_the_body_is() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        found = problem(await client.get("/api/v1/runs?limit=0&projekt=a&cursor=1&cursor=2"), 422, "invalid")
        assert len(found.faults) == 3
        assert "did you mean 'project'?" in " ".join(found.faults)
        problem(await client.get("/api/v1/runs?project=%ff"), 400, "malformed")
        problem(await client.get("/api/v1/agents?x=1"), 422, "invalid")

    with_app(test)


def test_unknown_things_are_404_and_wrong_methods_405() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        for path in (
            "runs/run_none",
            "runs/run_none/events",
            "jobs/job_none",
            "jobs/job_none/why",
            "jobs/job_none/steps/0/log",
            "jobs/job_none/log/events",
            "runs/%00",
            f"runs/{'x' * 500}",
        ):
            problem(await client.get(f"/api/v1/{path}"), 404, "not_found")
        problem(await client.delete("/api/v1/tokens/tok_none"), 404, "not_found")
        problem(await client.get("/api/v1/nothing"), 404, "no_route")
        wrong = await client.delete("/api/v1/runs")
        problem(wrong, 405, "method_not_allowed")
        assert {"GET", "POST"} <= set(wrong.headers["allow"].split(", "))

    with_app(test)


def test_a_temporary_refusal_says_when_to_come_back() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        api.broken = StoreUnavailable("the disk is full; free some space", retry_after=7.2)
        answer = await client.get("/api/v1/runs")
        assert problem(answer, 503, "store_unavailable").retry_after == 7.2
        assert answer.headers["retry-after"] == "8"

    with_app(test)


def test_our_own_failure_is_a_problem_without_its_details() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        api.broken = ZeroDivisionError("secret detail")
        answer = await client.get("/api/v1/runs")
        problem(answer, 500, "internal")
        assert "secret detail" not in answer.text

    with_app(test)


ROLES = {
    Role.VIEWER: [("GET", "runs"), ("GET", "server"), ("GET", "agents"), ("GET", "pools"), ("GET", "runs/run_x")],
    Role.OPERATOR: [
        ("POST", "runs"),
        ("POST", "runs/run_x/cancel"),
        ("POST", "runs/run_x/rerun"),
        ("HEAD", f"sources/{'0' * 64}"),
        ("PUT", f"sources/{'0' * 64}"),
    ],
    Role.PROVISIONER: [("POST", "provisions/agent_x/report"), ("POST", "provisioner/listing")],
    Role.ADMIN: [("GET", "tokens"), ("POST", "tokens"), ("DELETE", "tokens/tok_x"), ("POST", "clean")],
}


@pytest.mark.parametrize("have", list(Role))
def test_a_token_opens_what_its_role_includes_and_nothing_else(have: Role) -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        ranks = [Role.VIEWER, Role.OPERATOR, Role.ADMIN]
        for need, calls in ROLES.items():
            for method, path in calls:
                status = (await client.request(method, f"/api/v1/{path}")).status_code
                if Role.PROVISIONER in (have, need):
                    allowed = have in (need, Role.ADMIN)
                else:
                    allowed = ranks.index(have) >= ranks.index(need)
                assert (status != 403) == allowed, (have, method, path, status)
                assert status != 401

    with_app(test, token=TOKENS[have])


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer wrong", "Basic eDp5", "bearer", "Bearer " + "x" * 1000])
def test_without_a_known_token_nothing_is_shown(header: str) -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        for method, path in (call for calls in ROLES.values() for call in calls):
            answer = await client.request(method, f"/api/v1/{path}", headers={"authorization": header})
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"].startswith("Bearer")

    with_app(test, token="")


def test_a_caller_in_this_process_needs_no_token_but_a_wrong_one_is_still_wrong() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        assert (await client.get("/api/v1/tokens")).status_code == 200
        answer = await client.get("/api/v1/tokens", headers={"authorization": "Bearer wrong"})
        problem(answer, 401, "unauthenticated")

    local = Principal(token_id=TokenId("tok_local"), name="local", role=Role.ADMIN)
    with_app(test, token="", local=local)


def test_a_token_is_shown_once_and_not_after_it_is_revoked_accepted() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        made = (await client.post("/api/v1/tokens", json={"name": "bot", "role": "viewer"})).json()
        assert made["token"] not in (await client.get("/api/v1/tokens")).text
        headers = {"authorization": f"Bearer {made['token']}"}
        assert (await client.get("/api/v1/runs", headers=headers)).status_code == 200
        assert (await client.delete(f"/api/v1/tokens/{made['view']['id']}")).json()["revoked_at"]
        assert (await client.get("/api/v1/runs", headers=headers)).status_code == 401

    with_app(test)


def test_health_needs_no_token_and_readiness_names_what_does_not_work() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        assert (await client.get("/healthz")).json() == {"alive": True}
        assert [each["name"] for each in (await client.get("/readyz")).json()["services"]] == ["database", "dispatcher"]
        api.healthy = False
        assert (await client.get("/healthz")).status_code == 200
        found = problem(await client.get("/readyz"), 503, "not_ready")
        assert found.faults == ("database: the disk is full",)

    with_app(test, token="")


def test_sources_are_stored_by_hash_and_a_wrong_hash_is_refused() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        data = b"archive" * 100_000
        name = hashlib.sha256(data).hexdigest()
        assert (await client.head(f"/api/v1/sources/{name}")).status_code == 404

        async def pieces() -> Any:
            for at in range(0, len(data), 65536):
                yield data[at : at + 65536]

        stored = await client.put(f"/api/v1/sources/{name}", content=pieces())
        assert (stored.status_code, stored.json()) == (201, {"hash": name, "size": len(data)})
        held = await client.head(f"/api/v1/sources/{name}")
        assert (held.status_code, held.headers["corral-source-size"]) == (200, str(len(data)))
        problem(await client.put(f"/api/v1/sources/{'0' * 64}", content=b"x"), 409, "refused")
        problem(await client.put("/api/v1/sources/short", content=b"x"), 422, "invalid")

    with_app(test)


def test_a_source_is_not_held_in_memory_while_it_is_uploaded() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        most = 0
        sent = taken = 0

        async def pieces() -> Any:
            nonlocal sent, most
            for _ in range(50):
                sent += 1
                most = max(most, sent - taken)
                yield b"x" * 65536

        async def put_source(hash: str, chunks: Any) -> int:
            nonlocal taken
            async for _ in chunks:
                taken += 1
            return taken

        api.put_source = put_source  # type: ignore[method-assign]
        assert (await client.put(f"/api/v1/sources/{'0' * 64}", content=pieces())).json()["size"] == 50
        assert most <= 2

    with_app(test)


def test_an_agent_reads_its_source_with_its_key() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        data = b"archive"
        name = hashlib.sha256(data).hexdigest()
        api.sources[name] = data
        good = {"authorization": f"Bearer {api.agent_key}", "corral-agent": "agent_x"}
        assert (await client.get(f"/agent/v1/sources/{name}", headers=good)).content == data
        cases: list[tuple[dict[str, str], str, int, str]] = [
            (good | {"authorization": "Bearer wrong"}, name, 401, "unauthenticated"),
            (good | {"corral-agent": "agent_y"}, name, 403, "forbidden"),
            (good | {"corral-agent": ""}, name, 401, "unauthenticated"),
            (good, "0" * 64, 404, "not_found"),
            (good, "xyz", 404, "not_found"),
        ]
        for headers, hash, status, code in cases:
            problem(await client.get(f"/agent/v1/sources/{hash}", headers=headers), status, code)

    with_app(test, token="")


def test_cancelling_is_graceful_then_forced_and_refused_after_the_end() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        run_id = (await api.create_run(new_run())).id
        assert (await client.post(f"/api/v1/runs/{run_id}/cancel")).json()["state"] == "cancelling"
        await client.post(f"/api/v1/runs/{run_id}/cancel", json={"force": True})
        assert api.cancels == [(run_id, False), (run_id, True)]
        await api.finish(run_id, "cancelled")
        problem(await client.post(f"/api/v1/runs/{run_id}/cancel"), 409, "refused")

    with_app(test)


def test_an_unknown_workflow_or_job_is_named() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        new = body_of(new_run(jobs=("nope", "neither")))
        assert len(problem(await client.post("/api/v1/runs", json=new), 422, "invalid").faults) == 2
        new = {"lock": body_of(lock_of("build")), "workflow": "nope"}
        problem(await client.post("/api/v1/runs", json=new), 422, "invalid")

    with_app(test)
