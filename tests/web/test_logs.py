# SPDX-License-Identifier: Apache-2.0
"""Logs over HTTP: ranges, binary content, following and resuming."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import StoreUnavailable
from corral.web.problems import RangeNotSatisfiable
from corral.web.ranges import byte_range
from tests.waiting import eventually_async
from tests.web.fake_api import FakeApi, new_run
from tests.web.test_app import problem, with_app

ODD = bytes(range(256)) + b"\x1b[31mred\x1b[0m\r\n\n\n" + "ü\u2028".encode() + b"\xff\xfe"


async def job_with_log(api: FakeApi, data: bytes, *, final: bool = True) -> str:
    job_id = (await api.create_run(new_run())).jobs[0].id
    await api.print(job_id, 0, data, final=final)
    return job_id


RANGES = [
    ("", 200, ODD, None),
    ("bytes=0-0", 206, ODD[:1], f"bytes 0-0/{len(ODD)}"),
    ("bytes=10-19", 206, ODD[10:20], f"bytes 10-19/{len(ODD)}"),
    ("bytes=250-", 206, ODD[250:], f"bytes 250-{len(ODD) - 1}/{len(ODD)}"),
    ("bytes=-3", 206, ODD[-3:], f"bytes {len(ODD) - 3}-{len(ODD) - 1}/{len(ODD)}"),
    ("bytes=-99999", 206, ODD, f"bytes 0-{len(ODD) - 1}/{len(ODD)}"),
    ("bytes=10-99999", 206, ODD[10:], f"bytes 10-{len(ODD) - 1}/{len(ODD)}"),
    ("bytes=0-1,4-5", 200, ODD, None),
    ("bytes=9-3", 200, ODD, None),
    ("lines=1-2", 200, ODD, None),
    ("bytes=-", 200, ODD, None),
]


@pytest.mark.parametrize(("header", "status", "content", "content_range"), RANGES)
def test_ranges_of_a_log(header: str, status: int, content: bytes, content_range: str | None) -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, ODD)
        headers = {"range": header} if header else {}
        answer = await client.get(f"/api/v1/jobs/{job_id}/steps/0/log", headers=headers)
        assert (answer.status_code, answer.content) == (status, content)
        assert answer.headers["content-length"] == str(len(content))
        assert answer.headers.get("content-range") == content_range
        assert answer.headers["corral-log-final"] == "true"

    with_app(test)


def test_a_range_of_which_no_byte_exists_is_416_with_the_size() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, b"abc")
        answer = await client.get(f"/api/v1/jobs/{job_id}/steps/0/log", headers={"range": "bytes=3-"})
        problem(answer, 416, "range_not_satisfiable")
        assert answer.headers["content-range"] == "bytes */3"

    with_app(test)


def test_a_growing_log_says_that_its_size_is_not_known() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, b"abc", final=False)
        answer = await client.get(f"/api/v1/jobs/{job_id}/steps/0/log", headers={"range": "bytes=1-"})
        assert answer.headers["content-range"] == "bytes 1-2/*"
        assert answer.headers["corral-log-final"] == "false"

    with_app(test)


def test_steps_and_attempts_that_do_not_exist() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, b"abc")
        path = f"/api/v1/jobs/{job_id}/steps"
        for each in (f"{path}/1/log", f"{path}/-1/log", f"{path}/x/log", f"{path}/0/log?attempt=2"):
            problem(await client.get(each), 404, "not_found")
        problem(await client.get(f"{path}/0/log?attempt=0"), 422, "invalid")
        problem(await client.get(f"{path}/0/log?attempt=x"), 422, "invalid")
        problem(await client.get(f"{path}/{'9' * 30}/log"), 404, "not_found")

    with_app(test)


@given(size=st.integers(0, 50), header=st.from_regex(r"bytes=[0-9]{0,2}-[0-9]{0,2}", fullmatch=True))
def test_a_range_is_always_inside_the_log(size: int, header: str) -> None:
    try:
        found = byte_range(header, size)
    except RangeNotSatisfiable as error:
        assert error.size == size
    else:
        assert found is None or 0 <= found[0] < found[1] <= size


def parse(raw: bytes) -> list[tuple[str, str, Any]]:
    """(name, id, data) of each event."""
    found = []
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


def test_a_followed_log_is_complete_and_each_event_says_where_to_go_on() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, ODD, final=False)
        asked = asyncio.create_task(client.get(f"/api/v1/jobs/{job_id}/log/events"))
        await eventually_async(lambda: api.changed._waiters)  # type: ignore[attr-defined]
        await api.print(job_id, 0, b"more", final=True)
        found = parse((await asked).content)
        assert [name for name, _, _ in found] == ["log", "log", "end"]
        assert found[0][1] == f"0:{len(ODD)}"
        assert b"".join(base64.b64decode(data["data"]) for _, _, data in found[:2]) == ODD + b"more"
        assert [data["final"] for _, _, data in found[:2]] == [False, True]

    with_app(test)


@pytest.mark.parametrize("how", ["header", "query", "both"])
def test_following_goes_on_from_an_offset(how: str) -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, ODD)
        headers = {} if how == "query" else {"last-event-id": "0:7"}
        query = {"header": "", "query": "?from=0:7", "both": "?from=0:1"}[how]
        answer = await client.get(f"/api/v1/jobs/{job_id}/log/events{query}", headers=headers)
        (_, _, data), _ = parse(answer.content)
        assert (data["offset"], base64.b64decode(data["data"])) == (7, ODD[7:])

    with_app(test)


@pytest.mark.parametrize("position", ["x", "1", "1:", ":1", "-1:0", "0:-1", "0:99999999999999999999", "0:1 2:3"])
def test_a_position_of_another_form_is_refused(position: str) -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, ODD)
        path = f"/api/v1/jobs/{job_id}/log/events"
        problem(await client.get(path, headers={"last-event-id": position}), 422, "invalid")
        problem(await client.get(path, params={"from": position}), 422, "invalid")

    with_app(test)


def test_a_failure_in_the_middle_of_a_stream_is_an_event() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, b"abc", final=False)
        asked = asyncio.create_task(client.get(f"/api/v1/jobs/{job_id}/log/events"))
        await eventually_async(lambda: api.changed._waiters)  # type: ignore[attr-defined]
        api.broken = StoreUnavailable("the log store is away", retry_after=2.0)
        await api.change()
        name, _, data = parse((await asked).content)[-1]
        assert (name, data["code"], data["retry_after"]) == ("problem", "store_unavailable", 2.0)

    with_app(test)


def test_a_reader_that_goes_away_ends_what_follows_for_it() -> None:
    async def test(api: FakeApi, client: httpx2.AsyncClient) -> None:
        job_id = await job_with_log(api, b"abc", final=False)
        async with client.stream("GET", f"/api/v1/jobs/{job_id}/log/events") as answer:
            received = answer.aiter_bytes()
            await anext(received)
            await eventually_async(lambda: api.changed._waiters)  # type: ignore[attr-defined]
        await eventually_async(lambda: not api.changed._waiters)  # type: ignore[attr-defined]

    with_app(test)
