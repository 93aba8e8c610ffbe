# SPDX-License-Identifier: Apache-2.0
"""A small coordinator for tests: real WebSocket and HTTP over loopback, scripted by the test, with a memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from corral.model.agentconfig import AgentConfig
from corral.model.spec import JobOrder, JobSpec, StepSpec
from corral.wire.codec import decode_from_agent, encode
from corral.wire.messages import (
    FRAME_LIMIT,
    SUBPROTOCOL,
    Accept,
    Action,
    Cancel,
    FinishedAck,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobAnswer,
    JobFinished,
    Limits,
    Log,
    LogAck,
    LogPosition,
    Offer,
    Start,
    StepFinished,
    ToAgent,
    Welcome,
)

M = TypeVar("M")
DEADLINE = 20.0


class Coordinator:
    """Answers hello, heartbeats, logs and ends like a real one; switches make it misbehave."""

    def __init__(self) -> None:
        self.messages: list[FromAgent] = []
        self.logs: dict[tuple[str, int, int], bytearray] = {}
        self._ends: dict[str, JobFinished] = {}
        self.sources: dict[str, bytes] = {}
        self.source_requests: list[Headers] = []
        self.connection: ServerConnection | None = None
        self.connections = 0
        self.single_use = True
        self.heartbeat_interval = 0.2
        self.limits = Limits()
        self.ack_logs = True
        self.ack_finished = True
        self.answer_heartbeats = True
        self.refuse: ToAgent | None = None
        self.accepting = True
        self.answer_job: Callable[[Hello], tuple[JobAnswer, ...]] = self.continue_all
        self._changed = asyncio.Event()
        self._server: Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await serve(
            self._connected,
            "127.0.0.1",
            self.port,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            ping_interval=None,
            max_size=FRAME_LIMIT,
            process_request=self._request,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/agent/v1/sources/"):
            self.source_requests.append(request.headers)
            body = self.sources.get(request.path.rsplit("/", 1)[1])
            status = 404 if body is None else 200
            headers = Headers({"Content-Length": str(len(body or b"")), "Connection": "close"})
            return Response(status, "OK" if body is not None else "Not Found", headers, body or b"")
        if not self.accepting:
            return Response(503, "Service Unavailable", Headers({"Content-Length": "0"}), b"")
        return None

    async def _connected(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.connections += 1
        with contextlib.suppress(ConnectionClosed):
            async for frame in connection:
                assert isinstance(frame, bytes)
                message = decode_from_agent(frame)
                self.messages.append(message)
                await self._answer(connection, message)
                self._changed.set()

    async def _answer(self, connection: ServerConnection, message: FromAgent) -> None:
        match message:
            case Hello():
                await self._greet(connection, message)
            case Heartbeat(number=number):
                if self.answer_heartbeats:
                    await connection.send(encode(HeartbeatAck(number=number)))
            case Log():
                await self._store(connection, message)
            case JobFinished():
                self._ends[message.job_id] = message
                await self._maybe_end(connection, message.job_id)
            case _:
                pass

    async def _greet(self, connection: ServerConnection, hello: Hello) -> None:
        if self.refuse is not None:
            await connection.send(encode(self.refuse))
            return
        welcome = Welcome(
            session=self.connections,
            coordinator_urls=(self.url,),
            heartbeat_interval=self.heartbeat_interval,
            limits=self.limits,
            single_use=self.single_use,
            jobs=self.answer_job(hello),
        )
        await connection.send(encode(welcome))

    def continue_all(self, hello: Hello) -> tuple[JobAnswer, ...]:
        return tuple(
            JobAnswer(
                job_id=job.job_id,
                attempt=job.attempt,
                action=Action.CONTINUE,
                sequence=self.sequence(job.job_id),
                logs=tuple(
                    LogPosition(step=p.step, offset=len(self.logs.get((job.job_id, job.attempt, p.step), b"")))
                    for p in job.logs
                ),
            )
            for job in hello.jobs
        )

    def sequence(self, job_id: str) -> int:
        return max(
            (m.sequence for m in self.messages if getattr(m, "job_id", "") == job_id and hasattr(m, "sequence")),
            default=0,
        )

    async def _store(self, connection: ServerConnection, log: Log) -> None:
        stored = self.logs.setdefault((log.job_id, log.attempt, log.step), bytearray())
        assert log.offset <= len(stored), f"a gap: {log.offset} after {len(stored)}"
        stored += log.data[len(stored) - log.offset :]
        if self.ack_logs:
            await connection.send(
                encode(LogAck(job_id=log.job_id, attempt=log.attempt, step=log.step, offset=len(stored)))
            )
        await self._maybe_end(connection, log.job_id)

    async def _maybe_end(self, connection: ServerConnection, job_id: str) -> None:
        end = self._ends.get(job_id)
        if end is None or not self.ack_finished:
            return
        if all(len(self.logs.get((end.job_id, end.attempt, p.step), b"")) >= p.offset for p in end.logs):
            await connection.send(encode(FinishedAck(job_id=end.job_id, attempt=end.attempt)))

    # --- for tests -----------------------------------------------------------------------------------------

    def log(self, job_id: str, step: int = 0, attempt: int = 1) -> bytes:
        return bytes(self.logs.get((job_id, attempt, step), b""))

    async def send(self, message: ToAgent) -> None:
        assert self.connection is not None
        await self.connection.send(encode(message))

    async def until(self, ready: Callable[[], Any], what: str = "") -> Any:
        """Wait until ``ready()`` is true after some message; its value."""
        async with asyncio.timeout(DEADLINE):
            while not (value := ready()):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self._changed.wait()
            return value

    def said(self, kind: type[M], **fields: Any) -> list[M]:
        return [m for m in self.messages if isinstance(m, kind) and all(getattr(m, k) == v for k, v in fields.items())]

    async def hears(self, kind: type[M], **fields: Any) -> M:
        found: list[M] = await self.until(lambda: self.said(kind, **fields), f"{kind.__name__} {fields}")
        return found[-1]

    async def registered(self) -> Hello:
        return await self.hears(Hello)

    async def run(self, order: JobOrder, secrets: dict[str, str] | None = None) -> JobFinished:
        """Offer, start, and wait for the end."""
        await self.begin(order, secrets)
        return await self.hears(JobFinished, job_id=order.job_id, attempt=order.attempt)

    async def begin(self, order: JobOrder, secrets: dict[str, str] | None = None) -> None:
        await self.registered()
        await self.send(Offer(job_id=order.job_id, attempt=order.attempt, order=order))
        await self.hears(Accept, job_id=order.job_id, attempt=order.attempt)
        await self.send(Start(job_id=order.job_id, attempt=order.attempt, secrets=secrets or {}))

    async def cancel(self, order: JobOrder, **how: Any) -> None:
        await self.send(Cancel(job_id=order.job_id, attempt=order.attempt, **how))

    def steps(self, job_id: str) -> dict[int, StepFinished]:
        return {m.step: m for m in self.said(StepFinished, job_id=job_id)}

    def verify_logs(self, job_id: str) -> None:
        """Every log is exactly what its step said of it."""
        for step, end in self.steps(job_id).items():
            data = self.log(job_id, step)
            assert len(data) == end.log_size, f"step {step}: {len(data)} of {end.log_size} bytes"
            if end.log_digest:
                assert hashlib.sha256(data).hexdigest() == end.log_digest


class AgentProcess:
    """A real agent: ``python -m corral.agent``."""

    def __init__(self, process: asyncio.subprocess.Process, config: Path) -> None:
        self.process = process
        self.config = config

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ended(self) -> int:
        async with asyncio.timeout(DEADLINE):
            return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            await self.process.wait()


async def spawn(directory: Path, urls: tuple[str, ...], **fields: Any) -> AgentProcess:
    for name in ("work", "cache"):
        (directory / name).mkdir(exist_ok=True)
    env = {**os.environ, **fields.pop("env", {})}
    flags = ["--verbose"] if fields.pop("verbose", False) else []
    settings: dict[str, Any] = {"claim_code": "c" * 64, "min_free": 0, **fields}
    config = AgentConfig(
        agent_id="agent_test",
        coordinator_urls=urls,
        work_dir=str(directory / "work"),
        cache_dir=str(directory / "cache"),
        **settings,
    )
    file = directory / "agent.json"
    file.write_bytes(msgspec.json.encode(config))
    pass_fds = (config.grant_fd,) if config.grant_fd >= 0 else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corral.agent", "--config", str(file), *flags, pass_fds=pass_fds, env=env
    )
    return AgentProcess(process, file)


@contextlib.asynccontextmanager
async def running(directory: Path, **fields: Any) -> AsyncIterator[tuple[Coordinator, AgentProcess]]:
    """A coordinator and one agent connected to it; both gone afterwards."""
    coordinator = Coordinator()
    coordinator.single_use = fields.get("single_use", True)
    coordinator.heartbeat_interval = fields.pop("heartbeat", coordinator.heartbeat_interval)
    await coordinator.start()
    agent = await spawn(directory, (coordinator.url,), **fields)
    try:
        yield coordinator, agent
    finally:
        await agent.kill()
        await coordinator.stop()


def order(*scripts: str | StepSpec, job_id: str = "job_1", attempt: int = 1, **fields: Any) -> JobOrder:
    """A job of these shell steps; ``order_*`` fields go to the order, the others to its spec."""
    steps = tuple(
        script if isinstance(script, StepSpec) else StepSpec(name=f"s{index}", script=script)
        for index, script in enumerate(scripts)
    )
    top = {name.removeprefix("order_"): fields.pop(name) for name in list(fields) if name.startswith("order_")}
    return JobOrder(
        run_id="run_1",
        job_id=job_id,
        attempt=attempt,
        name="test",
        workflow="main",
        spec=JobSpec(name="test", steps=steps, **fields),
        **top,
    )


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


def gone(pid: int) -> bool:
    """Nothing runs under ``pid`` any more (no entry, or a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def shown(value: object) -> str:
    return json.dumps(value, default=str)
