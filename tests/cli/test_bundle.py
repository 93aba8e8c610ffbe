# SPDX-License-Identifier: Apache-2.0
"""``corral agent bundle`` and ``corral agent systemd-unit``: what they write, and what they refuse."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import corral
from corral.cli.bundle import LIBRARIES, BadTarget, CannotFetch, Target, build
from corral.cli.systemd import unit
from corral.model.errors import Refused

HERE = Target.parse(f"3.{sys.version_info.minor}", os.uname().machine)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "bundle"
    build(directory, HERE)
    return directory


def test_nothing_in_it_names_a_path_of_this_machine(bundle: Path) -> None:
    own = [str(Path(corral.__file__).parent.parent), sys.prefix, str(bundle.parent)]
    for file in (file for file in bundle.rglob("*") if file.is_file()):
        data = file.read_bytes()
        assert not any(path.encode() in data for path in own), file
        assert not file.is_symlink() and file.suffix != ".pyc"
    described = json.loads((bundle / "bundle.json").read_text())
    assert described["python"] == HERE.python and set(described["libraries"]) == set(LIBRARIES)


def test_it_holds_the_agent_and_no_server(bundle: Path) -> None:
    assert {path.name for path in (bundle / "lib" / "corral").iterdir()} == {
        "__init__.py",
        "agent",
        "runtime",
        "wire",
        "model",
        "workflow",
    }
    assert any((bundle / "lib").glob("msgspec-*.dist-info/licenses/*")) or any(
        (bundle / "lib").glob("msgspec-*.dist-info/LICENSE*")
    )


def test_it_starts_from_anywhere_with_nothing_in_the_environment(bundle: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else where"
    shutil.copytree(bundle, moved)
    command = [sys.executable, "-S", str(moved / "corral-agent"), "--config", "/not/there"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 2
    assert "cannot read the configuration /not/there" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("what", ["version", "arch"])
def test_another_python_or_machine_is_one_clear_sentence(bundle: Path, tmp_path: Path, what: str) -> None:
    text = (bundle / "corral-agent").read_text()
    if what == "version":
        text = text.replace(f"(3, {sys.version_info.minor})", "(3, 99)")
    else:
        text = text.replace(f"!= {os.uname().machine!r}", "!= 'riscv64'")
    (tmp_path / "corral-agent").write_text(text)
    done = subprocess.run([sys.executable, str(tmp_path / "corral-agent")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "this folder is for Python" in done.stderr and "corral agent bundle" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("python", "arch", "says"),
    [("3.10", "x86_64", "3.11 or newer"), ("4", "x86_64", "3.11 or newer"), ("3.12", "vax", "vax")],
)
def test_what_no_agent_runs_on_is_refused(python: str, arch: str, says: str) -> None:
    with pytest.raises(BadTarget, match=says):
        Target.parse(python, arch)


def test_what_is_there_is_not_overwritten(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(Refused, match="is there already"):
        build(tmp_path / "full", HERE)
    (tmp_path / "empty").mkdir()
    build(tmp_path / "empty", HERE)
    assert (tmp_path / "empty" / "corral-agent").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="there is no pip here")


@needs_pip
def test_the_parts_for_another_python_come_from_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in LIBRARIES:
        about = f"{name}-{version(name)}.dist-info"
        with zipfile.ZipFile(wheels / f"{name}-{version(name)}-cp399-cp399-manylinux_2_17_aarch64.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
            wheel.writestr(f"{name}/part.cpython-399-aarch64-linux-gnu.so", "compiled")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version(name)}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: cp399-cp399-manylinux_2_17_aarch64\n")
            wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    made = build(tmp_path / "bundle", Target.parse("3.99", "arm64"))
    assert made.target == Target(python="3.99", arch="aarch64")
    for name in LIBRARIES:
        assert (tmp_path / "bundle" / "lib" / name / "part.cpython-399-aarch64-linux-gnu.so").read_text() == "compiled"
    assert "(3, 99)" in (tmp_path / "bundle" / "corral-agent").read_text()


@needs_pip
def test_wheels_that_are_not_to_be_had_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(CannotFetch, match=r"no wheels for Python 3\.98 on x86_64"):
        build(tmp_path / "bundle", Target.parse("3.98", "x86_64"))
    assert list(tmp_path.iterdir()) == []


# --- the unit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [False, True])
def test_a_unit_is_one_that_systemd_takes(tmp_path: Path, user: bool) -> None:
    """60: what the unit hands the agent is what the agent reads: URLs and a token file, and no variable."""
    text = unit(("http://ci.example:7420", "https://b.example"), None, account="root", user=user)
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(text)
    service = dict(parsed["Service"])
    assert "--url http://ci.example:7420 --url https://b.example --token-file" in service["ExecStart"]
    assert service["RestartPreventExitStatus"] == "2 3 4" and service["KillMode"] == "mixed"
    assert service["NoNewPrivileges"] == "yes"
    if not user:
        assert service["LoadCredential"] == "token:%E/corral/agent.token" and "%d/token" in service["ExecStart"]
        assert service["ProtectSystem"] == "strict"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here to read the unit; it was parsed")
    file = tmp_path / "corral-agent.service"
    file.write_text(text + "\n")
    command = ["systemd-analyze", *(["--user"] if user else []), "verify", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "corral-agent" in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_words_of_a_unit_are_quoted_as_systemd_reads_them() -> None:
    text = unit(("http://h/$x?a=%20",), Path("/with space/to%ken"), account="a", user=True)
    assert '"http://h/$$x?a=%%20"' in text
    assert '--token-file "/with space/to%%ken"' in text
