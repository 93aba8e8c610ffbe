# SPDX-License-Identifier: Apache-2.0
"""A package's source distribution from the index that the user's own pip settings name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from corral.cli.demo.pinned import PACKAGE, SHA256, VERSION
from corral.model.errors import PermanentError, TemporaryError

PIP_TIMEOUT = 300.0
"""Seconds of the whole download, preparing the package's metadata included."""
_AWAY = re.compile(
    r"retrying|connection|timed? ?out|resolve|unreachable|proxy|SSL|50[0234] |temporar|not a recognized|refused", re.I
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+_-]+)?\Z")


class IndexAway(TemporaryError):
    """The package index does not answer."""

    code = "index_away"


class NoPackage(PermanentError):
    """The index has no such source distribution, or it cannot be used."""

    code = "no_package"
    status = 422


def fetch(package: str, target: Path) -> Path:
    """Download the source distribution of ``package`` (``NAME`` or ``NAME==VERSION``) into ``target``; its path.

    :raises IndexAway: the index does not answer. :raises NoPackage: it answers, and there is none to be had.
    """
    if not _NAME.match(package):
        raise NoPackage(f"{package!r} is no name of a package: NAME or NAME==VERSION")
    done = _pip(package, target)
    found = sorted(path for path in target.iterdir() if path.name.endswith((".tar.gz", ".tar.bz2", ".tar.xz", ".tgz")))
    if done.returncode == 0 and found:
        return found[0]
    raise _refusal(package, done.stderr.decode(errors="replace"))


def _pip(package: str, target: Path) -> subprocess.CompletedProcess[bytes]:
    requirements = target / "requirements.txt"
    requirements.write_text(_requirement(package))
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--retries", "2", "--timeout", "15", "--no-deps", "--no-binary", package.partition("==")[0]),
        *("--dest", str(target), "--requirement", str(requirements)),
    ]
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PIP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise IndexAway(_away(package, f"pip did not end within {PIP_TIMEOUT:.0f} s")) from None


def _requirement(package: str) -> str:
    if package in (PACKAGE, f"{PACKAGE}=={VERSION}"):
        return f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n"
    return f"{package}\n"


def _refusal(package: str, said: str) -> PermanentError | TemporaryError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip failed"])[0][:300]
    if "No module named pip" in said:
        return NoPackage(f"{sys.executable} has no pip to download {package} with; give a local tree: --path DIR")
    if "DO NOT MATCH THE HASHES" in said:
        return NoPackage(
            f"the index gave another file for {package} than the pinned one; ask another index, or use --path DIR"
        )
    if any(_AWAY.search(line) for line in lines if not line.startswith("ERROR: Could not find a version")):
        return IndexAway(_away(package, reason))
    return NoPackage(f"cannot get the source distribution of {package}: {reason}; give a local tree: --path DIR")


def _away(package: str, reason: str) -> str:
    return (
        f"cannot download {package} from the package index ({reason}); check the network and pip's index settings, "
        "or give a local tree: --path DIR"
    )
