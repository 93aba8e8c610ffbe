# SPDX-License-Identifier: Apache-2.0
"""What every source store does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from corral.model.errors import NotFound, Refused, TooLarge
from corral.model.ids import SourceHash
from corral.store.interface import SourceStore
from corral.store.sourcedir import SourceDirectory
from corral.store.sourcememory import MemorySources

MakeStore = Callable[[], SourceStore]
ARCHIVE = bytes(range(256)) * 4096


@pytest.fixture(params=["directory", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    return MemorySources if request.param == "memory" else lambda: SourceDirectory(tmp_path / "sources")


def hash_of(data: bytes) -> SourceHash:
    return SourceHash(hashlib.sha256(data).hexdigest())


async def chunks(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def whole(store: SourceStore, hash: SourceHash) -> bytes:
    return b"".join([chunk async for chunk in store.read(hash)])


def test_what_is_put_is_read_back(make: MakeStore) -> None:
    async def go() -> None:
        store = make()
        assert await store.put(hash_of(ARCHIVE), chunks(ARCHIVE), len(ARCHIVE)) == len(ARCHIVE)
        assert await store.size(hash_of(ARCHIVE)) == len(ARCHIVE)
        assert await whole(store, hash_of(ARCHIVE)) == ARCHIVE
        assert await store.list() == {hash_of(ARCHIVE): len(ARCHIVE)}
        assert await store.stored_at(hash_of(ARCHIVE)) is not None
        assert await store.stored_at(hash_of(b"other")) is None

    asyncio.run(go())


def test_putting_twice_at_once_and_again_is_fine(make: MakeStore) -> None:
    async def go() -> None:
        store = make()
        key = hash_of(ARCHIVE)
        sizes = await asyncio.gather(*(store.put(key, chunks(ARCHIVE, 1000 + n), 1 << 30) for n in range(5)))
        assert sizes == [len(ARCHIVE)] * 5
        assert await store.put(key, chunks(ARCHIVE), 1 << 30) == len(ARCHIVE)
        assert await whole(store, key) == ARCHIVE
        assert len(await store.list()) == 1

    asyncio.run(go())


def test_other_bytes_than_the_hash_says_are_refused_and_leave_nothing(make: MakeStore) -> None:
    async def go() -> None:
        store = make()
        with pytest.raises(Refused, match="hash"):
            await store.put(hash_of(ARCHIVE), chunks(ARCHIVE[:-1]), 1 << 30)
        assert await store.size(hash_of(ARCHIVE)) is None
        assert await store.list() == {}

    asyncio.run(go())


def test_a_wrong_upload_does_not_touch_the_right_one(make: MakeStore) -> None:
    async def go() -> None:
        store = make()
        await store.put(hash_of(ARCHIVE), chunks(ARCHIVE), 1 << 30)
        with pytest.raises(Refused):
            await store.put(hash_of(ARCHIVE), chunks(b"something else"), 1 << 30)
        assert await whole(store, hash_of(ARCHIVE)) == ARCHIVE

    asyncio.run(go())


@pytest.mark.parametrize("spare", [0, -1])
def test_the_limit_is_exact(make: MakeStore, spare: int) -> None:
    async def go() -> None:
        store = make()
        put = store.put(hash_of(ARCHIVE), chunks(ARCHIVE), len(ARCHIVE) + spare)
        if spare < 0:
            with pytest.raises(TooLarge, match=str(len(ARCHIVE) - 1)):
                await put
            assert await store.list() == {}
        else:
            assert await put == len(ARCHIVE)

    asyncio.run(go())


def test_what_is_absent(make: MakeStore) -> None:
    async def go() -> None:
        store = make()
        absent = hash_of(b"absent")
        assert await store.size(absent) is None
        with pytest.raises(NotFound):
            await whole(store, absent)
        await store.delete(absent)
        assert await store.list() == {}

    asyncio.run(go())


def test_deleted_is_gone_and_can_come_again(make: MakeStore) -> None:
    async def go() -> None:
        store = make()
        key = hash_of(ARCHIVE)
        await store.put(key, chunks(ARCHIVE), 1 << 30)
        await store.delete(key)
        await store.delete(key)
        assert await store.size(key) is None
        await store.put(key, chunks(ARCHIVE), 1 << 30)
        assert await whole(store, key) == ARCHIVE

    asyncio.run(go())


@pytest.mark.parametrize("bad", ["", "..", "../../etc/passwd", "A" * 64, "g" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_no_hash_is_refused(make: MakeStore, bad: str) -> None:
    async def go() -> None:
        store = make()
        for call in (
            store.put(SourceHash(bad), chunks(b""), 10),
            store.size(SourceHash(bad)),
            store.delete(SourceHash(bad)),
            whole(store, SourceHash(bad)),
        ):
            with pytest.raises(Refused, match="SHA-256"):
                await call

    asyncio.run(go())


def test_an_upload_that_breaks_off_leaves_nothing(make: MakeStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield ARCHIVE[:500_000]
        raise ConnectionResetError("gone")

    async def go() -> None:
        store = make()
        with pytest.raises(ConnectionResetError):
            await store.put(hash_of(ARCHIVE), broken(), 1 << 30)
        assert await store.list() == {}

    asyncio.run(go())
