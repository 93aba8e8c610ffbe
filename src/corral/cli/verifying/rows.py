# SPDX-License-Identifier: Apache-2.0
"""The adversary's list: each row is one thing that goes wrong in the field, and what has to come of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from corral.cli.verifying.asking import CONFIRMED, FIRST_COUNTER, POLL, TAKEN, Adversary, Unreadable, listing_of
from corral.model.events import Answer, Verdict, Webhook

BATCH = 5
OVERSIZE = 2 * 1024 * 1024
"""Bytes: a thousand times what Corral's events have."""
CUTS = (0.02, 0.1, 0.4)
"""Seconds after which a scale-up is given up in the middle."""
CUT_PAUSE = 0.4
"""Seconds until it is asked for again; Corral waits for seconds, too."""
LAG_FACTOR = 3
"""How much longer than allowed a listing is watched, to say how far behind it is."""


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Row(Struct, frozen=True, kw_only=True):
    """``happened``: one sentence; ``remedy``: empty unless it failed."""

    name: str
    status: Status
    expected: str
    happened: str
    remedy: str = ""


class Wrong(Exception):
    """What happened instead of what was expected."""


class NotReached(Wrong):
    """Not even the first event was answered: nothing else is asked."""


class NotTried(Exception):
    """Why the row says nothing about this provisioner."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """``counts``: needs a listing. ``run`` returns what happened, or raises :class:`Wrong` or :class:`NotTried`."""

    name: str
    expected: str
    remedy: str
    run: Callable[[Adversary], Awaitable[str]]
    counts: bool = True


async def judge(check: Check, adversary: Adversary) -> Row:
    """One row, tried. :raises NotReached: nobody is there."""
    adversary.quiet = 0.0
    try:
        if check.counts and not adversary.lists:
            raise NotTried("it answers inventories with `unsupported`, so nobody can count its instances")
        happened = await check.run(adversary)
    except NotReached:
        raise
    except (Wrong, Unreadable) as wrong:
        return failed(check, wrong)
    except NotTried as reason:
        return Row(name=check.name, status=Status.SKIPPED, expected=check.expected, happened=str(reason))
    return Row(name=check.name, status=Status.PASSED, expected=check.expected, happened=happened)


def failed(check: Check, wrong: Exception) -> Row:
    return Row(name=check.name, status=Status.FAILED, expected=check.expected, happened=str(wrong), remedy=check.remedy)


def said(answer: Answer) -> str:
    return f"{answer.verdict.value} ({answer.detail})" if answer.detail else answer.verdict.value


def require(answer: Answer, allowed: tuple[Verdict, ...], what: str) -> None:
    if answer.verdict not in allowed:
        raise Wrong(f"{what}: {said(answer)}")


async def require_count(adversary: Adversary, agent: str, expected: int, when: str, cluster: str | None = None) -> None:
    seen = await adversary.settled(agent, expected, cluster)
    if seen != expected:
        raise Wrong(f"{when} it lists {seen} instances of the agent, not {expected}")


async def made(adversary: Adversary, **options: object) -> str:
    """An agent whose instance is there."""
    agent = adversary.new_agent()
    require(await adversary.up(agent, **options), TAKEN, "a plain scale-up")
    await require_count(adversary, agent, 1, "after a plain scale-up")
    return agent


# --- the rows ----------------------------------------------------------------------------------------------------


async def receipt(adversary: Adversary) -> str:
    answer = await adversary.inventory()
    listing = listing_of(answer)
    if answer.verdict is Verdict.DONE and listing is not None and listing.unsupported:
        adversary.lists = False
        return "it lists nothing (`unsupported`): instances that it leaks will not be found"
    if answer.verdict is Verdict.DONE and listing is not None:
        return f"a listing of {len(listing.instances or ())} instances"
    adversary.lists = False
    if answer.verdict is Verdict.ACCEPTED:
        return "accepted; listings come later through the API, so nothing can be counted here"
    if answer.verdict is Verdict.DONE:
        raise Wrong(f"its first inventory: {said(answer)}, and no listing that can be read")
    raise NotReached(f"its first inventory: {said(answer)}")


async def listing_lag(adversary: Adversary) -> str:
    agent = adversary.new_agent()
    require(await adversary.up(agent), TAKEN, "a plain scale-up")
    appears = await _lag_until(adversary, agent, 1)
    down = await adversary.down(agent)
    require(down, (*CONFIRMED, Verdict.ACCEPTED), "a plain scale-down")
    goes = await _lag_until(adversary, agent, 0)
    adversary.lag = max(appears, goes)
    if adversary.lag > adversary.patience:
        raise Wrong(f"shown after {appears:.1f} s, and gone from the listing after {goes:.1f} s")
    return f"shown after {appears:.1f} s, gone after {goes:.1f} s, with its agent and cluster id"


async def _lag_until(adversary: Adversary, agent: str, expected: int) -> float:
    """Seconds; 0 where the first listing shows it."""
    began = adversary.clock.monotonic()
    if await adversary.count(agent) == expected:
        return 0.0
    until = began + LAG_FACTOR * adversary.patience
    while adversary.clock.monotonic() < until:
        await adversary.clock.sleep(POLL)
        if await adversary.count(agent) == expected:
            return adversary.clock.monotonic() - began
    there = await adversary.listed()
    strange = sum(each.agent_id != agent for each in there)
    raise Wrong(
        f"{LAG_FACTOR * adversary.patience:g} s after it was {'made' if expected else 'destroyed'}, the listing "
        f"{'lacks' if expected else 'still has'} the instance ({strange} others are listed)"
    )


async def lost_answer(adversary: Adversary) -> str:
    agent = adversary.new_agent()
    for _ in range(2):
        answer = await adversary.up(agent, event_id=f"evt_lost_{agent[-12:]}")
        require(answer, TAKEN, "the same scale-up again")
    await require_count(adversary, agent, 1, "after the same scale-up twice")
    return f"one instance; the second time: {said(answer)}"


async def duplicate(adversary: Adversary) -> str:
    agent = await made(adversary)
    adversary.note_epoch(adversary.cluster, FIRST_COUNTER + 1)
    answer = await adversary.up(agent)
    require(answer, TAKEN, "a scale-up under another event id and a newer epoch")
    await require_count(adversary, agent, 1, "after the scale-up under another event id")
    return f"one instance; the second time: {said(answer)}"


async def at_once(adversary: Adversary) -> str:
    agent = adversary.new_agent()
    same = f"evt_once_{agent[-12:]}"
    answers = await asyncio.gather(*(adversary.up(agent, event_id=same) for _ in range(3)))
    if not any(answer.verdict in TAKEN for answer in answers):
        raise Wrong("none of three at the same time was taken: " + "; ".join(map(said, answers)))
    await require_count(adversary, agent, 1, "after three scale-ups at the same time")
    return "one instance of three scale-ups at the same time"


async def cut_off(adversary: Adversary) -> str:
    agents = []
    for seconds in CUTS:
        agent = adversary.new_agent()
        agents.append(agent)
        await adversary.up(agent, timeout=seconds, event_id=f"evt_cut_{agent[-12:]}")
        await adversary.clock.sleep(CUT_PAUSE)
    for agent in agents:
        answer = await adversary.up(agent, event_id=f"evt_cut_{agent[-12:]}")
        require(answer, TAKEN, "the scale-up again, after one that was cut off in the middle")
        await require_count(adversary, agent, 1, "after one that was cut off, and one that was not,")
    return f"one instance each, cut off after {', '.join(f'{seconds:g}' for seconds in CUTS)} s and asked again"


async def delete_twice(adversary: Adversary) -> str:
    agent = await made(adversary)
    for number in range(2):
        answer = await adversary.down(agent)
        allowed = CONFIRMED if number else (*CONFIRMED, Verdict.ACCEPTED)
        if answer.verdict is Verdict.ACCEPTED:
            await adversary.settled(agent, 0)
            answer = await adversary.down(agent)
        require(answer, allowed, f"the scale-down, time {number + 1}")
    await require_count(adversary, agent, 0, "after the scale-down")
    return f"gone; asked again: {said(answer)}"


async def delete_first(adversary: Adversary) -> str:
    agent = adversary.new_agent()
    down = await adversary.down(agent)
    require(down, (*CONFIRMED, Verdict.ACCEPTED), "the scale-down of what it does not know yet")
    up = await adversary.up(agent)
    if up.verdict in (Verdict.DONE, Verdict.ACCEPTED, Verdict.ALREADY) and not adversary.lists:
        raise Wrong(f"the scale-up that came after its scale-down: {said(up)}")
    await require_count(adversary, agent, 0, "after the scale-up that came behind its scale-down")
    return f"none; the scale-up behind it: {said(up)}"


async def late_create(adversary: Adversary) -> str:
    agent = await made(adversary)
    require(await adversary.down(agent), (*CONFIRMED, Verdict.ACCEPTED), "a plain scale-down")
    await require_count(adversary, agent, 0, "after the scale-down")
    up = await adversary.up(agent)
    await require_count(adversary, agent, 0, "after a copy of the scale-up that came late")
    return f"none; the late copy: {said(up)}"


async def stale_epoch(adversary: Adversary) -> str:
    # A cluster of its own: 9 and 10 are in another order as text than as numbers.
    cluster, agent = adversary.new_cluster(), adversary.new_agent()
    require(await adversary.up(agent, cluster=cluster, epoch="1.9"), TAKEN, "a plain scale-up")
    adversary.note_epoch(cluster, 10)
    first = await adversary.inventory(cluster)
    require(first, (Verdict.DONE, Verdict.ACCEPTED), "the first inventory of a new leader, at epoch 1.10 after 1.9")
    answer = await adversary.down(agent, cluster=cluster, epoch="1.9")
    require(answer, (Verdict.STALE,), "a scale-down at epoch 1.9 after an inventory at 1.10")
    if adversary.lists:
        await require_count(adversary, agent, 1, "after the deposed leader's scale-down", cluster)
    return f"refused: {said(answer)}"


async def lower_sequence(adversary: Adversary) -> str:
    agent = await made(adversary, sequence=5)
    answer = await adversary.down(agent, sequence=4)
    await require_count(adversary, agent, 1, "after a scale-down of a lower sequence")
    if answer.verdict in CONFIRMED:
        raise Wrong(f"it says that an instance is gone which is there: {said(answer)}")
    return f"ignored: {said(answer)}"


async def batch(adversary: Adversary) -> str:
    agents = [adversary.new_agent() for _ in range(BATCH)]
    events = [adversary.up(agent) for agent in agents[:-1]]
    *answers, bad = await asyncio.gather(*events, adversary.up(agents[-1], epoch="no epoch", sequence=-1))
    for answer in answers:
        require(answer, TAKEN, "a good scale-up beside a bad one")
    if bad.verdict in TAKEN:
        raise Wrong(f"a scale-up without a readable epoch: {said(bad)}")
    for agent in agents[:-1]:
        await require_count(adversary, agent, 1, f"after {BATCH - 1} good scale-ups and a bad one at the same time")
    await require_count(adversary, agents[-1], 0, "of the bad one")
    return f"{BATCH - 1} instances; the bad one: {said(bad)}"


async def foreign_cluster(adversary: Adversary) -> str:
    agent = await made(adversary)
    other = adversary.new_cluster()
    await adversary.down(agent, cluster=other, epoch="0.1")
    await require_count(adversary, agent, 1, "after another cluster's scale-down of the same agent id")
    foreign = [each for each in await adversary.listed(other) if each.cluster_id != other or each.agent_id == agent]
    if foreign:
        raise Wrong(f"another cluster's inventory lists {len(foreign)} instances that are not its own")
    return "untouched, and not in the other cluster's listing"


async def bad_signature(adversary: Adversary) -> str:
    if adversary.impostor is None or not isinstance(adversary.target, Webhook):
        raise NotTried("only webhooks are signed")
    agent = adversary.new_agent()
    answer = await adversary.up(agent, via=adversary.impostor)
    require(answer, (Verdict.REFUSED, Verdict.ABSENT), "a scale-up that another key has signed")
    if adversary.lists:
        await require_count(adversary, agent, 0, "after a scale-up that another key has signed")
    return f"refused: {said(answer)}"


async def oversized(adversary: Adversary) -> str:
    agent = adversary.new_agent()
    answer = await adversary.up(agent, run_id="x" * OVERSIZE)
    after = await adversary.inventory()
    if after.verdict not in (Verdict.DONE, Verdict.ACCEPTED):
        raise Wrong(f"after an event of {OVERSIZE // 1024**2} MiB it answers an inventory with {said(after)}")
    if answer.verdict in TAKEN:
        raise Wrong(f"an event of {OVERSIZE // 1024**2} MiB: {said(answer)}")
    return f"not taken, and it goes on: {said(answer)}"


async def unknown_type(adversary: Adversary) -> str:
    agent = adversary.new_agent()
    answer = await adversary.say("corral.scaler.scale-sideways.v9", agent)
    if answer.verdict in (*TAKEN, *CONFIRMED, Verdict.STALE):
        raise Wrong(f"an event of an unknown type: {said(answer)}")
    if adversary.lists:
        await require_count(adversary, agent, 0, "after an event of an unknown type")
    return f"refused: {said(answer)}"


CHECKS = (
    Check(
        name="receipt",
        expected="an inventory is answered, with a listing or `unsupported`",
        remedy='print {"instances": [...], "request": ...} and exit 0, or answer 200 with it',
        run=receipt,
        counts=False,
    ),
    Check(
        name="list lag",
        expected="a listing shows what was made, and no longer what was destroyed, within the allowed lag",
        remedy="tag instances with agent and cluster id in the create call, and list what is there now, not a copy",
        run=listing_lag,
    ),
    Check(
        name="lost answer",
        expected="the same scale-up again makes no second instance",
        remedy="look for an instance of that agent id before one is made, and tag it in the create call",
        run=lost_answer,
    ),
    Check(
        name="duplicate event",
        expected="a scale-up under another event id makes no second instance",
        remedy="the agent id is the key, not the event's id",
        run=duplicate,
    ),
    Check(
        name="at once",
        expected="the same scale-up three times at the same moment makes one instance",
        remedy="hold a lock per agent id from looking to having made",
        run=at_once,
    ),
    Check(
        name="hang",
        expected="a scale-up that is cut off at its deadline can be asked again, and makes one instance",
        remedy="use locks that end with their process (flock), and note what is under way before it is begun",
        run=cut_off,
    ),
    Check(
        name="delete twice",
        expected="destroying what is gone is success",
        remedy="`not found` from the provider is success: exit 0, or answer 200 or 404",
        run=delete_twice,
    ),
    Check(
        name="delete before create",
        expected="a scale-up that comes behind its scale-down makes nothing",
        remedy="note the scale-down also of an agent that is not known",
        run=delete_first,
    ),
    Check(
        name="late create",
        expected="a late copy of a scale-up does not bring an instance back",
        remedy="keep a record of destroyed agents, for a day at least",
        run=late_create,
    ),
    Check(
        name="stale epoch",
        expected="an event below the highest epoch of its cluster is refused with 412 or exit 77",
        remedy="keep the highest epoch per cluster id, compare both numbers, raise it also for inventories",
        run=stale_epoch,
        counts=False,
    ),
    Check(
        name="lower sequence",
        expected="an event below its agent's highest sequence changes nothing, and confirms nothing",
        remedy="keep the highest sequence per agent id; answer 409 or exit 1",
        run=lower_sequence,
    ),
    Check(
        name="partial batch",
        expected="of several at the same time each good one is done, and the bad one alone is refused",
        remedy="let no event wait for, fail with, or overwrite the record of another",
        run=batch,
    ),
    Check(
        name="foreign cluster",
        expected="another cluster's events touch and list only its own instances",
        remedy="everything is keyed by cluster id and agent id together",
        run=foreign_cluster,
    ),
    Check(
        name="bad signature",
        expected="what another key has signed is refused, and does nothing",
        remedy="verify the signature over id, timestamp and body first, as corral.provisioner.signature does",
        run=bad_signature,
        counts=False,
    ),
    Check(
        name="oversized event",
        expected="an event of megabytes is not taken, and the next one is answered",
        remedy="read at most 256 KiB",
        run=oversized,
        counts=False,
    ),
    Check(
        name="unknown type",
        expected="an event of a type that it does not know is refused",
        remedy="answer 400 or exit 1 to every type but the three",
        run=unknown_type,
        counts=False,
    ),
)
