# SPDX-License-Identifier: Apache-2.0
"""Many protocol clients in one process: they register, take what they are offered and report its end at once. They
measure the coordinator, not the running of steps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop
import websockets
from websockets.asyncio.client import ClientConnection, connect

from corral.client import Client
from corral.model.spec import Result
from corral.model.views import NewToken
from corral.wire.codec import decode_to_agent, encode
from corral.wire.messages import (
    FRAME_LIMIT,
    PROTOCOL,
    SUBPROTOCOL,
    Accept,
    ConfigAck,
    Facts,
    FinishedAck,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobFinished,
    JobStarted,
    Offer,
    Start,
    StepFinished,
    StepStarted,
    ToAgent,
    Welcome,
)


@dataclass(kw_only=True)
class Crowd:
    """``offered``: job ids in the order of their offers, over all clients. ``latencies``: seconds from an offer's
    receipt to its start."""

    url: str
    tokens: Sequence[str]
    offered: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    online: int = 0
    _connections: set[ClientConnection] = field(default_factory=set)
    _stopping: bool = False

    @classmethod
    async def make(cls, client: Client, url: str, *, count: int, label: str) -> Crowd:
        """Static agents by token; nobody connects yet."""
        limit = asyncio.Semaphore(16)

        async def token(number: int) -> str:
            async with limit:
                created = await client.create_token(NewToken(name=f"crowd-{number}", role="agent", labels=(label,)))
            return created.token

        return cls(url=url, tokens=await asyncio.gather(*(token(number) for number in range(count))))

    async def serve(self) -> None:
        """All connect at the same moment, and serve until :meth:`stop`."""
        await asyncio.gather(*(self._client(token) for token in self.tokens))

    def stop(self) -> None:
        self._stopping = True
        for connection in self._connections:
            connection.transport.close()

    async def _client(self, token: str) -> None:
        url = self.url.replace("http", "ws", 1) + "/agent/v1"
        async with connect(
            url,
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
            compression=None,
            ping_interval=None,
            max_size=FRAME_LIMIT,
            proxy=None,
            open_timeout=60,
            close_timeout=1,
        ) as connection:
            self._connections.add(connection)
            with contextlib.suppress(websockets.ConnectionClosed):
                await self._talk(connection, token)
            self._connections.discard(connection)

    async def _talk(self, connection: ClientConnection, token: str) -> None:
        agent_id, _, key = token.partition(".")
        facts = Facts(os="linux", arch="bench", host="bench", version="0")
        hello = Hello(protocol=PROTOCOL, agent_id=agent_id, key=key, boot_id=agent_id, facts=facts)
        await connection.send(encode(hello))
        offers: dict[tuple[str, int], float] = {}
        async for frame in connection:
            assert isinstance(frame, bytes)
            for answer in self._answers(decode_to_agent(frame), offers):
                await connection.send(encode(answer))

    def _answers(self, message: ToAgent, offers: dict[tuple[str, int], float]) -> list[FromAgent]:
        match message:
            case Welcome():
                self.online += 1
                return [ConfigAck()]
            case Offer():
                self.offered.append(message.job_id)
                offers[(message.job_id, message.attempt)] = time.perf_counter()
                return [Accept(job_id=message.job_id, attempt=message.attempt)]
            case Start():
                self.latencies.append(time.perf_counter() - offers.pop((message.job_id, message.attempt)))
                return _whole_job(message.job_id, message.attempt)
            case Heartbeat():
                return [HeartbeatAck(number=message.number)]
            case FinishedAck():
                return []
            case _:
                return []


def _whole_job(job_id: str, attempt: int) -> list[FromAgent]:
    now = time.time_ns() // 1000
    return [
        JobStarted(job_id=job_id, attempt=attempt, sequence=1, time=now),
        StepStarted(job_id=job_id, attempt=attempt, sequence=2, step=0, time=now),
        StepFinished(
            job_id=job_id, attempt=attempt, sequence=3, step=0, time=now, result=Result.SUCCEEDED, exit_code=0
        ),
        JobFinished(job_id=job_id, attempt=attempt, sequence=4, time=now, result=Result.SUCCEEDED),
    ]


async def _main(url: str, count: int, label: str) -> None:
    async with Client(url, os.environ["CORRAL_BENCH_TOKEN"]) as client:
        crowd = await Crowd.make(client, url, count=count, label=label)
    await crowd.serve()


if __name__ == "__main__":
    # The clients share the machine with what they measure: their own pauses would be counted as the server's.
    gc.disable()
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
