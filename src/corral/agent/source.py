# SPDX-License-Identifier: Apache-2.0
"""Fetching a source archive from a coordinator, by its hash, into the pool's cache. Blocking: runs in a thread."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from corral.agent.archive import BadArchive, unpack
from corral.model.errors import CorralError, PermanentError, TemporaryError
from corral.model.spec import SourceRef

ARCHIVE_LIMIT = 1024**3
"""Bytes of an archive."""
READ = 1024 * 1024
TIMEOUT = 10.0
"""Seconds without a byte; also what a cancelled fetch may still take."""
PATIENCE = 60.0
"""Seconds over which fetching is tried again while no coordinator can be reached: a restart takes a few."""
CACHED_ARCHIVES = 8
"""Archives kept for the next jobs of the same pool; a run's jobs share one."""


class SourceUnavailable(PermanentError):
    """The job's source cannot be had; the message says where it was looked for and why it failed."""

    code = "source_unavailable"


class Sources:
    """:param coordinators: URLs to ask, best first. :param headers: what authenticates this agent."""

    def __init__(
        self, cache: Path, *, coordinators: Callable[[], Sequence[str]], headers: Callable[[], dict[str, str]]
    ) -> None:
        self._directory = cache / "sources"
        self._coordinators = coordinators
        self._headers = headers

    def check_out(self, source: SourceRef, target: Path, stop: threading.Event) -> None:
        """Unpack ``source`` into the empty directory ``target``.

        :raises SourceUnavailable: it cannot be fetched or is not what its hash says.
        :raises BadArchive: it cannot be unpacked safely.
        :raises OSError: the disk does not take it.
        """
        with self._open(source, stop) as archive:
            unpack(archive, target, stopped=stop.is_set)

    def _open(self, source: SourceRef, stop: threading.Event) -> BinaryIO:
        if len(source.hash) != 64 or not source.hash.isalnum():
            raise SourceUnavailable(f"{source.hash!r} is no hash of a source archive")
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{source.hash}.tar.gz"
        cached = self._cached(path, source.hash)
        if cached is not None:
            return cached
        self._fetch(source, path, stop)
        self._evict()
        fetched = self._cached(path, source.hash)
        if fetched is None:
            raise SourceUnavailable(f"source {source.hash[:12]} vanished from the cache directory while it was stored")
        return fetched

    def _cached(self, path: Path, hash: str) -> BinaryIO | None:
        """Verified each time: jobs of the pool can write to the cache."""
        try:
            file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except OSError:
            return None
        digest = hashlib.sha256()
        while block := file.read(READ):
            digest.update(block)
        if digest.hexdigest() != hash:
            file.close()
            path.unlink(missing_ok=True)
            return None
        file.seek(0)
        return file

    def _fetch(self, source: SourceRef, path: Path, stop: threading.Event) -> None:
        # A thread's own waiting for other machines; no decision of the worker depends on this time.
        give_up = time.monotonic() + PATIENCE
        pause = 0.25
        while True:
            try:
                return self._fetch_once(source, path, stop)
            except TemporaryError as error:
                if time.monotonic() + pause > give_up or stop.wait(pause):
                    raise SourceUnavailable(f"source {source.hash[:12]} could not be fetched: {error}") from None
                pause = min(pause * 2, 10.0)

    def _fetch_once(self, source: SourceRef, path: Path, stop: threading.Event) -> None:
        failure: CorralError = TemporaryError("no coordinator is known")
        for url in self._coordinators():
            try:
                return self._fetch_from(url, source, path, stop)
            except TemporaryError as error:
                failure = error
        raise failure

    def _fetch_from(self, url: str, source: SourceRef, path: Path, stop: threading.Event) -> None:
        connection = _connection(url)
        fd, name = tempfile.mkstemp(dir=self._directory, prefix=".part-")
        try:
            with open(fd, "wb") as file:
                address = urlsplit(url).path.rstrip("/") + f"/agent/v1/sources/{source.hash}"
                connection.request("GET", address, headers=self._headers())
                with connection.getresponse() as answer:
                    _judge(url, source, answer)
                    _copy(answer, file, source, stop)
            Path(name).replace(path)
        except (OSError, http.client.HTTPException) as error:
            raise TemporaryError(f"{url}: {error or type(error).__name__}") from None
        finally:
            connection.close()
            Path(name).unlink(missing_ok=True)

    def _evict(self) -> None:
        with contextlib.suppress(OSError):
            archives = sorted(self._directory.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
            for path in archives[:-CACHED_ARCHIVES]:
                path.unlink(missing_ok=True)


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in ("https", "wss"):
        return http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT)
    return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT)


def _judge(url: str, source: SourceRef, answer: http.client.HTTPResponse) -> None:
    if answer.status == 200:
        return
    sentence = f"{url} answers {answer.status} {answer.reason} for source {source.hash[:12]}"
    if answer.status in (408, 425, 429) or answer.status >= 500:
        raise TemporaryError(sentence)
    raise SourceUnavailable(sentence)


def _copy(answer: http.client.HTTPResponse, file: BinaryIO, source: SourceRef, stop: threading.Event) -> None:
    digest = hashlib.sha256()
    size = 0
    while block := answer.read(READ):
        size += len(block)
        if size > ARCHIVE_LIMIT:
            raise SourceUnavailable(f"source {source.hash[:12]} has more than {ARCHIVE_LIMIT} bytes")
        if stop.is_set():
            raise SourceUnavailable("the job was ended while its source was fetched")
        digest.update(block)
        file.write(block)
    if digest.hexdigest() != source.hash:
        raise TemporaryError(f"source {source.hash[:12]} arrived damaged ({size} bytes)")


__all__ = ["BadArchive", "SourceUnavailable", "Sources"]
