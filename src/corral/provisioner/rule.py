# SPDX-License-Identifier: Apache-2.0
"""The published rule: per cluster no epoch below the highest ever seen, per agent no lower sequence, one instance per
agent id, and none for an agent whose instance was to be destroyed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from corral.provisioner.book import Book, Damaged, Record
from corral.provisioner.events import INVENTORY, SCALE_UP, Event, Malformed, parse


class Refused(Exception):
    """Raised by ``create`` or ``destroy``: it is not done, and asking again does not help by itself.

    ``provider_id``: of what may exist all the same."""

    def __init__(self, message: str, *, provider_id: str = "") -> None:
        super().__init__(message)
        self.provider_id = provider_id


class Later(Refused):
    """Raised by ``create`` or ``destroy``: not now; Corral asks again."""


class Outcome(Enum):
    """What an event came to: HTTP status, exit code."""

    DONE = (200, 0)
    ALREADY = (409, 0)
    """The instance was there before; as good as done."""
    IGNORED = (409, 1)
    """Its sequence is below one that was seen: something newer was said about this agent."""
    GONE = (410, 1)
    """A scale-up of what was to be destroyed already: it is never made."""
    REFUSED = (422, 1)
    MALFORMED = (400, 1)
    STALE = (412, 77)
    LATER = (503, 75)
    FAILED = (500, 1)

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def exit_code(self) -> int:
        return self.value[1]


@dataclass(frozen=True)
class Instance:
    """One in a listing. ``cluster_id`` and ``agent_id`` come from the instance's own tags."""

    agent_id: str
    cluster_id: str
    provider_id: str = ""
    pool: str = ""
    hourly: float | None = None


@dataclass(frozen=True)
class Result:
    """``message``: one sentence for people. ``body``: what is answered, as JSON."""

    outcome: Outcome
    message: str = ""
    provider_id: str = ""
    body: dict[str, object] | None = None

    def json(self) -> dict[str, object]:
        if self.body is not None:
            return self.body
        answer: dict[str, object] = {"outcome": self.outcome.name.lower()}
        if self.message:
            answer["message"] = self.message
        if self.provider_id:
            answer["provider_id"] = self.provider_id
        return answer


_ALWAYS = ("agent_id", "cluster_id")
"""Fields of a listed instance that stay, also where a tag is empty."""
Create = Callable[[Event], "str | None"]
Destroy = Callable[[Event], object]
List = Callable[[str], Iterable[Instance]]


class Provisioner:
    """Keeps the rule around three functions of the user's.

    :param state: a directory of this provisioner's own; it must outlive restarts.
    :param create: makes one instance tagged with cluster, pool and agent id *in the create call*, and returns the
        provider's id of it. Called again for the same agent only if an earlier call's end is not known and ``list``
        does not show the instance.
    :param destroy: destroys it in whatever state; returns when it is gone. That there is none is success. Called
        also for an agent of which nothing is known.
    :param list: given a cluster's id, the instances that really are there, by their tags. None: what is remembered
        stands in for it where ``remembered`` is set, else inventories are answered with ``unsupported``.
    """

    def __init__(
        self,
        state: str | os.PathLike[str],
        *,
        create: Create,
        destroy: Destroy,
        list: List | None = None,
        remembered: bool = False,
    ) -> None:
        self.book = Book(state)
        self._create = create
        self._destroy = destroy
        self._list = list
        self._remembered = remembered

    def handle(self, raw: bytes) -> Result:
        """Judge one event and do what it asks. Never raises for what the user's functions raise."""
        try:
            return self._judged(parse(raw))
        except Malformed as error:
            return Result(Outcome.MALFORMED, str(error))
        except Damaged as error:
            return Result(Outcome.LATER, str(error))
        except Later as error:
            return Result(Outcome.LATER, str(error), error.provider_id)
        except Refused as error:
            return Result(Outcome.REFUSED, str(error), error.provider_id)
        except Exception as error:
            return Result(Outcome.FAILED, f"{type(error).__name__}: {error}")

    def _judged(self, event: Event) -> Result:
        highest = self.book.raise_epoch(event.cluster_id, event.epoch)
        if event.epoch < highest:
            seen = ".".join(map(str, highest))
            return Result(Outcome.STALE, f"epoch {'.'.join(map(str, event.epoch))} is below {seen}, which was seen")
        if event.type == INVENTORY:
            return self._inventory(event)
        with self.book.agent(event.cluster_id, event.agent_id):
            record = self.book.read(event.cluster_id, event.agent_id)
            up = event.type == SCALE_UP
            if up and record is not None and record.state in ("destroying", "gone"):
                return Result(
                    Outcome.GONE, f"the instance of {event.agent_id} was to be destroyed; it is not made again"
                )
            if record is not None and event.sequence < record.sequence:
                return Result(Outcome.IGNORED, f"sequence {event.sequence} is below {record.sequence}, which was seen")
            return self._up(event, record) if up else self._down(event, record)

    def _up(self, event: Event, record: Record | None) -> Result:
        if record is not None and record.state == "present":
            return Result(Outcome.ALREADY, "it is there", record.provider_id)
        entry = Record(event.cluster_id, event.agent_id, event.sequence, "creating", pool=event.pool)
        found = None if record is None else self._found(event)
        if found is None:
            self.book.write(dataclasses.replace(entry, provider_id="" if record is None else record.provider_id))
            found = self._made(event, entry)
        self.book.write(dataclasses.replace(entry, state="present", provider_id=found))
        return Result(Outcome.DONE, "", found)

    def _made(self, event: Event, entry: Record) -> str:
        try:
            return self._create(event) or ""
        except Refused as error:
            if error.provider_id:
                self.book.write(dataclasses.replace(entry, provider_id=error.provider_id))
            raise

    def _found(self, event: Event) -> str | None:
        """L3: an earlier call's end is not known: did it make one?"""
        if self._list is None:
            return None
        mine = (each for each in self._list(event.cluster_id) if each.agent_id == event.agent_id)
        return next((each.provider_id for each in mine if each.cluster_id == event.cluster_id), None)

    def _down(self, event: Event, record: Record | None) -> Result:
        provider_id = event.provider_id or (record.provider_id if record is not None else "")
        entry = Record(
            event.cluster_id, event.agent_id, event.sequence, "destroying", provider_id=provider_id, pool=event.pool
        )
        # Also of an agent that nobody knows: its scale-up may still be on the way.
        self.book.write(entry)
        self._destroy(dataclasses.replace(event, provider_id=provider_id))
        self.book.write(dataclasses.replace(entry, state="gone"))
        return Result(Outcome.DONE, "it is gone", provider_id)

    def _inventory(self, event: Event) -> Result:
        self.book.purge()
        if self._list is not None:
            listed = [each for each in self._list(event.cluster_id) if each.cluster_id == event.cluster_id]
        elif self._remembered:
            listed = [
                Instance(each.agent_id, each.cluster_id, each.provider_id, each.pool)
                for each in self.book.present(event.cluster_id)
            ]
        else:
            return Result(Outcome.DONE, body={"unsupported": True, "request": event.request})
        instances = [
            {
                name: value
                for name, value in dataclasses.asdict(each).items()
                if name in _ALWAYS or value not in (None, "")
            }
            for each in listed
        ]
        return Result(Outcome.DONE, body={"instances": instances, "request": event.request, "complete": True})
