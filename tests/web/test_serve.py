# SPDX-License-Identifier: Apache-2.0
"""The server on a real socket: agents' links, signals, stopping, ports in use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from corral.client import Client
from corral.model.ids import RunId
from corral.web.app import create_app
from corral.web.listen import CannotListen, PortInUse, bind, holder_of, url_of
from corral.web.serve import WebServer, serve
from corral.wire.messages import FRAME_LIMIT, SUBPROTOCOL
from tests.waiting import eventually_async
from tests.web.fake_api import TOKENS, FakeApi, new_run

Test = Callable[[FakeApi, WebServer], Awaitable[None]]


@contextlib.asynccontextmanager
async def running(api: FakeApi) -> AsyncIterator[WebServer]:
    server = WebServer(create_app(api), [bind("127.0.0.1", 0)], grace=1)
    await server.start()
    try:
        yield server
    finally:
        await asyncio.wait_for(server.stop(), 10)


def with_server(test: Test) -> None:
    async def run() -> None:
        api = FakeApi()
        async with running(api) as server:
            await asyncio.wait_for(test(api, server), 30)

    asyncio.run(run())


def dial(server: WebServer, **how: object) -> connect:
    url = server.url.replace("http://", "ws://") + "/agent/v1"
    settings: dict[str, object] = {
        "subprotocols": [SUBPROTOCOL],
        "compression": None,
        "proxy": None,
        "ping_interval": None,
        "max_size": None,
    }
    return connect(url, **(settings | how))  # type: ignore[arg-type]


async def closed(link: ClientConnection) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await link.recv()
    assert link.close_code is not None
    return link.close_code, link.close_reason or ""


def test_frames_go_both_ways_in_order_up_to_the_limit() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async with dial(server) as link:
            assert link.subprotocol == SUBPROTOCOL
            frames = [b"", b"a", bytes(range(256)) * 100, b"x" * FRAME_LIMIT]
            for frame in frames:
                await link.send(frame)
            assert [await link.recv() for _ in frames] == frames
            assert api.frames == frames
            assert api.links[0].peer == "127.0.0.1"

    with_server(test)


def test_a_frame_above_the_limit_ends_the_connection_not_the_server() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async with dial(server) as link:
            with contextlib.suppress(ConnectionClosed):
                await link.send(b"x" * (FRAME_LIMIT + 1))
            assert (await closed(link))[0] == 1009
        assert api.frames == []
        async with dial(server) as link:
            await link.send(b"fine")
            assert await link.recv() == b"fine"

    with_server(test)


def test_a_text_frame_is_closed_with_its_code() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async with dial(server) as link:
            await link.send("text")
            assert (await closed(link))[0] == 4000

    with_server(test)


def test_a_close_reason_is_cut_to_what_a_close_frame_holds() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async with dial(server) as link:
            await link.send(b"close")
            code, reason = await closed(link)
            assert code == 4009
            assert reason.startswith("released: éé")
            assert 120 < len(reason.encode()) <= 123

    with_server(test)


def test_a_session_that_fails_inside_is_closed_with_the_code_for_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async def fail(link: object) -> None:
            raise ZeroDivisionError

        api.serve_agent = fail  # type: ignore[method-assign, assignment]
        async with dial(server) as link:
            assert (await closed(link))[0] == 4010

    with_server(test)
    assert "an agent's session from 127.0.0.1 failed" in caplog.text


@pytest.mark.parametrize("subprotocols", [None, ["corral.agent.v9"]])
def test_another_subprotocol_is_refused_with_a_problem(subprotocols: list[str] | None) -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        with pytest.raises(InvalidStatus) as refusal:
            async with dial(server, subprotocols=subprotocols):
                pass
        assert refusal.value.response.status_code == 400
        assert SUBPROTOCOL.encode() in refusal.value.response.body
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{server.url}/agent/v1")
            assert answer.status_code == 426
        assert not api.links

    with_server(test)


def test_an_agent_that_does_not_read_slows_its_session_and_loses_nothing() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        api.echo_agents = False
        sent = 0
        frame = b"x" * 65536
        async with dial(server, max_queue=1) as link:
            await api.linked.wait()

            async def flood() -> None:
                nonlocal sent
                for _ in range(1000):
                    await api.links[0].send(frame)
                    sent += 1

            flooding = asyncio.create_task(flood())
            most = 0
            for number in range(1000):
                assert await link.recv() == frame
                most = max(most, sent - number)
            await flooding
            # What the buffers of both ends of the socket hold; without back-pressure it is nearly all.
            assert most < 500

    with_server(test)


def test_a_thousand_frames_pass_while_the_session_is_slow_to_read() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async with dial(server) as link:
            for number in range(1000):
                await link.send(number.to_bytes(4, "big") * 100)
            await eventually_async(lambda: len(api.frames) == 1000)
            for _ in range(1000):
                await link.recv()
            assert [frame[:4] for frame in api.frames] == [n.to_bytes(4, "big") for n in range(1000)]

    with_server(test)


def test_two_hundred_agents_connect_at_the_same_moment() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        async def one(number: int) -> bytes | str:
            async with dial(server, open_timeout=20) as link:
                await link.send(str(number).encode())
                return await link.recv()

        answers = await asyncio.gather(*(one(number) for number in range(200)))
        assert answers == [str(number).encode() for number in range(200)]

    with_server(test)


def test_the_server_leaves_the_signals_alone() -> None:
    async def test(api: FakeApi, server: WebServer) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            assert signal.getsignal(number) == before[number]

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    async def run() -> None:
        asyncio.get_running_loop()
        api = FakeApi()
        # asyncio.run sets its own handler for SIGINT; the server must not replace that either.
        before.update({number: signal.getsignal(number) for number in before})
        async with running(api) as server:
            await test(api, server)

    asyncio.run(run())


def test_open_streams_do_not_hold_up_a_stop() -> None:
    async def run() -> None:
        api = FakeApi()
        run_id = (await api.create_run(new_run())).id
        async with running(api) as server:
            client = Client(server.url, TOKENS["admin"], retries=0)  # type: ignore[index]
            views = client.watch_run(RunId(run_id))
            assert (await anext(views)).id == run_id
        await client.close()

    asyncio.run(asyncio.wait_for(run(), 5))


def test_serve_runs_until_it_is_told_to_stop() -> None:
    async def run() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        listener = bind("127.0.0.1", 0)
        url = url_of(listener)
        task = asyncio.create_task(serve(create_app(FakeApi()), sockets=[listener], stop=stop, ready=ready))
        await ready.wait()
        async with httpx2.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{url}/healthz")).status_code == 200
        stop.set()
        await asyncio.wait_for(task, 10)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 1)

    asyncio.run(run())


def test_a_port_in_use_names_the_process_that_holds_it() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        if not holder_of(port):
            pytest.skip("this system does not show which process holds a socket")
        with pytest.raises(PortInUse, match=rf"port {port} .* pid {os.getpid()} \(.*--listen"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("198.51.100.7", 0), ("127.0.0.1", 99999)])
def test_an_address_that_is_not_here_is_refused_with_the_option_to_change(host: str, port: int) -> None:
    with pytest.raises(CannotListen, match="HOST:PORT"):
        bind(host, port)


def test_an_idle_connection_is_kept_for_proxies() -> None:
    """49: longer than a proxy keeps one for reuse, or a webhook meets a socket that is just being closed."""
    server = WebServer(create_app(FakeApi()), [])
    config = server._server.config
    assert config.timeout_keep_alive > 120
    assert (config.ws_ping_interval, config.ws_per_message_deflate, config.ws_max_size) == (None, False, FRAME_LIMIT)
