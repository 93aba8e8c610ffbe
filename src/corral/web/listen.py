# SPDX-License-Identifier: Apache-2.0
"""Listening sockets, and who holds a port that is taken."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from corral.model.errors import PermanentError

BACKLOG = 4096
"""Connections waiting to be accepted: hundreds of agents may dial at the same moment. The kernel clamps it."""


class PortInUse(PermanentError):
    code = "port_in_use"
    status = 500


class CannotListen(PermanentError):
    code = "cannot_listen"
    status = 500


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to ``host:port`` (port 0: a free one), not yet listening.

    :raises PortInUse: naming the process that holds it, where the system tells.
    :raises CannotListen: for any other reason.
    """
    if not 0 <= port <= 65535:
        raise CannotListen(f"cannot listen on port {port}: ports end at 65535; give HOST:PORT")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise CannotListen(f"cannot listen on {host!r}: {error}; give HOST:PORT of this machine") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two sockets may share a bound address until one listens; the second to listen fails there.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from None
    listener.setblocking(False)
    return listener


def _refusal(host: str, port: int, error: OSError) -> PermanentError:
    if error.errno == errno.EADDRINUSE:
        holder = holder_of(port)
        return PortInUse(
            f"port {port} on {host} is in use by {holder or 'another process'}; stop it, or choose another port "
            "with --listen HOST:PORT"
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return CannotListen(f"cannot listen on {host}:{port}: {reason}; choose another address with --listen HOST:PORT")


def url_of(listener: socket.socket) -> str:
    """``http://host:port`` as something on this machine dials it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def holder_of(port: int) -> str:
    """``pid 123 (command)`` of the process listening on a TCP port, or empty where the system does not tell."""
    inodes = set(_listening_inodes(port))
    for pid in _processes():
        if inodes & set(_socket_inodes(pid)):
            return f"pid {pid} ({_command(pid)})"
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _processes() -> Iterator[int]:
    try:
        names = [each.name for each in Path("/proc").iterdir()]
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _socket_inodes(pid: int) -> Iterator[str]:
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    # The first words only: later ones may be anything, a password too.
    return " ".join(word.decode(errors="replace") for word in words[:3] if word)[:80]
