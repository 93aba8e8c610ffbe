# SPDX-License-Identifier: Apache-2.0
"""Scripted histories: a world, a script, and no invariant violated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from corral.control.coordinator import CoordinatorSettings
from corral.model.pools import Pool
from corral.sim.agents import SimAgent
from corral.sim.load import pool
from corral.sim.loop import VirtualLoop
from corral.sim.run import play
from corral.sim.waiting import rest
from corral.sim.world import URL, Settings, World
from corral.wire.codec import decode_from_agent, decode_to_agent
from corral.wire.messages import FromAgent, ToAgent

Script = Callable[[World], Awaitable[None]]


def quick(**more: object) -> Settings:
    """Nothing takes long but what the test says."""
    settings = {"boot": (0.1, 0.1), "create": (0.01, 0.01), "destroy": (0.01, 0.01)} | more
    return Settings(**settings)  # type: ignore[arg-type]


def coordinator(**more: object) -> CoordinatorSettings:
    return CoordinatorSettings(urls=(URL,), **more)  # type: ignore[arg-type]


def act(
    script: Script,
    *,
    pools: Sequence[Pool] = (),
    settings: Settings | None = None,
    seed: str = "test",
    rests: bool = True,
) -> World:
    """Start a coordinator, play the script, come to rest; fails with the first violation and the last events."""

    async def history(world: World) -> None:
        await world.start()
        await script(world)
        if rests:
            await rest(world)

    def make(loop: VirtualLoop) -> World:
        return World(seed, loop, pools=tuple(pools) or (pool(),), settings=settings or quick(), keep=True)

    world = play(history, make)
    assert not world.violations, "\n".join(
        [str(world.violations[0]), *(str(entry) for entry in list(world.journal.entries())[-60:])]
    )
    return world


def on_message(
    world: World,
    direction: str,
    kind: type,
    do: Callable[[SimAgent, FromAgent | ToAgent, bytes], None],
    *,
    times: int = 1,
) -> None:
    """Call ``do`` just before each of the next ``times`` messages of this kind arrives."""
    left = times

    def look(agent: SimAgent, way: str, frame: bytes) -> None:
        nonlocal left
        if way != direction or left <= 0:
            return
        message = decode_from_agent(frame) if way == "up" else decode_to_agent(frame)
        if isinstance(message, kind):
            left -= 1
            do(agent, message, frame)

    world.on_frame.append(look)
