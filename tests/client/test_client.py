# SPDX-License-Identifier: Apache-2.0
"""The typed client against the real application: over a socket and in-process, also after a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from corral.client import AppTransport, Client, Unreachable
from corral.client.events import NotEvents, events
from corral.client.problems import NotCorral, error_from
from corral.control.api import Role
from corral.model.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PermanentError,
    Refused,
    StoreUnavailable,
    TemporaryError,
    Unauthenticated,
)
from corral.model.ids import JobId, RunId, SourceHash, TokenId
from corral.model.views import Clean, NewToken, Problem
from corral.web.app import create_app
from corral.web.listen import bind
from corral.web.serve import WebServer
from tests.waiting import eventually_async
from tests.web.fake_api import TOKENS, FakeApi, new_run

Test = Callable[[FakeApi, Client], Awaitable[None]]
BOTH = pytest.mark.parametrize("over", ["socket", "process"])


@contextlib.asynccontextmanager
async def client_of(api: FakeApi, over: str, token: str = TOKENS[Role.ADMIN]) -> AsyncIterator[Client]:
    app = create_app(api)
    if over == "process":
        async with Client("http://corral", token, AppTransport(app), retries=1) as client:
            yield client
        return
    server = WebServer(app, [bind("127.0.0.1", 0)], grace=1)
    await server.start()
    try:
        async with Client(server.url, token, retries=1) as client:
            yield client
    finally:
        await server.stop()


def with_client(test: Test, over: str = "process", token: str = TOKENS[Role.ADMIN]) -> None:
    async def run() -> None:
        api = FakeApi()
        async with client_of(api, over, token) as client:
            await asyncio.wait_for(test(api, client), 30)

    asyncio.run(run())


@BOTH
def test_runs_and_jobs(over: str) -> None:
    async def test(api: FakeApi, client: Client) -> None:
        made = await client.create_run(new_run("build", "test"))
        run_id = RunId(made.id)
        assert [job.name for job in (await client.run(run_id)).jobs] == ["build", "test"]
        again = await client.rerun(run_id)
        assert again.original == made.id
        assert [run.id async for run in client.all_runs()] == [again.id, made.id]
        assert (await client.cancel_run(run_id, force=True)).state == "cancelling"
        assert api.cancels == [(made.id, True)]
        job_id = JobId(made.jobs[0].id)
        assert (await client.job(job_id)).steps[0].name == "say"
        assert (await client.why(job_id)).fix.startswith("Add gpu")
        await api.finish(made.id)
        assert (await client.clean(Clean(keep_runs=0))).runs == 1

    with_client(test, over)


def test_all_runs_goes_through_the_pages() -> None:
    async def test(api: FakeApi, client: Client) -> None:
        ids = [(await api.create_run(new_run())).id for _ in range(201)]
        assert [run.id async for run in client.all_runs()] == ids[::-1]

    with_client(test)


@BOTH
def test_server_agents_pools_and_tokens(over: str) -> None:
    async def test(api: FakeApi, client: Client) -> None:
        assert (await client.server()).cluster_id == "corral-x"
        assert [agent.id for agent in await client.agents()] == ["agent_x"]
        assert [pool.name for pool in await client.pools()] == ["local"]
        made = await client.create_token(NewToken(name="bot", role="viewer"))
        assert made.view.id in [view.id for view in await client.tokens()]
        assert (await client.revoke_token(TokenId(made.view.id))).revoked_at

    with_client(test, over)


@BOTH
def test_a_source_is_uploaded_in_pieces(over: str) -> None:
    async def test(api: FakeApi, client: Client) -> None:
        data = b"0123456789" * 100_000
        name = SourceHash(hashlib.sha256(data).hexdigest())
        assert await client.source_size(name) is None

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(data), 65536):
                yield data[at : at + 65536]

        assert (await client.put_source(name, pieces())).size == len(data)
        assert await client.source_size(name) == len(data)
        with pytest.raises(Refused):
            await client.put_source(SourceHash("0" * 64), pieces())

    with_client(test, over)


@BOTH
def test_a_log_is_read_whole_and_in_ranges(over: str) -> None:
    async def test(api: FakeApi, client: Client) -> None:
        data = bytes(range(256)) * 1000
        job_id = JobId((await api.create_run(new_run())).jobs[0].id)
        await api.print(job_id, 0, data, final=True)

        async def read(start: int = 0, end: int | None = None) -> bytes:
            return b"".join([chunk async for chunk in client.read_log(job_id, step=0, start=start, end=end)])

        assert await read() == data
        assert await read(1000, 1010) == data[1000:1010]
        assert await read(len(data) - 5) == data[-5:]
        assert await read(len(data)) == b""
        assert await read(5, 5) == b""
        with pytest.raises(NotFound):
            await anext(client.read_log(job_id, step=7))

    with_client(test, over)


@BOTH
def test_a_run_is_watched_to_its_end(over: str) -> None:
    async def test(api: FakeApi, client: Client) -> None:
        run_id = RunId((await api.create_run(new_run())).id)
        states = []
        async for view in client.watch_run(run_id):
            states.append(str(view.state))
            if view.state == "queued":
                await api.set_run(run_id, state="running")
            elif view.state == "running":
                await api.finish(run_id)
        assert states[:2] == ["queued", "running"]
        assert states[-1] == "succeeded"
        with pytest.raises(NotFound):
            await anext(client.watch_run(RunId("run_none")))

    with_client(test, over)


def test_a_followed_log_goes_on_at_its_offset_after_the_server_was_away() -> None:
    async def run() -> None:
        api = FakeApi()
        job_id = JobId((await api.create_run(new_run())).jobs[0].id)
        first = WebServer(create_app(api), [bind("127.0.0.1", 0)], grace=1)
        await first.start()
        port = int(first.url.rpartition(":")[2])
        data = bytearray()
        async with Client(first.url, TOKENS[Role.ADMIN]) as client:

            async def follow() -> None:
                async for part in client.follow_log(job_id):
                    assert part.offset == len(data)
                    data.extend(part.data)

            following = asyncio.create_task(follow())
            await api.print(job_id, 0, b"before ")
            await eventually_async(lambda: data)
            await first.stop()
            await api.print(job_id, 0, b"while away ")
            second = WebServer(create_app(api), [bind("127.0.0.1", port)], grace=1)
            await second.start()
            await api.print(job_id, 0, b"after", final=True)
            await asyncio.wait_for(following, 20)
            await second.stop()
        assert bytes(data) == b"before while away after"

    asyncio.run(run())


def test_a_server_that_stays_away_is_unreachable_and_the_message_names_it() -> None:
    async def run() -> None:
        with contextlib.closing(bind("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", retries=1) as client:
            with pytest.raises(Unreachable, match=f"127.0.0.1:{port}.*is the server running"):
                await client.server()
            with pytest.raises(Unreachable):
                await anext(client.watch_run(RunId("run_x")))

    asyncio.run(run())


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[::1", "127.0.0.1:80"])
def test_a_url_that_is_none_is_said_to_be_none(url: str) -> None:
    async def run() -> None:
        with pytest.raises(PermanentError, match="URL"):
            async with Client(url) as client:
                await client.server()

    asyncio.run(run())


@BOTH
def test_refusals_come_back_as_the_errors_they_were(over: str) -> None:
    async def test(api: FakeApi, client: Client) -> None:
        with pytest.raises(NotFound, match="run_none"):
            await client.run(RunId("run_none"))
        with pytest.raises(Invalid) as refused:
            await client.create_run(new_run(jobs=("a", "b")))
        assert len(refused.value.faults) == 2
        assert "no job 'a'" in str(refused.value)
        api.broken = StoreUnavailable("full", retry_after=3.0)
        with pytest.raises(StoreUnavailable) as away:
            await client.runs()
        assert away.value.retry_after == 3.0
        api.broken = Conflict("somebody was faster")
        with pytest.raises(Conflict):
            await client.runs()
        api.broken = ZeroDivisionError()
        with pytest.raises(PermanentError) as inside:
            await client.runs()
        assert (inside.value.code, inside.value.status) == ("internal", 500)

    with_client(test, over)


@BOTH
def test_a_wrong_token_and_a_too_small_one(over: str) -> None:
    async def wrong(api: FakeApi, client: Client) -> None:
        with pytest.raises(Unauthenticated):
            await client.runs()
        with pytest.raises(Unauthenticated):
            await client.source_size(SourceHash("0" * 64))

    async def small(api: FakeApi, client: Client) -> None:
        with pytest.raises(Forbidden, match="needs operator"):
            await client.create_run(new_run())

    with_client(wrong, over, token="wrong")
    with_client(small, over, token=TOKENS[Role.VIEWER])


def test_an_unknown_code_keeps_its_code_status_and_kind() -> None:
    later = error_from(Problem(type="t", title="x", status=418, code="tea", detail="short", retry_after=2.0))
    assert isinstance(later, TemporaryError)
    assert (later.code, later.status, later.retry_after, str(later)) == ("tea", 418, 2.0, "short")
    never = error_from(Problem(type="t", title="x", status=418, code="tea", detail="stout"))
    assert isinstance(never, PermanentError)
    assert (never.code, never.status) == ("tea", 418)
    assert (TemporaryError.code, PermanentError.code) == ("temporary", "permanent")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>", NotCorral),
        (404, b"<html>", NotCorral),
        (502, b"<html>", TemporaryError),
        (200, b"{}", NotCorral),
    ],
)
def test_something_that_is_no_corral_server(status: int, body: bytes, kind: type[Exception]) -> None:
    async def run() -> None:
        transport = httpx2.MockTransport(lambda request: httpx2.Response(status, content=body))
        async with Client("http://elsewhere", transport=transport) as client:
            with pytest.raises(kind, match="http://elsewhere"):
                await client.server()

    asyncio.run(run())


async def cut(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize("size", range(1, 60))
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    raw = b': hello\n\nid: 0:3\nevent: log\ndata: {"a":1}\n\n: still here\n\nevent: end\ndata: {}\n\nevent: half'

    async def run() -> None:
        found = [(each.name, each.id, each.data) async for each in events(cut(raw, size))]
        assert found == [("log", "0:3", b'{"a":1}'), ("end", "", b"{}")]

    asyncio.run(run())


def test_a_stream_that_never_ends_an_event_is_given_up() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1024 * 1024

    async def run() -> None:
        with pytest.raises(NotEvents):
            async for _ in events(endless()):
                pass

    asyncio.run(run())


def test_the_proxy_settings_of_the_environment_are_not_used_for_this_machine() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as held:
        proxy = f"http://127.0.0.1:{held.getsockname()[1]}"
    before = {"http_proxy": proxy, "HTTP_PROXY": proxy, "ALL_PROXY": proxy}

    async def test(api: FakeApi, client: Client) -> None:
        async with Client(client.base_url, TOKENS[Role.ADMIN]) as fresh:
            assert (await fresh.server()).version == "0"

    with pytest.MonkeyPatch.context() as patch:
        for name, value in before.items():
            patch.setenv(name, value)
        with_client(test, "socket")
