# SPDX-License-Identifier: Apache-2.0
"""Fetching a source archive from a coordinator, by its hash, into the pool's cache. Blocking: runs in a thread."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from corral.agent.archive import BadArchive, unpack
from corral.agent.cache import PART, Cache, Held
from corral.agent.stopping import Stop
from corral.model.errors import CorralError, PermanentError, TemporaryError
from corral.model.spec import SourceRef

if TYPE_CHECKING:
    from ssl import SSLSocket

ARCHIVE_LIMIT = 1024**3
"""Bytes of an archive."""
READ = 1024 * 1024
TIMEOUT = 10.0
"""Seconds without a byte."""
PATIENCE = 60.0
"""Seconds over which fetching is tried again while no coordinator can be reached: a restart takes a few."""
CACHED_ARCHIVES = 32
"""Archives kept for the next jobs of the same pool; a run's jobs share one."""
CACHE_LIMIT = 4 * 1024**3
"""Bytes of all of them."""


class SourceUnavailable(PermanentError):
    """The job's source cannot be had; the message says where it was looked for and why it failed."""

    code = "source_unavailable"


class Sources:
    """:param coordinators: URLs to ask, best first. :param headers: what authenticates this agent.
    :param limit: bytes of archives that are kept. :param count: how many."""

    def __init__(
        self,
        cache: Path,
        *,
        coordinators: Callable[[], Sequence[str]],
        headers: Callable[[], dict[str, str]],
        limit: int = CACHE_LIMIT,
        count: int = CACHED_ARCHIVES,
    ) -> None:
        self._cache = Cache(cache / "sources", limit=limit, count=count)
        self._coordinators = coordinators
        self._headers = headers

    def check_out(self, source: SourceRef, target: Path, stop: Stop) -> None:
        """Unpack ``source`` into the empty directory ``target``.

        :raises SourceUnavailable: it cannot be fetched or is not what its hash says.
        :raises BadArchive: it cannot be unpacked safely.
        :raises OSError: the disk does not take it.
        """
        if len(source.hash) != 64 or not source.hash.isalnum():
            raise SourceUnavailable(f"{source.hash!r} is no hash of a source archive")
        name = f"{source.hash}.tar.gz"
        held = self._cache.hold(name)
        try:
            with self._open(source, self._cache.path(name), stop) as archive:
                if held is not None:
                    held.record(os.fstat(archive.fileno()).st_size)
                    held.used()
                unpack(archive, target, stopped=stop.is_set)
        finally:
            _give_back(held)
        self._cache.trim()

    def _open(self, source: SourceRef, path: Path, stop: Stop) -> BinaryIO:
        cached = self._cached(path, source.hash, stop)
        if cached is not None:
            return cached
        self._cache.directory.mkdir(parents=True, exist_ok=True)
        self._fetch(source, path, stop)
        fetched = self._cached(path, source.hash, stop)
        if fetched is None:
            raise SourceUnavailable(f"source {source.hash[:12]} vanished from the cache directory while it was stored")
        return fetched

    def _cached(self, path: Path, hash: str, stop: Stop) -> BinaryIO | None:
        """Verified each time: jobs of the pool can write to the cache."""
        try:
            file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        except OSError:
            return None
        digest = hashlib.sha256()
        while (block := file.read(READ)) and not stop.is_set():
            digest.update(block)
        if digest.hexdigest() != hash:
            file.close()
            return None
        file.seek(0)
        return file

    def _fetch(self, source: SourceRef, path: Path, stop: Stop) -> None:
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

    def _fetch_once(self, source: SourceRef, path: Path, stop: Stop) -> None:
        failure: CorralError = TemporaryError("no coordinator is known")
        for url in self._coordinators():
            try:
                return self._fetch_from(url, source, path, stop)
            except TemporaryError as error:
                failure = error
        raise failure

    def _fetch_from(self, url: str, source: SourceRef, path: Path, stop: Stop) -> None:
        part = f"{PART}{os.getpid()}-{time.monotonic_ns()}"
        held = self._cache.hold(part, alone=True)
        try:
            with open(self._cache.path(part), "xb") as file:
                address = urlsplit(url).path.rstrip("/") + f"/agent/v1/sources/{source.hash}"
                self._receive(url, address, file, source, stop)
            self._cache.path(part).replace(path)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise TemporaryError(f"{url}: {error or type(error).__name__}") from None
        finally:
            self._cache.path(part).unlink(missing_ok=True)
            self._cache.forget_lock(part)
            _give_back(held)

    def _receive(self, url: str, address: str, file: BinaryIO, source: SourceRef, stop: Stop) -> None:
        parts = urlsplit(url)
        secure = parts.scheme in ("https", "wss")
        with _dial(parts.hostname or "", parts.port or (443 if secure else 80), stop) as dialled:
            wire = _secured(dialled, parts.hostname or "", stop) if secure else dialled
            with wire, stop.interrupting(wire):
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
                connection.sock = wire
                connection.request("GET", address, headers=self._headers())
                with connection.getresponse() as answer:
                    _judge(url, source, answer)
                    _copy(answer, file, source, stop)


def _give_back(held: Held | None) -> None:
    if held is not None:
        held.close()


def _dial(host: str, port: int, stop: Stop) -> socket.socket:
    """Connect, until told to stop. :raises OSError: nobody answers."""
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if stop.is_set():
            break
        dialled = socket.socket(family, kind, protocol)
        dialled.settimeout(TIMEOUT)
        try:
            with stop.interrupting(dialled):
                dialled.connect(place)
        except OSError as error:
            dialled.close()
            failure = error
        else:
            return dialled
    raise failure


def _secured(dialled: socket.socket, host: str, stop: Stop) -> SSLSocket:
    import ssl

    context = ssl.create_default_context()
    wire = context.wrap_socket(dialled, server_hostname=host, do_handshake_on_connect=False)
    with stop.interrupting(wire):
        wire.do_handshake()
    return wire


def _judge(url: str, source: SourceRef, answer: http.client.HTTPResponse) -> None:
    if answer.status == 200:
        return
    sentence = f"{url} answers {answer.status} {answer.reason} for source {source.hash[:12]}"
    if answer.status in (408, 425, 429) or answer.status >= 500:
        raise TemporaryError(sentence)
    raise SourceUnavailable(sentence)


def _copy(answer: http.client.HTTPResponse, file: BinaryIO, source: SourceRef, stop: Stop) -> None:
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
