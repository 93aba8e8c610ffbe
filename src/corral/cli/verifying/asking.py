# SPDX-License-Identifier: Apache-2.0
"""What the adversary says to a provisioner, and what it finds there; everything it made is known for the end."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.backends.event.interface import Deliverer
from corral.decide.listings import read_listing
from corral.model.events import (
    SPEC_VERSION,
    Answer,
    CloudEvent,
    EventKind,
    ListedInstance,
    Listing,
    Resources,
    Target,
    Verdict,
)
from corral.runtime.chance import Chance, agent_id, secret_token
from corral.runtime.clock import Clock, rfc3339

NOBODY = "http://127.0.0.1:9"
"""Where agents are told to dial: nothing answers there, and the claim codes are nobody's."""
POLL = 0.1
"""Seconds between two listings while one is waited for."""
ACCEPTED_QUIET = 2.0
"""Seconds after which a second instance of an asynchronous create is looked for once more."""
LAST_SEQUENCE = 1_000_000
FIRST_COUNTER = 19
CLEANING_TRIES = 3
CONFIRMED = (Verdict.DONE, Verdict.ABSENT)
"""Answers to a scale-down that say that nothing is left."""
TAKEN = (Verdict.DONE, Verdict.ACCEPTED, Verdict.ALREADY)
"""Answers to a scale-up that say that the instance is there, or will be."""


class Unreadable(Exception):
    """No listing, from a provisioner that has one."""


class Adversary:
    """One conversation, under cluster ids of its own.

    :param timeout: seconds that one event may take.
    :param patience: seconds until a listing has to show what was done.
    """

    def __init__(
        self,
        target: Target,
        deliverer: Deliverer,
        *,
        impostor: Deliverer | None,
        clock: Clock,
        chance: Chance,
        timeout: float,
        patience: float,
        accepted_quiet: float = ACCEPTED_QUIET,
    ) -> None:
        self.target = target
        self.impostor = impostor
        self.clock = clock
        self.timeout = timeout
        self.patience = patience
        self.lag = 0.0
        """Seconds that the provisioner's listing was seen to lag behind."""
        self.quiet = 0.0
        self.lists = True
        self._accepted_quiet = accepted_quiet
        self._deliverer = deliverer
        self._chance = chance
        self.cluster = self.new_cluster()
        self._counters: dict[str, int] = {}
        self._made: dict[tuple[str, str], str] = {}
        """Provider's ids by cluster and agent, of everything that was ever asked for."""
        self._number = 0

    def new_cluster(self) -> str:
        return "corral-verify-" + self._chance.token_bytes(6).hex()

    def new_agent(self) -> str:
        return agent_id(self._chance)

    # --- saying ------------------------------------------------------------------------------------------------

    def epoch(self, cluster: str) -> str:
        """The epoch in force for a cluster."""
        return f"1.{self._counters.setdefault(cluster, FIRST_COUNTER)}"

    def note_epoch(self, cluster: str, counter: int) -> None:
        """A new leader of the cluster: its events carry ``1.COUNTER`` from now on."""
        self._counters[cluster] = counter

    async def up(self, agent: str, **options: Any) -> Answer:
        return await self.say(EventKind.SCALE_UP, agent, **options)

    async def down(self, agent: str, *, sequence: int = 2, **options: Any) -> Answer:
        return await self.say(EventKind.SCALE_DOWN, agent, sequence=sequence, **options)

    async def say(
        self,
        kind: str,
        agent: str,
        *,
        cluster: str | None = None,
        epoch: str = "",
        sequence: int = 1,
        event_id: str = "",
        timeout: float | None = None,
        via: Deliverer | None = None,
        **data: object,
    ) -> Answer:
        """Send one event; ``data`` replaces parts of what it holds."""
        name = cluster or self.cluster
        if kind != EventKind.INVENTORY:
            self._made.setdefault((name, agent), "")
        self._number += 1
        identity = event_id or f"evt_verify_{self._number}_{agent[-8:]}"
        body = msgspec.json.encode(
            CloudEvent(
                specversion=SPEC_VERSION,
                id=identity,
                source=f"/corral/{name}",
                type=kind,
                time=rfc3339(self.clock.now()),
                subject=agent,
                datacontenttype="application/json",
                data=self._data(kind, name, agent, epoch or self.epoch(name), sequence) | data,
            )
        )
        within = self.timeout if timeout is None else timeout
        answer = await (via or self._deliverer).deliver(self.target, body, event_id=identity, timeout=within)
        if answer.provider_id and kind != EventKind.INVENTORY:
            self._made[name, agent] = answer.provider_id
        if answer.verdict is Verdict.ACCEPTED:
            self.quiet = self._accepted_quiet
        return answer

    def _data(self, kind: str, cluster: str, agent: str, epoch: str, sequence: int) -> dict[str, object]:
        usual: dict[str, object] = {"cluster_id": cluster, "epoch": epoch}
        if kind == EventKind.INVENTORY:
            return usual | {"request": agent}
        usual |= {"agent_id": agent, "sequence": sequence, "pool": "verify"}
        if kind == EventKind.SCALE_DOWN:
            return usual | {"reason": "operator", "evidence": {"because": "corral provisioner verify"}}
        return usual | {
            "labels": ["verify"],
            "mandatory_labels": [],
            "resources": msgspec.to_builtins(Resources(cpu=0.1, memory=64 * 1024**2)),
            "coordinator_urls": [NOBODY],
            "claim_code": secret_token(self._chance, "claim_"),
        }

    # --- finding -----------------------------------------------------------------------------------------------

    async def inventory(self, cluster: str | None = None, *, epoch: str = "") -> Answer:
        return await self.say(EventKind.INVENTORY, f"inventory-{self._number}", cluster=cluster, epoch=epoch)

    async def listed(self, cluster: str | None = None) -> tuple[ListedInstance, ...]:
        """What it lists now. :raises Unreadable: an inventory came to something else."""
        answer = await self.inventory(cluster)
        listing = listing_of(answer)
        if listing is None or listing.unsupported:
            raise Unreadable(f"an inventory: {answer.verdict.value} ({answer.detail}), and no listing that can be read")
        return listing.instances or ()

    async def count(self, agent: str, cluster: str | None = None) -> int:
        name = cluster or self.cluster
        found = await self.listed(cluster)
        return sum(each.agent_id == agent and each.cluster_id == name for each in found)

    async def settled(self, agent: str, expected: int, cluster: str | None = None) -> int:
        """How many instances of the agent there are, once that is ``expected``, or the listing's patience is over."""
        until = self.clock.monotonic() + max(self.patience, 2 * self.lag)
        while True:
            seen = await self.count(agent, cluster)
            if seen == expected and (quiet := self.quiet + self.lag):
                await self.clock.sleep(quiet)
                seen = await self.count(agent, cluster)
            if seen == expected or self.clock.monotonic() >= until:
                return seen
            await self.clock.sleep(POLL)

    # --- leaving -----------------------------------------------------------------------------------------------

    async def clean_up(self) -> list[str]:
        """Have everything destroyed that was ever asked for; what could not be, one sentence each."""
        left = []
        for (cluster, agent), provider_id in tuple(self._made.items()):
            answer = await self._destroyed(cluster, agent)
            if not self.lists and answer.verdict not in (*CONFIRMED, Verdict.ACCEPTED):
                known = f", {provider_id}" if provider_id else ""
                left.append(f"{agent} of cluster {cluster}{known}: {answer.verdict.value}, {answer.detail}")
        if not self.lists:
            return left
        for cluster in sorted({cluster for cluster, _ in self._made}):
            try:
                rest = await self._rest(cluster)
            except Unreadable as why:
                left.append(f"what there is of cluster {cluster} cannot be told: {why}")
                continue
            left += [f"{each.agent_id} of cluster {cluster}, {each.provider_id}: still listed" for each in rest]
        return left

    async def _destroyed(self, cluster: str, agent: str) -> Answer:
        for number in range(CLEANING_TRIES):
            answer = await self.down(agent, cluster=cluster, sequence=LAST_SEQUENCE + number)
            if answer.verdict in (*CONFIRMED, Verdict.ACCEPTED):
                break
        return answer

    async def _rest(self, cluster: str) -> tuple[ListedInstance, ...]:
        until = self.clock.monotonic() + max(self.patience, 2 * self.lag)
        while True:
            rest = tuple(each for each in await self.listed(cluster) if each.cluster_id == cluster)
            if not rest or self.clock.monotonic() >= until:
                return rest
            await self.clock.sleep(POLL)


def listing_of(answer: Answer) -> Listing | None:
    """None: there is none in the answer."""
    return read_listing(answer.body) if answer.verdict is Verdict.DONE else None
