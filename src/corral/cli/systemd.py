# SPDX-License-Identifier: Apache-2.0
"""A systemd unit for a static agent. Pure: options in, text out."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 3600
"""What stopping may take: the agent takes no more jobs and ends after the one in hand."""

_SYSTEM = """\
[Unit]
Description=Corral agent
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={account}
# The token stays readable for root alone; the service gets a copy of its own.
LoadCredential=token:{token_file}
ExecStart={command} --token-file %d/token --work-dir %S/corral-agent
StateDirectory=corral-agent
StateDirectoryMode=0700
{life}
# Jobs are made for what is below. A job that needs more (containers, other users' files) needs a line less here.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
KeyringMode=private
UMask=0077

[Install]
WantedBy=multi-user.target
"""

_USER = """\
[Unit]
Description=Corral agent

[Service]
Type=exec
ExecStart={command} --token-file {token_file} --work-dir %S/corral-agent
{life}
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=default.target
"""

_LIFE = """\
# Stopping: no more jobs, the one in hand is finished. `systemctl kill -s TERM` once more cancels it.
KillMode=mixed
TimeoutStopSec={stop}
Restart=on-failure
RestartSec=5
# A configuration that cannot be used and a refusal for good do not get better by trying again.
RestartPreventExitStatus=2 3 4
# Each job gets a control group of its own; the kernel shall take a job's processes before the agent.
Delegate=yes
OOMPolicy=continue"""


def unit(urls: Sequence[str], token_file: Path | None, *, account: str, user: bool) -> str:
    """The unit's text, without a newline at its end.

    :param token_file: None: ``agent.token`` in the place where systemd keeps configuration (``%E``).
    :param account: the system user of a unit that is not a user's own.
    """
    words = [*_program(), *(word for url in urls for word in ("--url", url))]
    token = "%E/corral/agent.token" if token_file is None else _word(str(token_file.absolute()))
    return (
        (_USER if user else _SYSTEM)
        .format(
            command=" ".join(_word(word) for word in words),
            token_file=token,
            life=_LIFE.format(stop=STOP_SECONDS),
            account=account,
        )
        .rstrip("\n")
    )


def _program() -> list[str]:
    """How this installation's `corral agent` is started, by absolute paths: a unit has no PATH of a shell."""
    script = Path(sys.executable).with_name("corral")
    return [str(script), "agent"] if script.exists() else [sys.executable, "-m", "corral.cli", "agent"]


def _word(text: str) -> str:
    """One word of a command, as systemd reads it."""
    escaped = text.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", escaped, re.ASCII):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
