# SPDX-License-Identifier: Apache-2.0
"""The worker without a machine: virtual time, links in memory, a runner that only pretends."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any

from corral.agent.interface import Link, LinkClosed, Reports
from corral.agent.worker import Worker
from corral.model.agentconfig import AgentConfig
from corral.model.spec import JobOrder, Reason, Result
from corral.runtime.chance import SeededChance
from corral.wire.agent import JobOutcome, StepOutcome
from corral.wire.codec import decode_from_agent, encode
from corral.wire.messages import (
    Facts,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobAnswer,
    Limits,
    ToAgent,
    Welcome,
)


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Waiting takes no time: the loop's clock jumps instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.loop.now += timeout
        assert ready or timeout is not None, "everything waits for something that will never happen"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.now

    def now(self) -> int:
        return int(self._loop.now * 1e6)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MemoryLink:
    """The agent's end; the test holds the other one."""

    def __init__(self) -> None:
        self.to_agent: asyncio.Queue[bytes | LinkClosed] = asyncio.Queue()
        self.sent: list[FromAgent] = []
        self.on_message = lambda message: None
        self.closed: int | None = None

    async def send(self, frame: bytes) -> None:
        if self.closed is not None:
            raise LinkClosed(close_code=self.closed)
        message = decode_from_agent(frame)
        self.sent.append(message)
        self.on_message(message)

    async def receive(self) -> bytes:
        frame = await self.to_agent.get()
        if isinstance(frame, LinkClosed):
            raise frame
        return frame

    async def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = code

    def say(self, message: ToAgent) -> None:
        self.to_agent.put_nowait(encode(message))

    def break_off(self, code: int = 0) -> None:
        self.closed = code
        self.to_agent.put_nowait(LinkClosed(close_code=code))


class World:
    """A coordinator that welcomes everybody, and its switches. ``moments``: when what was dialled."""

    def __init__(self, loop: VirtualLoop, **config: Any) -> None:
        self.loop = loop
        self.reachable = True
        self.answers = True
        self.hangs = False
        self.links: list[MemoryLink] = []
        self.dialled: list[tuple[float, str]] = []
        self.jobs: tuple[JobAnswer, ...] = ()
        self.welcome = Welcome(
            session=1,
            coordinator_urls=("http://a:1",),
            heartbeat_interval=20.0,
            limits=Limits(),
            single_use=bool(config.get("single_use", True)),
        )
        self.warden: list[float] = []
        self.runner = PretendRunner(loop)
        self.worker = Worker(
            config=AgentConfig(
                agent_id="agent_1",
                coordinator_urls=config.pop("urls", ("http://a:1",)),
                work_dir="/nowhere",
                cache_dir="/nowhere",
                **{"claim_code": "c", **config},
            ),
            dial=self,
            runner=self.runner,
            clock=VirtualClock(loop),
            chance=SeededChance(1),
            facts=Facts(os="linux", arch="x", host="h", version="1"),
            tell_warden=self.warden.append,
        )

    @property
    def link(self) -> MemoryLink:
        return self.links[-1]

    async def dial(self, url: str) -> Link:
        self.dialled.append((self.loop.now, url))
        if self.hangs:
            await asyncio.sleep(3600)
        if not self.reachable:
            raise LinkClosed("refused")
        link = MemoryLink()
        link.on_message = lambda message: self._answer(link, message)
        self.links.append(link)
        return link

    def _answer(self, link: MemoryLink, message: FromAgent) -> None:
        if not self.answers:
            return
        if isinstance(message, Hello):
            import msgspec

            link.say(msgspec.structs.replace(self.welcome, jobs=self.jobs))
        if isinstance(message, Heartbeat):
            link.say(HeartbeatAck(number=message.number))


class PretendJob:
    def __init__(self, order: JobOrder, reports: Reports, loop: VirtualLoop) -> None:
        self.order = order
        self.reports = reports
        self.cancelled: list[tuple[float, Reason, bool]] = []
        self.forgotten = False
        self.bytes = b""
        self._loop = loop
        self._end: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()

    @property
    def logs(self) -> PretendJob:
        return self

    def read(self, step: int, offset: int, limit: int) -> bytes:
        return self.bytes[offset : offset + limit]

    def stored(self, step: int, offset: int) -> None:
        pass

    def prints(self, data: bytes) -> None:
        self.bytes += data
        self.reports.log_grew(0, len(self.bytes))

    async def wait(self) -> JobOutcome:
        return await asyncio.shield(self._end)

    def cancel(self, *, reason: Reason, grace: float, force: bool) -> None:
        self.cancelled.append((self._loop.now, reason, force))
        if force:
            self.end(Result.LOST, reason)

    def end(self, result: Result = Result.SUCCEEDED, reason: Reason = Reason.NONE) -> None:
        if not self._end.done():
            self.reports.step_finished(0, StepOutcome(result=result, reason=reason, log_size=len(self.bytes)))
            self._end.set_result(JobOutcome(result=result, reason=reason))

    def forget(self) -> None:
        self.forgotten = True


class PretendRunner:
    def __init__(self, loop: VirtualLoop) -> None:
        self.jobs: list[PretendJob] = []
        self.unfit_because = ""
        self.broken = False
        self.closed = False
        self._loop = loop

    def unfit(self, order: JobOrder) -> str:
        return self.unfit_because

    def start(self, order: JobOrder, secrets: Mapping[str, str], reports: Reports) -> PretendJob:
        if self.broken:
            raise RuntimeError("broken")
        job = PretendJob(order, reports, self._loop)
        self.jobs.append(job)
        return job

    async def close(self) -> None:
        self.closed = True


def in_virtual_time(work: Any) -> None:
    """Run ``work(loop)`` to its end in a fresh virtual loop."""
    loop = VirtualLoop()
    try:
        coroutine: Coroutine[Any, Any, None] = work(loop)
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
