# SPDX-License-Identifier: Apache-2.0
"""Connecting to a unix socket that lies in a folder a guest's VMM may write to.

The path is opened first, links not followed, and the connection is made through that descriptor: what was
checked is what is connected to, and the 108 bytes of a socket address do not bound the path.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct

from corral.backends.firecracker.errors import FirecrackerSocketRefused, FirecrackerUnreachable

# Bytes. sockaddr_un has 108, one of them for the terminating NUL.
SOCKET_PATH_MAX = 107
# Seconds. A listener whose backlog is full answers EAGAIN at once and is not waited for by any poll.
_BACKLOG_RETRY = 0.01
_UCRED = struct.Struct("3i")


async def connect(path: str, request: str, *, peer_uid: int | None) -> socket.socket:
    """A connected, non-blocking socket.

    :param request: the path of the request it is for, to name in errors.
    :param peer_uid: the user that must be listening; ``None`` takes anybody.
    :raises FirecrackerUnreachable: nothing there, or nobody listens.
    :raises FirecrackerSocketRefused: not a socket, somebody else's, or not for us.
    """
    handle = _open(path, request)
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await _connect(connected, handle, path, request)
        _check_peer(connected, path, request, peer_uid)
    except BaseException:
        connected.close()
        raise
    finally:
        os.close(handle)
    return connected


def check_length(path: str, *, long_path: bool) -> None:
    """:raises FirecrackerSocketRefused: the path is longer than a socket address takes, and no way round is
    wanted."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX and not long_path:
        raise FirecrackerSocketRefused(
            f"the socket path has {length} bytes, and the system's socket address takes 108 with its end "
            f"mark ({path}). Choose a shorter path, or connect through a file descriptor, which has no such "
            "limit: long_path=True, or --long-path on the command line.",
            "",
        )


def _open(path: str, request: str) -> int:
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FirecrackerUnreachable(
            f"there is no socket at {path}: Firecracker is not up yet, or was given another --api-sock",
            request,
        ) from None
    except OSError as error:
        raise FirecrackerSocketRefused(f"{path} cannot be opened: {error.strerror}", request) from None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISSOCK(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no socket"
            raise FirecrackerSocketRefused(f"{path} is {kind}; only a socket itself is connected to", request)
    except BaseException:
        os.close(handle)
        raise
    return handle


async def _connect(connecting: socket.socket, handle: int, path: str, request: str) -> None:
    while True:
        try:
            connecting.connect(f"/proc/self/fd/{handle}")
            return
        except BlockingIOError:
            await asyncio.sleep(_BACKLOG_RETRY)
        except OSError as error:
            raise _translated(error, handle, path, request) from None


def _translated(error: OSError, handle: int, path: str, request: str) -> Exception:
    match error.errno:
        case errno.ECONNREFUSED:
            return FirecrackerUnreachable(
                f"nobody listens on {path}: Firecracker has ended and left its socket behind", request
            )
        case errno.EACCES | errno.EPERM:
            status = os.fstat(handle)
            return FirecrackerSocketRefused(
                f"{path} belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):o}) and user "
                f"{os.geteuid()} may not write to it; run as its owner, or give this user the right",
                request,
            )
        case _:
            return FirecrackerUnreachable(f"{path} cannot be connected to: {error.strerror}", request)


def _check_peer(connected: socket.socket, path: str, request: str, wanted: int | None) -> None:
    if wanted is None:
        return
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(credentials)
    if uid != wanted:
        raise FirecrackerSocketRefused(
            f"user {uid} listens on {path}, not user {wanted}: this is not the VMM that was started there",
            request,
        )
