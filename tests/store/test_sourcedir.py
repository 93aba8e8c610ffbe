# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.model.errors import StoreUnavailable
from corral.model.ids import SourceHash
from corral.store.sourcedir import SourceDirectory
from tests.store.limits import file_size_limit


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


def hash_of(data: bytes) -> SourceHash:
    return SourceHash(hashlib.sha256(data).hexdigest())


def test_files_are_private_and_only_the_archive_is_left(tmp_path: Path) -> None:
    root = tmp_path / "sources"
    data = os.urandom(700_000)
    asyncio.run(SourceDirectory(root).put(hash_of(data), chunks(data), 1 << 30))
    (file,) = root.iterdir()
    assert file.name == f"{hash_of(data)}.tar.gz"
    assert file.stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_cancelled_upload_leaves_no_file(tmp_path: Path) -> None:
    async def go() -> None:
        reached = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 600_000
            reached.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(SourceDirectory(tmp_path).put(hash_of(b"x"), slow(), 1 << 30))
        await reached.wait()
        assert [path.name for path in tmp_path.iterdir()] == [".incoming-0"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_process_left_half_done_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".incoming-0").write_bytes(b"half")
    asyncio.run(SourceDirectory(tmp_path).put(hash_of(b"x"), chunks(b"x"), 10))
    assert [path.name for path in tmp_path.iterdir()] == [f"{hash_of(b'x')}.tar.gz"]


def test_a_full_disk_is_unavailable_and_passes(tmp_path: Path) -> None:
    data = os.urandom(2_000_000)

    async def go() -> None:
        store = SourceDirectory(tmp_path)
        with file_size_limit(1_000_000), pytest.raises(StoreUnavailable, match="cannot be used"):
            await store.put(hash_of(data), chunks(data), 1 << 30)
        assert list(tmp_path.iterdir()) == []
        assert await store.put(hash_of(data), chunks(data), 1 << 30) == len(data)

    asyncio.run(go())


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable):
        asyncio.run(SourceDirectory(tmp_path / "file" / "sources").put(hash_of(b"x"), chunks(b"x"), 10))
