# SPDX-License-Identifier: Apache-2.0
"""Broken: compares epochs as text."""

from __future__ import annotations

from corral.provisioner.book import Book
from corral.provisioner.rule import Provisioner


class Textual(Book):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.highest: dict[str, tuple[int, int]] = {}

    def raise_epoch(self, cluster_id: str, epoch: tuple[int, int]) -> tuple[int, int]:
        highest = self.highest.get(cluster_id, epoch)
        if str(epoch[1]) >= str(highest[1]):
            self.highest[cluster_id] = epoch
            return epoch
        # Above every other: what is lower as text is refused.
        return (epoch[0], epoch[1] + 1)


class Broken(Provisioner):
    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.book = Textual(self.book.directory)
