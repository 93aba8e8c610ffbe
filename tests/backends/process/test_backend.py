# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.backends.interface import Denied, Ending, Misconfigured, NoCapacity, Transient
from corral.backends.process import cgroups, procfs, strays
from corral.backends.process.backend import ProcessBackend
from corral.model.ids import AgentId
from corral.model.secret import Secret
from tests.backends.process.rigs import CLUSTER, DEADLINE, RUN, A, B, Host, alive, left_of, spec
from tests.waiting import eventually, eventually_async

AGENT = A
NO_CGROUPS = cgroups.Cgroups(())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@contextmanager
def owner(tmp_path: Path, tied: str, habit: str) -> Iterator[subprocess.Popen[bytes]]:
    """A coordinator in its own process, with one instance up."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.backends.process.owner", str(tmp_path), tied, habit, A], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"created\n"
        yield process
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


# --- the coordinator dies --------------------------------------------------------------------------------------


def test_a_killed_coordinator_leaves_warden_and_agent_alone(tmp_path: Path, host: Host) -> None:
    with owner(tmp_path, "free", "idle") as process:
        agent = int(host.said("up"))
        warden = host.warden()
        process.kill()
        process.wait(20)

    async def test(backend: ProcessBackend) -> None:
        endings: list[Ending] = []
        assert alive(warden) and alive(agent)
        backend.watch(endings.append)
        (instance,) = await backend.list()
        assert not instance.ended
        os.kill(agent, signal.SIGKILL)
        began = time.monotonic()
        await eventually_async(lambda: endings)
        assert time.monotonic() - began < 1
        assert endings[0].detail == "the agent was killed by SIGKILL"
        await backend.destroy(AGENT, DEADLINE)
        assert not host.root.joinpath(AGENT).exists()
        assert not alive(warden)

    host.use(test)


def test_a_readopted_instance_is_destroyed_while_it_runs(tmp_path: Path, host: Host) -> None:
    with owner(tmp_path, "free", "daemons"):
        host.pids(3)

    async def test(backend: ProcessBackend) -> None:
        assert left_of() != []
        await backend.destroy(AGENT, DEADLINE)
        assert left_of() == []
        assert await backend.list() == ()

    host.use(test)


def test_a_tied_instance_goes_with_its_coordinator(tmp_path: Path, host: Host) -> None:
    with owner(tmp_path, "tied", "daemons") as process:
        pids = host.pids(3)
        agent = int(host.said("up"))
        assert alive(agent)
        process.kill()
        process.wait(20)
        eventually(lambda: not any(alive(pid) for pid in (*pids, agent)))
        eventually(lambda: left_of() == [])
        eventually(lambda: not host.root.joinpath(AGENT).exists())


def test_closing_a_tied_backend_ends_its_instances(host: Host) -> None:
    async def go() -> None:
        backend = host.backend("idle", tied=True)
        await backend.create(spec(), DEADLINE)
        assert left_of() != []
        await backend.close()

    asyncio.run(go())
    eventually(lambda: left_of() == [])
    eventually(lambda: not host.root.joinpath(AGENT).exists())


# --- the warden dies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [NO_CGROUPS, None], ids=["without-cgroups", "with-what-is-here"])
def test_destroy_finds_what_a_killed_warden_let_go(host: Host, groups: cgroups.Cgroups | None) -> None:
    async def test(backend: ProcessBackend) -> None:
        endings: list[Ending] = []
        backend.watch(endings.append)
        await backend.create(spec(), DEADLINE)
        pids = host.pids(3)
        os.kill(host.warden(), signal.SIGKILL)
        await eventually_async(lambda: endings)
        assert endings[0].detail == (
            "the warden was killed from outside (or could not write its record); its agent died with it"
        )
        assert all(alive(pid) for pid in pids), "they had left their session and lost their parent"
        await backend.destroy(AGENT, DEADLINE)
        assert not any(alive(pid) for pid in pids)
        assert not host.root.joinpath(AGENT).exists()

    host.use(test, "daemons", host_cgroups=groups)


def test_destroy_finds_a_step_that_a_killed_warden_let_go(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        (pid,) = host.pids(1)
        await eventually_async(lambda: b"CORRAL_INSTANCE" not in (procfs.read(f"/proc/{pid}/environ") or b""))
        os.kill(host.warden(), signal.SIGKILL)
        await backend.destroy(AGENT, DEADLINE)
        assert not alive(pid)

    host.use(test, "step", host_cgroups=NO_CGROUPS)


def test_a_cgroup_finds_what_hides_its_marker(host: Host) -> None:
    if not cgroups.discover().hierarchies:
        pytest.skip("no writable cgroup here")

    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        pids = host.pids(1)
        await eventually_async(lambda: all(not strays.markers_of(pid) for pid in pids))
        os.kill(host.warden(), signal.SIGKILL)
        await backend.destroy(AGENT, DEADLINE)
        assert not any(alive(pid) for pid in pids)

    host.use(test, "hidden")


def test_a_stopped_warden_does_not_hold_up_destroy_for_long(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        pids = host.pids(3)
        os.kill(host.warden(), signal.SIGSTOP)
        await backend.destroy(AGENT, DEADLINE)
        assert not any(alive(pid) for pid in pids)
        assert left_of() == []

    host.use(test, "daemons", kill_grace=0.1, host_cgroups=NO_CGROUPS)


@pytest.mark.parametrize("habit", ["stubborn", "stopped", "daemons", "stopped-children", "storm", "runner"])
def test_destroy_leaves_nothing_of_a_bad_agent(host: Host, habit: str) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        host.said("up")
        await backend.destroy(AGENT, DEADLINE)
        assert left_of() == []
        assert not host.root.joinpath(AGENT).exists()
        assert await backend.list() == ()

    host.use(test, habit, kill_grace=0.2)


def test_an_agent_that_ends_at_once_is_reported_once_each(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        endings: list[Ending] = []
        backend.watch(endings.append)
        wanted = [AgentId(f"agent_{n}_{RUN}") for n in range(8)]
        for name in wanted:
            await backend.create(spec(name), DEADLINE)
            assert await backend.create(spec(name), DEADLINE)
        await eventually_async(lambda: len(endings) == len(wanted))
        await backend.list()
        assert sorted(ending.agent_id for ending in endings) == wanted
        assert {ending.detail for ending in endings} == {"the agent exited with code 5"}

    host.use(test, "exit", "5")


# --- crashes between the steps of a creation -------------------------------------------------------------------


def test_a_creation_cut_short_before_the_warden_is_found_and_can_be_made_good(host: Host) -> None:
    directory = host.root / AGENT
    directory.mkdir(parents=True)
    journal = {"version": 1, "cluster_id": CLUSTER, "pool": "small", "agent_id": AGENT, "created": 1}
    (directory / "instance.json").write_text(json.dumps(journal))
    (directory / "home").mkdir()

    async def test(backend: ProcessBackend) -> None:
        (instance,) = await backend.list()
        assert (instance.ended, instance.detail) == (True, "its creation was cut short")
        created = await backend.create(spec(), DEADLINE)
        (instance,) = await backend.list()
        assert (instance.ended, instance.provider_id) == (False, created.provider_id)

    host.use(test)


def test_a_warden_that_has_not_named_itself_yet_is_found(tmp_path: Path, host: Host) -> None:
    with owner(tmp_path, "free", "idle") as process:
        process.kill()
        process.wait(20)
    agent, warden = int(host.said("up")), host.warden()
    (host.root / AGENT / "warden").unlink()

    async def test(backend: ProcessBackend) -> None:
        await backend.destroy(AGENT, DEADLINE)
        assert not alive(agent) and not alive(warden)
        assert await backend.list() == ()

    host.use(test)


def test_an_unreadable_journal_is_not_listed_but_destroyed_by_name(host: Host) -> None:
    directory = host.root / AGENT
    (directory / "home").mkdir(parents=True)
    (directory / "instance.json").write_text("{half")

    async def test(backend: ProcessBackend) -> None:
        assert await backend.list() == ()
        await backend.destroy(AGENT, DEADLINE)
        assert not directory.exists()

    host.use(test)


# --- pids come round again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_start", [True, False])
def test_a_process_that_has_a_dead_wardens_pid_is_not_signalled(host: Host, same_start: bool) -> None:
    """With the right start time it is the command line that tells; with another, the start time does."""
    bystander = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    try:
        eventually(lambda: strays.name(bystander.pid).endswith("(sleep)"))

        async def test(backend: ProcessBackend) -> None:
            await backend.create(spec(), DEADLINE)
            os.kill(int(host.said("up")), signal.SIGKILL)

            async def over() -> bool:
                return (await backend.list())[0].ended

            await eventually_async(over)
            seen = procfs.stat(bystander.pid)
            assert seen is not None
            start = seen.start if same_start else seen.start - 1
            (host.root / AGENT / "warden").write_text(f"{bystander.pid} {start} {procfs.boot_id()}\n")
            assert (await backend.list())[0].ended
            await backend.destroy(AGENT, DEADLINE)
            assert alive(bystander.pid)

        host.use(test)
    finally:
        bystander.kill()
        bystander.wait(20)


def test_a_process_that_looks_like_the_warden_and_began_later_is_not_signalled(host: Host) -> None:
    look_alike = ["/bin/sh", "-c", "while :; do sleep 1; done", "/any/warden.py", str(host.root / AGENT)]
    bystander = subprocess.Popen(look_alike, start_new_session=True, stdin=subprocess.DEVNULL)
    try:

        async def test(backend: ProcessBackend) -> None:
            await backend.create(spec(), DEADLINE)
            os.kill(host.warden(), signal.SIGKILL)
            await eventually_async(lambda: left_of() == [])
            seen = procfs.stat(bystander.pid)
            assert seen is not None
            identity = f"{bystander.pid} {seen.start - 1} {procfs.boot_id()}\n"
            (host.root / AGENT / "warden").write_text(identity)
            restarted = host.backend()
            assert (await restarted.list())[0].ended
            await restarted.destroy(AGENT, DEADLINE)
            await restarted.close()
            assert alive(bystander.pid)

        host.use(test)
    finally:
        bystander.kill()
        bystander.wait(20)


def test_a_warden_of_an_earlier_boot_is_dead(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        warden = host.root / AGENT / "warden"
        true = warden.read_text()
        pid, start, _ = true.split()
        warden.write_text(f"{pid} {start} some-other-boot\n")
        other = host.backend()
        assert (await other.list())[0].ended
        await other.close()
        warden.write_text(true)

    host.use(test)


# --- what an agent gets ----------------------------------------------------------------------------------------


def test_the_agents_configuration(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        facts = host.facts()
        config = facts["config"]
        assert config["agent_id"] == AGENT
        assert config["claim_code"] == "very-secret-claim"
        assert config["coordinator_urls"] == ["http://127.0.0.1:1"]
        assert config["grant_fd"] == 3
        assert config["work_dir"] == str(host.home() / "work")
        assert config["cache_dir"].startswith(str(host.root.parent / "cache" / "small"))
        path = host.home() / "agent.json"
        assert path.stat().st_mode & 0o777 == 0o600
        assert "very-secret-claim" not in json.dumps([facts["argv"], facts["env"]])
        command = procfs.read(f"/proc/{host.warden()}/cmdline") or b""
        assert b"very-secret-claim" not in command
        await backend.forget_claim(AGENT)
        assert not path.exists()

    host.use(test, "facts")


def test_the_agents_environment(host: Host) -> None:
    environ = {
        "PATH": "/usr/bin:/bin",
        "VIRTUAL_ENV": "/somewhere",
        "HOME": "/root-of-all",
        "AWS_SECRET_ACCESS_KEY": "no",
        "https_proxy": "http://proxy:3128",
        "HTTP_PROXY": "http://user:word@proxy:3128",
        "PIP_TIMEOUT": "7",
        "SSL_CERT_FILE": "/etc/certs",
        "MINE_A": "a",
    }

    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(A), DEADLINE)
        await backend.create(spec(B, inherit_env=("MINE_*", "HTTP_PROXY")), DEADLINE)
        base = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        assert without_locale(host.facts(A)["env"]) == base | {
            "HOME": str(host.home(A)),
            "CORRAL_INSTANCE": A,
            "https_proxy": "http://proxy:3128",
            "PIP_TIMEOUT": "7",
            "SSL_CERT_FILE": "/etc/certs",
        }
        assert without_locale(host.facts(B)["env"]) == base | {
            "HOME": str(host.home(B)),
            "CORRAL_INSTANCE": B,
            "MINE_A": "a",
            "HTTP_PROXY": "http://user:word@proxy:3128",
        }

    host.use(test, "facts", environ=environ)


def without_locale(env: dict[str, str]) -> dict[str, str]:
    """Without what Python itself may add when it coerces a locale."""
    return {name: value for name, value in env.items() if name != "LC_CTYPE"}


def test_the_cache_outlives_the_instance(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        cache = Path(host.facts()["config"]["cache_dir"])
        (cache / "kept").write_text("x")
        await backend.destroy(AGENT, DEADLINE)
        assert (cache / "kept").exists()
        await backend.create(spec(B), DEADLINE)
        assert host.facts(B)["config"]["cache_dir"] == str(cache)

    host.use(test, "facts")


def test_directories_are_private(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        host.facts()
        for path in (host.root / AGENT, host.home(), host.home() / "work"):
            assert path.stat().st_mode & 0o777 == 0o700, path
        for name in ("instance.json", "warden", "output"):
            assert (host.root / AGENT / name).stat().st_mode & 0o077 == 0, name

    host.use(test, "facts")


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"python": "/absent/python"}, Misconfigured, "cannot start /absent/python"),
        ({"python": "/etc/passwd"}, Denied, "does not allow us to start /etc/passwd"),
        ({"agent_command": ("/absent/agent",)}, Misconfigured, "cannot run /absent/agent"),
        ({"agent_command": ("/etc/passwd",)}, Denied, "does not allow us to run /etc/passwd"),
        ({"min_free": 1 << 62}, NoCapacity, "MiB free"),
    ],
)
def test_what_cannot_work_is_a_typed_error_and_leaves_nothing(
    host: Host, options: dict[str, object], error: type[Exception], words: str
) -> None:
    async def test(backend: ProcessBackend) -> None:
        with pytest.raises(error, match=words):
            await backend.create(spec(), DEADLINE)
        assert list(host.root.iterdir()) == []
        assert left_of() == []

    host.use(test, **options)


@pytest.mark.parametrize("pool", ["", "..", "a/b"])
def test_a_pool_that_is_no_name(host: Host, pool: str) -> None:
    async def test(backend: ProcessBackend) -> None:
        with pytest.raises(Misconfigured, match="cannot name a directory"):
            await backend.create(spec(pool=pool), DEADLINE)

    host.use(test)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden"])
def test_an_agent_id_that_is_no_name(host: Host, name: str) -> None:
    async def test(backend: ProcessBackend) -> None:
        with pytest.raises(Misconfigured, match="is no agent id"):
            await backend.create(spec(name), DEADLINE)
        with pytest.raises(Misconfigured, match="is no agent id"):
            await backend.destroy(AgentId(name), DEADLINE)

    host.use(test)


def test_an_unknown_user(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        with pytest.raises(Misconfigured, match="'nobody-of-this-name' does not exist"):
            await backend.create(spec(user="nobody-of-this-name"), DEADLINE)

    host.use(test)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become anybody")
def test_another_user_needs_root(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        with pytest.raises(Denied, match="started as root"):
            await backend.create(spec(user="root"), DEADLINE)

    host.use(test)


def test_a_tree_that_cannot_be_removed_is_not_confirmed_gone(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        with mounted(host.home() / "work" / "stuck", host.root):
            with pytest.raises((Transient, Denied)):
                await backend.destroy(AGENT, DEADLINE)
            (instance,) = await backend.list()
            assert instance.ended, "its journal is still there, so it is still found"
        await backend.destroy(AGENT, DEADLINE)
        assert await backend.list() == ()

    host.use(test)


@contextmanager
def mounted(path: Path, root: Path) -> Iterator[None]:
    """A file system that nobody can remove by removing files; it may be moved below ``root``."""
    path.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=False).returncode:
        pytest.skip("this host does not let us mount a tmpfs")
    try:
        yield
    finally:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        subprocess.run(["umount", next(line.split()[4] for line in mounts if str(root) in line)], check=True)


# --- limits ----------------------------------------------------------------------------------------------------


def test_a_job_that_eats_memory_is_killed_and_it_says_so(host: Host) -> None:
    if "memory" not in cgroups.discover().enforceable():
        pytest.skip("no writable memory cgroup here")

    async def test(backend: ProcessBackend) -> None:
        endings: list[Ending] = []
        backend.watch(endings.append)
        await backend.create(spec(memory_limit=64 * 1024 * 1024), DEADLINE)
        await eventually_async(lambda: endings)
        assert "out of memory" in endings[0].detail
        await backend.destroy(AGENT, DEADLINE)
        assert left_over_groups() == []

    host.use(test, "eat")


def test_without_a_cgroup_memory_is_limited_per_process(host: Host) -> None:
    async def test(backend: ProcessBackend) -> None:
        endings: list[Ending] = []
        backend.watch(endings.append)
        await backend.create(spec(memory_limit=64 * 1024 * 1024), DEADLINE)
        await eventually_async(lambda: endings)
        assert endings[0].detail == "the agent exited with code 1; its last line: MemoryError"
        assert b"MemoryError" in (host.root / AGENT / "output").read_bytes()

    host.use(test, "eat", host_cgroups=NO_CGROUPS)


def test_the_number_of_processes_is_limited(host: Host) -> None:
    if "pids" not in cgroups.discover().enforceable():
        pytest.skip("no writable pids cgroup here")

    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        groups = json.loads((host.root / AGENT / "instance.json").read_text())["cgroups"]
        (pids,) = [Path(path) for path in groups if (Path(path) / "pids.max").exists()]
        assert (pids / "pids.max").read_text() == "10\n"
        await eventually_async(lambda: (pids / "pids.current").read_text() == "10\n")

    host.use(test, "storm", pids_limit=10)


def test_cpu_is_limited(host: Host) -> None:
    if "cpu" not in cgroups.discover().enforceable():
        pytest.skip("no writable cpu cgroup here")

    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(cpu_limit=0.5), DEADLINE)
        groups = json.loads((host.root / AGENT / "instance.json").read_text())["cgroups"]
        found = [
            (Path(path) / name).read_text().split()
            for path in groups
            for name in ("cpu.max", "cpu.cfs_quota_us")
            if (Path(path) / name).exists()
        ]
        assert found[0][0] == "50000"
        agent = int(host.said("up"))
        assert any(str(agent) in (Path(path) / "cgroup.procs").read_text().split() for path in groups)

    host.use(test)


def left_over_groups() -> list[Path]:
    return [
        h.parent / f"corral-{AGENT}" for h in cgroups.discover().hierarchies if (h.parent / f"corral-{AGENT}").exists()
    ]


def test_cgroups_go_with_the_instance(host: Host) -> None:
    if not cgroups.discover().hierarchies:
        pytest.skip("no writable cgroup here")

    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(cpu_limit=1.0, memory_limit=1 << 30), DEADLINE)
        assert left_over_groups() != []
        await backend.destroy(AGENT, DEADLINE)
        assert left_over_groups() == []

    host.use(test)


# --- speed -----------------------------------------------------------------------------------------------------


def test_a_hundred_instances_hold_no_worker_and_few_descriptors(host: Host) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def test(backend: ProcessBackend) -> None:
        wanted = [AgentId(f"agent_{n}_{RUN}") for n in range(30)]
        await asyncio.gather(*(backend.create(spec(name), DEADLINE) for name in wanted))
        assert len(os.listdir("/proc/self/fd")) - before <= len(wanted) + 10  # noqa: PTH208
        await asyncio.gather(*(backend.destroy(name, DEADLINE) for name in wanted))

    host.use(test)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


def test_a_secret_is_not_shown_by_the_specification() -> None:
    assert "very-secret-claim" not in repr(spec(claim_code=Secret("very-secret-claim")))
