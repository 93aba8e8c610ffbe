# SPDX-License-Identifier: Apache-2.0
"""What a ``provisioner:`` may say."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from corral.cli.config.secrets import name_fault
from corral.model.errors import Fault
from corral.runtime.schema import Path
from corral.runtime.yamlfile import Document

KINDS = ("webhook", "exec", "workflow")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def provisioner_faults(document: Document, at: Path, data: Any) -> Iterator[Fault]:
    if not isinstance(data, dict):
        return
    given = [kind for kind in KINDS if kind in data]
    if len(given) != 1:
        message = f"has {' and '.join(given)}; a pool has one provisioner" if given else "names no provisioner"
        yield document.fault(at, message, "exactly one of " + ", ".join(KINDS))
    webhook, program = data.get("webhook"), data.get("exec")
    if isinstance(webhook, dict):
        yield from _webhook(document, (*at, "webhook"), webhook)
    if isinstance(program, dict):
        yield from _exec(document, (*at, "exec"), program)


def _webhook(document: Document, at: Path, data: dict[str, Any]) -> Iterator[Fault]:
    url, secret = data.get("url"), data.get("secret")
    if isinstance(url, str):
        fault = url_fault(url, plain=data.get("allow_plain_http") is True)
        if fault is not None:
            yield document.fault((*at, "url"), *fault)
    problem = name_fault(secret) if isinstance(secret, str) else None
    if problem is not None:
        yield document.fault(
            (*at, "secret"), problem, "a file's name below secrets/ in the state directory, or $VARIABLE"
        )


def url_fault(url: str, *, plain: bool) -> tuple[str, str] | None:
    """What is wrong with where a webhook goes, and what to do."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return f"{url!r} is not a URL", ""
    if parts.scheme not in ("http", "https") or not host or any(ord(char) <= 32 for char in url):
        return f"{url!r} is no URL that events can be sent to", "http://… or https://…"
    if parts.username is not None or parts.password is not None:
        return "has a user or password in it", "events are signed with the secret; leave them out"
    if parts.fragment:
        return "has a fragment, which is never sent", "leave out what follows #"
    if parts.scheme == "http" and not plain and not loopback(host):
        return f"would send claim codes to {host} in the clear", "https, or allow_plain_http: true"
    return None


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _exec(document: Document, at: Path, data: dict[str, Any]) -> Iterator[Fault]:
    directory, names, command = data.get("directory"), data.get("env"), data.get("command")
    if isinstance(directory, str) and directory and not directory.startswith("/"):
        yield document.fault((*at, "directory"), f"{directory!r} is not an absolute path")
    for position, name in enumerate(names if isinstance(names, list) else ()):
        if isinstance(name, str) and not _VARIABLE.match(name):
            yield document.fault((*at, "env", position), f"{name!r} is no variable's name")
    for position, word in enumerate(command if isinstance(command, list) else ()):
        if isinstance(word, str) and "\0" in word:
            yield document.fault((*at, "command", position), "holds a zero byte")
