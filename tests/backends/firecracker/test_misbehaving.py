# SPDX-License-Identifier: Apache-2.0
"""A server that answers wrongly, slowly, twice or not at all: always an error in time, never a hang."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from corral.backends.firecracker import messages as m
from corral.backends.firecracker.api import FirecrackerApi
from corral.backends.firecracker.errors import (
    FirecrackerApiError,
    FirecrackerDeadline,
    FirecrackerRefused,
    FirecrackerSocketRefused,
    FirecrackerUnreachable,
    FirecrackerWrongAnswer,
)
from corral.model.secret import Secret
from tests.backends.firecracker.misbehaving import GOOD, INFO, Script, Server, Talk, answer, misbehaving
from tests.waiting import eventually_async

T = TypeVar("T")
# Seconds for a call that must end by its deadline, and what the machine may add.
SHORT = 0.2
SLACK = 5.0
SECRET = "hunter2-hunter2-hunter2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fc.sock"


def run(
    path: Path,
    script: Script,
    body: Callable[[FirecrackerApi, Server], Awaitable[T]],
    *,
    deadline: float = SLACK,
) -> T:
    async def inner() -> T:
        async with misbehaving(path, script) as server, FirecrackerApi(path, deadline=deadline) as api:
            async with asyncio.timeout(3 * SLACK):
                return await body(api, server)

    return asyncio.run(inner())


def says(*pieces: bytes, then_close: bool = False) -> Script:
    """Answer each request with the pieces, each sent by itself."""

    async def script(talk: Talk) -> None:
        while await talk.request():
            for piece in pieces:
                await talk.say(piece)
            if then_close:
                return

    return script


def error_of(path: Path, script: Script, *, deadline: float = SLACK) -> FirecrackerApiError:
    async def body(api: FirecrackerApi, server: Server) -> FirecrackerApiError:
        with pytest.raises(FirecrackerApiError) as caught:
            await api.instance_info()
        return caught.value

    return run(path, script, body, deadline=deadline)


# -- right answers in odd clothes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        [GOOD],
        [GOOD[at : at + 1] for at in range(len(GOOD))],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n" % len(INFO),
            INFO,
            b"\r\n0\r\n\r\n",
        ],
        [b"HTTP/1.1 100 Continue\r\n\r\n", GOOD],
        [answer(200, INFO[:-1] + b',"new_field":[1]}')],
    ],
    ids=["whole", "byte by byte", "chunked", "after a 100", "with a field of a newer version"],
)
def test_a_right_answer_is_understood_however_it_comes(path: Path, pieces: list[bytes]) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        for _ in range(3):
            assert (await api.instance_info()).id == "vm"
        assert server.connections == 1

    run(path, says(*pieces), body)


@pytest.mark.parametrize(
    "reply",
    [answer(200, INFO, extra=b"Connection: close\r\n"), b"HTTP/1.0 200 OK\r\n\r\n" + INFO],
    ids=["connection: close", "HTTP/1.0, ended by closing"],
)
def test_a_connection_that_ends_with_its_answer_is_replaced(path: Path, reply: bytes) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        for _ in range(3):
            assert (await api.instance_info()).id == "vm"
        assert server.connections == 3

    run(path, says(reply, then_close=True), body)


def test_a_connection_closed_between_calls_is_replaced(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.say(GOOD)

    async def body(api: FirecrackerApi, server: Server) -> None:
        await api.instance_info()
        connection = api._caller._connection
        assert connection is not None
        await eventually_async(lambda: not connection.usable)
        await api.instance_info()
        assert server.connections == 2

    run(path, script, body)


# -- wrong answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "says_why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "breaks the protocol"),
        (b"HTTP/1.1 abc\r\n\r\n", "breaks the protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "breaks the protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "breaks the protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000, "breaks the protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "breaks the protocol"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "breaks the protocol"),
        (GOOD + GOOD, "followed by something"),
        (GOOD + b"x", "followed by something"),
        (answer(200, INFO, length=len(INFO) - 3), "followed by something"),
        (answer(200, b"{"), "not what the API describes"),
        (answer(200, b""), "not what the API describes"),
        (answer(200, b"\xff\xfe"), "not what the API describes"),
        (answer(200, b'{"id":"vm"}'), "not what the API describes"),
        (answer(200, b'["vm"]'), "not what the API describes"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "not what the API describes"),
        (answer(200, b" " * 100_000), "longer than 65536 bytes"),
    ],
)
def test_a_wrong_answer_is_an_error_at_once(path: Path, reply: bytes, says_why: str) -> None:
    error = error_of(path, says(reply))
    assert isinstance(error, FirecrackerWrongAnswer)
    assert says_why in str(error) and error.path == "/"
    assert len(error.body) <= 65_536


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        answer(200, INFO[:10], length=len(INFO)),
        answer(200, INFO, length=len(INFO) + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_an_answer_that_is_cut_off_is_an_error_at_once(path: Path, reply: bytes) -> None:
    error = error_of(path, says(reply, then_close=True))
    assert isinstance(error, FirecrackerUnreachable) and not isinstance(error, FirecrackerDeadline)
    assert error.status_code is None


def test_a_connection_closed_before_the_request_is_an_error(path: Path) -> None:
    async def script(talk: Talk) -> None:
        return

    assert isinstance(error_of(path, script), FirecrackerUnreachable)


def test_a_reset_in_the_middle_is_an_error(path: Path) -> None:
    async def script(talk: Talk) -> None:
        # Unread bytes make the close a reset.
        await talk.reader.readexactly(1)
        await talk.say(GOOD[:30])
        talk.writer.transport.abort()

    assert isinstance(error_of(path, script), FirecrackerUnreachable)


def test_a_second_answer_that_comes_later_never_answers_the_next_call(path: Path) -> None:
    lie = answer(200, INFO.replace(b'"vm"', b'"lie"'))
    taken = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.say(GOOD)
        if talk.server.connections == 1:
            await taken.wait()
            await talk.say(lie)
        await talk.until_closed()

    async def body(api: FirecrackerApi, server: Server) -> None:
        assert (await api.instance_info()).id == "vm"
        taken.set()
        # The client drops the connection as soon as it hears what nobody asked for.
        await asyncio.wait_for(server.closed.wait(), SLACK)
        assert (await api.instance_info()).id == "vm"
        assert server.connections == 2

    run(path, script, body)


# -- late answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\n", answer(200, INFO[:10], length=len(INFO))],
    ids=["no head", "half a head", "half a body"],
)
def test_a_server_that_stops_talking_costs_the_deadline_and_no_more(path: Path, start: bytes) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.say(start)
        await talk.until_closed()

    async def body(api: FirecrackerApi, server: Server) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(FirecrackerDeadline, match=r"GET / had no whole answer within 0\.2 s"):
            await api.instance_info(deadline=SHORT)
        assert SHORT <= loop.time() - began < SHORT + SLACK
        await server.closed.wait()

    run(path, script, body)


@pytest.mark.parametrize("drip", [b"X-Drip: y\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["head", "1xx"])
def test_a_server_that_drips_for_ever_costs_the_deadline(path: Path, drip: bytes) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.say(b"HTTP/1.1 200 OK\r\n" if drip.startswith(b"X") else drip)
        while not talk.server.cut_off and not talk.reader.at_eof():
            await talk.say(drip)
            await asyncio.sleep(0.01)

    assert isinstance(error_of(path, script, deadline=SHORT), FirecrackerDeadline)


def test_the_deadline_covers_the_wait_for_the_calls_before(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.until_closed()

    async def body(api: FirecrackerApi, server: Server) -> None:
        first = asyncio.ensure_future(api.instance_info())
        await eventually_async(lambda: server.requests == 1)
        with pytest.raises(FirecrackerDeadline):
            await api.instance_info(deadline=SHORT)
        assert server.requests == 1 and not first.done()
        first.cancel()
        await asyncio.wait([first])

    run(path, script, body)


def test_cancelling_a_call_closes_its_request_at_once(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        if talk.server.requests == 1:
            await talk.until_closed()
        await talk.say(GOOD)

    async def body(api: FirecrackerApi, server: Server) -> None:
        call = asyncio.ensure_future(api.instance_info())
        await eventually_async(lambda: server.requests == 1)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await asyncio.wait_for(server.closed.wait(), SLACK)
        assert (await api.instance_info()).id == "vm"
        assert server.connections == 2

    run(path, script, body)


def test_a_backlog_that_is_full_costs_the_deadline_not_more(path: Path) -> None:
    """Nobody ever accepts: the kernel says EAGAIN at once, which is neither a connection nor a refusal."""

    async def inner() -> None:
        async with asyncio.timeout(3 * SLACK):
            with pytest.raises(FirecrackerDeadline):
                await FirecrackerApi(path).instance_info(deadline=SHORT)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                waiting[-1].connect(str(path))
        except BlockingIOError:
            asyncio.run(inner())
        finally:
            for each in waiting:
                each.close()


# -- answers that say no ------------------------------------------------------------------------------


def test_a_fault_message_is_read_out_of_the_body(path: Path) -> None:
    error = error_of(path, says(answer(400, b'{"fault_message":"The balloon is not there."}')))
    assert isinstance(error, FirecrackerRefused)
    assert (error.status_code, error.path) == (400, "/")
    assert str(error) == "GET / was answered with 400: The balloon is not there."
    assert error.body == '{"fault_message":"The balloon is not there."}'


@pytest.mark.parametrize("body", [b"", b"plain words", b'{"fault_message":7}', b"[]", b"\xff"])
def test_a_refusal_without_a_fault_message_is_still_one(path: Path, body: bytes) -> None:
    error = error_of(path, says(answer(404, body)))
    assert isinstance(error, FirecrackerRefused) and error.status_code == 404


def test_a_megabyte_of_error_is_cut_at_64_kib(path: Path) -> None:
    error = error_of(path, says(answer(500, b"z" * 2**20)))
    assert error.status_code == 500 and error.body == "z" * 65_536
    assert not isinstance(error, FirecrackerRefused)
    assert len(str(error)) < 2000


def test_a_cut_answer_leaves_no_connection_to_misread(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.say(answer(500, b"z" * 2**20) if talk.server.requests == 1 else GOOD)
        await talk.until_closed()

    async def body(api: FirecrackerApi, server: Server) -> None:
        with pytest.raises(FirecrackerApiError):
            await api.instance_info()
        assert (await api.instance_info()).id == "vm"
        assert server.connections == 2

    run(path, script, body)


# -- secrets ------------------------------------------------------------------------------------------


def shown(error: FirecrackerApiError) -> str:
    return f"{error!s} {error!r} {error.body} {error.internal} {error.args}"


@pytest.mark.parametrize(
    "reply",
    [
        answer(400, b'{"fault_message":"cannot store %s here"}' % SECRET.encode()),
        answer(500, b"echo: " + SECRET[:12].encode()),
        answer(400, b"escaped: \\u0022" + SECRET.encode()),
        answer(200, SECRET.encode() + b"z" * 70_000),
        b"HTTP/1.1 400 X\r\nContent-Length: 3\r\n\r\nabc" + SECRET.encode(),
    ],
)
@pytest.mark.parametrize("method", ["put_mmds", "patch_mmds"])
def test_a_secret_that_was_sent_is_in_no_error(path: Path, reply: bytes, method: str) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        with pytest.raises(FirecrackerApiError) as caught:
            await getattr(api, method)({"latest": {"meta-data": {"token": Secret(SECRET)}}})
        text = shown(caught.value)
        assert SECRET not in text and SECRET[:12] not in text
        assert caught.value.path == "/mmds"

    run(path, says(reply), body)


def test_a_fault_that_repeats_nothing_is_shown_for_metadata_too(path: Path) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        with pytest.raises(FirecrackerRefused, match="The MMDS is too large"):
            await api.put_mmds({"token": Secret(SECRET)})

    run(path, says(answer(400, b'{"fault_message":"The MMDS is too large"}')), body)


def test_a_store_that_cannot_be_read_is_not_shown(path: Path) -> None:
    for reply in (answer(200, b'{"token":"' + SECRET.encode() + b'"'), answer(200, SECRET.encode() * 9000)):
        path.unlink(missing_ok=True)

        async def body(api: FirecrackerApi, server: Server) -> None:
            with pytest.raises(FirecrackerWrongAnswer) as caught:
                await api.mmds()
            assert SECRET not in shown(caught.value)
            with pytest.raises(FirecrackerWrongAnswer) as caught:
                await api.request("GET", "/mmds")
            assert SECRET not in shown(caught.value)

        run(path, says(reply), body)


def test_a_body_that_is_no_json_is_refused_without_showing_it(path: Path) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        for value in ({"token": {SECRET}.__iter__()}, {"token": object()}, {1j: SECRET}):
            with pytest.raises(FirecrackerRefused) as caught:
                await api.put_mmds(value)  # type: ignore[arg-type]
            assert SECRET not in shown(caught.value)
        assert server.requests == 0

    run(path, says(GOOD), body)


# -- the socket ---------------------------------------------------------------------------------------


def refused(path: Path | str, **options: object) -> FirecrackerApiError:
    async def inner() -> FirecrackerApiError:
        with pytest.raises(FirecrackerApiError) as caught:
            await FirecrackerApi(path, **options).instance_info()  # type: ignore[arg-type]
        return caught.value

    return asyncio.run(inner())


def test_a_socket_that_is_not_there(path: Path) -> None:
    error = refused(path)
    assert isinstance(error, FirecrackerUnreachable) and "there is no socket at" in str(error)


def test_a_socket_that_nobody_listens_on(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    error = refused(path)
    assert isinstance(error, FirecrackerUnreachable) and "nobody listens on" in str(error)


def test_what_is_no_socket_is_not_connected_to(path: Path, tmp_path: Path) -> None:
    path.write_text("")
    assert "is no socket" in str(refused(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "other.sock"))
        listener.listen()
        path.unlink()
        path.symlink_to(tmp_path / "other.sock")
        error = refused(path)
    assert isinstance(error, FirecrackerSocketRefused) and "a symbolic link" in str(error)


AS_NOBODY = """
import asyncio, ctypes, os, sys
from corral.backends.firecracker.api import FirecrackerApi
from corral.backends.firecracker.errors import FirecrackerSocketRefused
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # readable /proc/self again, as after an exec
try:
    asyncio.run(FirecrackerApi(sys.argv[1]).instance_info())
except FirecrackerSocketRefused as error:
    print(error)
"""


def test_somebody_elses_socket_names_its_owner() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a socket that this user may not use")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        Path(folder).chmod(0o755)
        path = Path(folder) / "fc.sock"
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        command = [sys.executable, "-c", AS_NOBODY, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "belongs to user 0 (mode 600) and user 65534 may not write to it" in done.stdout, done.stderr


def test_a_listener_that_is_not_the_expected_user_is_not_talked_to(path: Path) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        me = os.geteuid()
        async with FirecrackerApi(path, peer_uid=me) as mine:
            await mine.instance_info()
        async with FirecrackerApi(path, peer_uid=me + 1) as other:
            with pytest.raises(FirecrackerSocketRefused, match=f"user {me} listens on"):
                await other.put_mmds({"token": SECRET})
        assert server.requests == 1

    run(path, says(GOOD), body)


def test_a_path_longer_than_the_system_allows_says_so_and_the_way_round_works(tmp_path: Path) -> None:
    folder = tmp_path / ("jail" * 30)
    folder.mkdir()
    path = folder / "fc.sock"
    with pytest.raises(FirecrackerSocketRefused) as caught:
        FirecrackerApi(path)
    assert f"has {len(str(path))} bytes" in str(caught.value)
    assert "108" in str(caught.value) and "long_path=True" in str(caught.value)
    handle = os.open(folder, os.O_PATH)

    async def inner() -> None:
        listening = misbehaving(Path(f"/proc/self/fd/{handle}/fc.sock"), says(GOOD))
        async with listening, FirecrackerApi(path, long_path=True) as api:
            assert (await api.instance_info()).id == "vm"

    asyncio.run(inner())
    os.close(handle)
    FirecrackerApi("/" + "x" * 106)
    with pytest.raises(FirecrackerSocketRefused):
        FirecrackerApi("/" + "x" * 107)


def test_nothing_is_left_open(path: Path) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def body(api: FirecrackerApi, server: Server) -> None:
        before = opened()
        for _ in range(20):
            async with FirecrackerApi(path) as one:
                await one.instance_info()
            with pytest.raises(FirecrackerApiError):
                await FirecrackerApi(path.with_name("nowhere")).instance_info()
        await eventually_async(lambda: opened() <= before)

    run(path, says(GOOD), body)


# -- waiting for it -----------------------------------------------------------------------------------


def test_waiting_succeeds_once_it_answers_not_once_it_exists(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        # At first it takes connections and answers nonsense, then an error, then what it should.
        replies = {1: b"", 2: answer(500, b"{}"), 3: b"nonsense\r\n\r\n"}
        await talk.say(replies.get(talk.server.connections, GOOD))

    async def inner() -> None:
        api = FirecrackerApi(path)
        waiting = asyncio.ensure_future(api.wait_for_socket(timeout=30, interval=0.01))
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
        await asyncio.sleep(0)
        assert not waiting.done()
        path.unlink()
        async with misbehaving(path, script) as server:
            assert await waiting is True
            assert server.connections >= 4
            api.close()

    asyncio.run(inner())


@pytest.mark.parametrize("interval", [0.01, SLACK + 1])
def test_waiting_ends_in_time_where_nobody_comes(path: Path, interval: float) -> None:
    """Also where the interval alone is longer than the time."""

    async def inner() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await FirecrackerApi(path).wait_for_socket(timeout=SHORT, interval=interval) is False
        return loop.time() - began

    assert SHORT <= asyncio.run(inner()) < SHORT + SLACK


def test_waiting_ends_in_time_where_it_takes_the_connection_and_says_nothing(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.until_closed()

    async def body(api: FirecrackerApi, server: Server) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await api.wait_for_socket(timeout=SHORT) is False
        assert loop.time() - began < SHORT + SLACK

    run(path, script, body)


def test_waiting_can_be_cancelled(path: Path) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        await talk.until_closed()

    async def body(api: FirecrackerApi, server: Server) -> None:
        waiting = asyncio.ensure_future(api.wait_for_socket(timeout=60))
        await eventually_async(lambda: server.requests == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await asyncio.wait_for(server.closed.wait(), SLACK)

    run(path, script, body)


def test_waiting_does_not_wait_for_what_time_does_not_change(path: Path) -> None:
    path.write_text("")

    async def inner() -> None:
        with pytest.raises(FirecrackerSocketRefused):
            await FirecrackerApi(path).wait_for_socket(timeout=60)

    asyncio.run(inner())


def test_a_request_that_the_server_does_not_read_costs_the_deadline(path: Path) -> None:
    async def script(talk: Talk) -> None:
        # The stream's own buffer takes 128 KiB; the rest stays with the client.
        await talk.server.closed.wait()

    async def body(api: FirecrackerApi, server: Server) -> None:
        with pytest.raises(FirecrackerDeadline):
            await api.put_mmds({"blob": "x" * 4_000_000}, deadline=SHORT)
        server.closed.set()

    run(path, script, body)


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        m.Vm(state="Paused").state = "Resumed"  # type: ignore[misc]


def test_ctrl_alt_del_is_refused_here_where_there_is_no_keyboard(path: Path) -> None:
    async def body(api: FirecrackerApi, server: Server) -> None:
        async with FirecrackerApi(path, machine="aarch64") as arm:
            with pytest.raises(FirecrackerRefused, match="x86_64 only, not on aarch64"):
                await arm.send_ctrl_alt_del()
        assert server.requests == 0
        async with FirecrackerApi(path, machine="x86_64") as intel:
            await intel.send_ctrl_alt_del()
        assert server.requests == 1

    run(path, says(b"HTTP/1.1 204 No Content\r\n\r\n"), body)
