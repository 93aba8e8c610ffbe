# SPDX-License-Identifier: Apache-2.0
"""A folder with everything an agent needs but Python itself: it can be moved, mounted and copied.

``corral-agent`` starts it, ``lib`` holds the agent's rooms and the two libraries it uses, ``bundle.json`` says what it
is. Nothing in it names a path of this machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

import corral
from corral.model.errors import PermanentError, Refused, TemporaryError

ROOMS = ("agent", "runtime", "wire", "model", "workflow")
"""``workflow`` is not the agent's own: function steps run with it."""
LIBRARIES = ("msgspec", "websockets")
PIP_TIMEOUT = 300.0
"""Seconds for two small wheels."""
ARCHES = {
    "x86_64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "aarch64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
}
"""Machine as `uname -m` says → wheels that run there."""
_LEFT_OUT = ("__pycache__", "*.pyc", "*.c", "*.pyx", "direct_url.json", "RECORD", "INSTALLER", "REQUESTED", "py.typed")

LAUNCHER = '''\
#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the agent in this folder, with any Python {python} on {arch}: `corral-agent --config FILE`."""
import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
if sys.version_info[:2] != {version!r} or os.uname().machine != {arch!r}:
    sys.exit(
        "corral-agent: this folder is for Python {python} on {arch}; this is Python %d.%d on %s. "
        "Start it with the right one (python{python} corral-agent ...), or make another with "
        "`corral agent bundle --python %d.%d --arch %s DIR`."
        % (*sys.version_info[:2], os.uname().machine, *sys.version_info[:2], os.uname().machine)
    )
# In front of everything, whatever PYTHONPATH says; and nothing is written into a folder that may be shared.
sys.path[:] = [os.path.join(HERE, "lib"), *(path for path in sys.path if path != HERE)]
sys.dont_write_bytecode = not os.access(HERE, os.W_OK)

from corral.agent.main import main  # noqa: E402

sys.exit(main())
'''


class BadTarget(PermanentError):
    code = "bad_target"


class CannotFetch(TemporaryError):
    code = "cannot_fetch"


@dataclass(frozen=True, kw_only=True)
class Target:
    """``python``: ``X.Y``. ``arch``: as `uname -m` says."""

    python: str
    arch: str

    @classmethod
    def parse(cls, python: str, arch: str) -> Target:
        """:raises BadTarget: not a Python or a machine that agents run on."""
        found = re.fullmatch(r"3\.(\d{1,2})", python)
        if found is None or int(found[1]) < 11:
            raise BadTarget(f"Python {python!r}: an agent needs 3.11 or newer, written as 3.11")
        known = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
        if known not in ARCHES and known != os.uname().machine:
            raise BadTarget(f"there are no compiled parts for {arch!r}; there are for {', '.join(ARCHES)}")
        return cls(python=python, arch=known)

    @property
    def is_here(self) -> bool:
        return (
            self.python == f"{sys.version_info.major}.{sys.version_info.minor}"
            and self.arch == os.uname().machine
            and sys.implementation.name == "cpython"
        )


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """``size`` in bytes."""

    target: Target
    size: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """``bundle.json``."""

    version: int
    corral: str
    python: str
    arch: str
    libraries: dict[str, str]


def build(directory: Path, target: Target) -> Bundle:
    """Write the folder.

    :raises Refused: something is there already. :raises CannotFetch: pip cannot have the compiled parts.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Refused(f"{directory} is there already: name another place, or remove it")
    part = directory.with_name(f".{directory.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        _fill(part, target)
        if directory.exists():
            directory.rmdir()
        part.rename(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Bundle(target=target, size=sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()))


def _fill(part: Path, target: Target) -> None:
    lib = part / "lib"
    lib.mkdir(parents=True)
    part.chmod(0o755)
    _copy_rooms(lib / "corral")
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    if target.is_here:
        for name in LIBRARIES:
            _copy_installed(name, lib)
    else:
        _fetch(versions, target, lib)
    launcher = part / "corral-agent"
    version = tuple(int(number) for number in target.python.split("."))
    launcher.write_text(LAUNCHER.format(python=target.python, version=version, arch=target.arch))
    launcher.chmod(0o755)
    described = Description(
        version=1, corral=corral.__version__, python=target.python, arch=target.arch, libraries=versions
    )
    (part / "bundle.json").write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")


def _copy_rooms(to: Path) -> None:
    own = Path(corral.__file__).parent
    to.mkdir()
    shutil.copy(own / "__init__.py", to)
    for room in ROOMS:
        shutil.copytree(own / room, to / room, ignore=shutil.ignore_patterns(*_LEFT_OUT))


def _copy_installed(name: str, lib: Path) -> None:
    """The package as it is installed here, with its licence."""
    spec = importlib.util.find_spec(name)
    place = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if place is None:
        raise Refused(f"the library {name} is not installed as a folder that could be copied")
    shutil.copytree(place, lib / name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    files = importlib.metadata.distribution(name).files or ()
    about = next((file for file in files if file.parent.name.endswith(".dist-info")), None)
    if about is not None:
        source = Path(str(about.locate())).parent
        shutil.copytree(source, lib / source.name, ignore=shutil.ignore_patterns(*_LEFT_OUT))


def _fetch(versions: dict[str, str], target: Target, lib: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="corral-bundle-") as name:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--only-binary=:all:", "--no-deps", "--dest", name, "--implementation", "cp"]
        command += ["--python-version", target.python]
        command += [f"--platform={platform}" for platform in ARCHES[target.arch]]
        command += [f"{library}=={version}" for library, version in versions.items()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotFetch(f"pip did not run to its end: {error}") from None
        wheels = sorted(Path(name).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != len(versions):
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise CannotFetch(f"pip has no wheels for Python {target.python} on {target.arch}: {said[-1]}")
        for wheel in wheels:
            _unpack(wheel, lib)


def _unpack(wheel: Path, lib: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(member.filename)
            kept = not any(path.match(pattern) for pattern in _LEFT_OUT)
            # A wheel's `.data` folder holds scripts and headers, which nobody needs here.
            if kept and not member.is_dir() and not path.parts[0].endswith(".data"):
                archive.extract(member, lib)
