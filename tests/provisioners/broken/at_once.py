# SPDX-License-Identifier: Apache-2.0
"""Broken: looks, and then makes, with nothing that keeps another from looking in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from corral.provisioner import Event, Provisioner
from corral.provisioner.book import Book
from tests.provisioner.cloud import Cloud


class Slow(Cloud):
    def create(self, event: Event) -> str:
        time.sleep(0.2)
        return super().create(event)


class Unlocked(Book):
    @contextlib.contextmanager
    def agent(self, cluster_id: str, agent_id: str) -> Iterator[None]:
        yield


class Broken(Provisioner):
    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.book = Unlocked(self.book.directory)
