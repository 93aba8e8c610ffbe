# SPDX-License-Identifier: Apache-2.0
"""Every path, method and field of the public API description, through the typed client."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from corral.backends.firecracker import messages as m
from corral.backends.firecracker.api import FirecrackerApi
from corral.backends.firecracker.errors import FirecrackerRefused
from corral.model.secret import Secret
from tests.backends.firecracker import contract

T = TypeVar("T")
Call = Callable[[FirecrackerApi, Any], Awaitable[Any]]


def sends(method: str, into: type[Any]) -> Call:
    """Call ``method`` with the body as our own type: a field that we do not know is lost, and seen to be."""
    return lambda api, body: getattr(api, method)(msgspec.convert(body, into))


def gets(method: str) -> Call:
    return lambda api, _: getattr(api, method)()


def acts(api: FirecrackerApi, body: dict[str, str]) -> Awaitable[None]:
    calls = {
        "InstanceStart": api.start_instance,
        "FlushMetrics": api.flush_metrics,
        "SendCtrlAltDel": api.send_ctrl_alt_del,
    }
    return calls[body["action_type"]]()


CALLS: dict[tuple[str, str], Call] = {
    ("GET", "/"): gets("instance_info"),
    ("PUT", "/actions"): acts,
    ("GET", "/balloon"): gets("balloon"),
    ("PUT", "/balloon"): sends("put_balloon", m.Balloon),
    ("PATCH", "/balloon"): sends("patch_balloon", m.BalloonUpdate),
    ("GET", "/balloon/statistics"): gets("balloon_statistics"),
    ("PATCH", "/balloon/statistics"): sends("patch_balloon_statistics", m.BalloonStatsUpdate),
    ("PATCH", "/balloon/hinting/start"): sends("start_balloon_hinting", m.BalloonStartCmd),
    ("GET", "/balloon/hinting/status"): gets("balloon_hinting_status"),
    ("PATCH", "/balloon/hinting/stop"): gets("stop_balloon_hinting"),
    ("PUT", "/boot-source"): sends("put_boot_source", m.BootSource),
    ("PUT", "/cpu-config"): sends("put_cpu_config", m.CpuConfig),
    ("PUT", "/drives/{drive_id}"): sends("put_drive", m.Drive),
    ("PATCH", "/drives/{drive_id}"): sends("patch_drive", m.PartialDrive),
    ("PUT", "/pmem/{id}"): sends("put_pmem", m.Pmem),
    ("PATCH", "/pmem/{id}"): sends("patch_pmem", m.PartialPmem),
    ("PUT", "/logger"): sends("put_logger", m.Logger),
    ("GET", "/machine-config"): gets("machine_config"),
    ("PUT", "/machine-config"): sends("put_machine_config", m.MachineConfiguration),
    ("PATCH", "/machine-config"): sends("patch_machine_config", m.MachineConfigurationUpdate),
    ("PUT", "/metrics"): sends("put_metrics", m.Metrics),
    ("PUT", "/mmds"): lambda api, body: api.put_mmds(body),
    ("PATCH", "/mmds"): lambda api, body: api.patch_mmds(body),
    ("GET", "/mmds"): gets("mmds"),
    ("PUT", "/mmds/config"): sends("put_mmds_config", m.MmdsConfig),
    ("PUT", "/entropy"): sends("put_entropy", m.EntropyDevice),
    ("PUT", "/serial"): sends("put_serial", m.SerialDevice),
    ("PUT", "/hotplug/memory"): sends("put_memory_hotplug", m.MemoryHotplugConfig),
    ("PATCH", "/hotplug/memory"): sends("patch_memory_hotplug", m.MemoryHotplugSizeUpdate),
    ("GET", "/hotplug/memory"): gets("memory_hotplug"),
    ("PUT", "/network-interfaces/{iface_id}"): sends("put_network_interface", m.NetworkInterface),
    ("PATCH", "/network-interfaces/{iface_id}"): sends("patch_network_interface", m.PartialNetworkInterface),
    ("PUT", "/snapshot/create"): sends("create_snapshot", m.SnapshotCreateParams),
    ("PUT", "/snapshot/load"): sends("load_snapshot", m.SnapshotLoadParams),
    ("GET", "/version"): gets("version"),
    ("PATCH", "/vm"): sends("patch_vm", m.Vm),
    ("GET", "/vm/config"): gets("vm_config"),
    ("PUT", "/vsock"): sends("put_vsock", m.Vsock),
}
# Nothing is left out on purpose. A path that a newer document adds has to be put here or above.
LEFT_OUT: set[tuple[str, str]] = set()

each_call = pytest.mark.parametrize(
    "key", list(CALLS), ids=lambda key: f"{key[0]} {key[1]}" if isinstance(key, tuple) else str(key)
)


def plain(value: Any) -> Any:
    """A message as JSON values, in the API's names."""
    return msgspec.json.decode(msgspec.json.encode(value))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[FirecrackerApi, contract.Contract]]:
    path = folder / "fc.sock"
    async with contract.contract_server(path) as server, FirecrackerApi(path, machine="x86_64") as api:
        yield api, server


def run(folder: Path, body: Callable[[FirecrackerApi, contract.Contract], Awaitable[T]]) -> T:
    async def inner() -> T:
        async with served(folder) as (api, server):
            return await body(api, server)

    return asyncio.run(inner())


def test_every_operation_of_the_document_has_its_call() -> None:
    assert set(contract.operations()) == set(CALLS) | LEFT_OUT


@each_call
def test_every_field_of_every_request_is_sent_and_of_every_answer_is_read(tmp_path: Path, key: tuple[str, str]) -> None:
    schema, answer = contract.body_schema(*key), contract.answer_schema(*key)
    sent = None if schema is None else contract.full(schema)
    if sent is not None and "{" in key[1]:
        # An id goes into the path: no blanks, so that path and body say the same.
        sent[key[1].split("{")[1].rstrip("}")] = "disk-1"

    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        if key == ("PATCH", "/mmds"):
            await api.put_mmds({})
        result = await CALLS[key](api, sent)
        method, path, received = server.seen[-1]
        assert (method, contract.template_of(path)) == key
        assert received == sent
        if answer is not None and key != ("GET", "/mmds"):
            expected = contract.full(answer)
            assert contract.faults(expected, answer) == []
            assert plain(result) == expected
        assert server.connections == 1

    run(tmp_path, body)


@pytest.mark.parametrize("action", ["FlushMetrics", "InstanceStart", "SendCtrlAltDel"])
def test_every_action_is_one_that_the_document_knows(tmp_path: Path, action: str) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        await acts(api, {"action_type": action})
        assert server.seen == [("PUT", "/actions", {"action_type": action})]

    run(tmp_path, body)


def test_what_is_not_given_is_not_sent(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        await api.patch_machine_config(m.MachineConfigurationUpdate(mem_size_mib=256))
        await api.start_balloon_hinting()
        assert [value for _, _, value in server.seen] == [{"mem_size_mib": 256}, None]

    run(tmp_path, body)


def test_metadata_is_stored_merged_and_cleared_to_an_empty_meta_data(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        await api.put_mmds({"latest": {"meta-data": {"token": Secret("s3cret-value")}}})
        assert server.store == {"latest": {"meta-data": {"token": "s3cret-value"}}}
        await api.patch_mmds({"other": 1})
        assert await api.mmds() == {"latest": {"meta-data": {"token": "s3cret-value"}}, "other": 1}
        await api.clear_mmds()
        assert server.store == {"latest": {"meta-data": {}}}

    run(tmp_path, body)


def test_metadata_is_asked_for_by_session_token_unless_said_otherwise(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        await api.put_mmds_config(m.MmdsConfig(network_interfaces=("eth0",)))
        await api.put_mmds_config(m.MmdsConfig(network_interfaces=("eth0",), version="V1"))
        assert [value["version"] for _, _, value in server.seen] == ["V2", "V1"]  # type: ignore[index]

    run(tmp_path, body)


def test_an_id_cannot_lead_elsewhere(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        for name in ("../actions", "a/b", "a b", "a?b", "a\r\nX: y", "ä"):
            with pytest.raises(FirecrackerRefused):
                await api.put_drive(m.Drive(drive_id=name, is_root_device=False))
        assert all(path.startswith("/drives/") and path.count("/") == 2 for _, path, _ in server.seen)

    run(tmp_path, body)


def test_what_the_contract_refuses_is_an_error_with_its_fault_message(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        with pytest.raises(FirecrackerRefused, match="33 is greater than the maximum") as caught:
            await api.put_machine_config(m.MachineConfiguration(vcpu_count=33, mem_size_mib=1))
        assert (caught.value.path, caught.value.status_code) == ("/machine-config", 400)
        assert "fault_message" in caught.value.body
        await api.instance_info()
        assert server.connections == 1

    run(tmp_path, body)


def test_calls_made_at_once_take_turns_on_one_connection(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        answers = await asyncio.gather(*(api.version() for _ in range(50)))
        assert len(answers) == 50 and server.connections == 1

    run(tmp_path, body)


def test_a_request_by_hand_is_what_was_typed(tmp_path: Path) -> None:
    async def body(api: FirecrackerApi, server: contract.Contract) -> None:
        assert await api.request("GET", "/version") == {"firecracker_version": "a firecracker_version"}
        assert await api.request("PATCH", "/vm", {"state": "Paused"}) is None
        for method, path in (("POST", "/"), ("GET", "version"), ("GET", "/a b"), ("GET", "/\r\nX: y")):
            with pytest.raises(FirecrackerRefused):
                await api.request(method, path)

    run(tmp_path, body)


# -- the real one -------------------------------------------------------------------------------------


@contextmanager
def real_firecracker(path: Path) -> Iterator[None]:
    """One of its own on ``path``; skips where there is none."""
    program = shutil.which("firecracker")
    if program is None:
        pytest.skip("no firecracker on PATH; the contract server stands for its description only")
    with subprocess.Popen([program, "--api-sock", str(path), "--id", "corral-test"]) as process:
        try:
            yield
        finally:
            process.terminate()


@each_call
def test_a_real_firecracker_answers_every_call_as_described(tmp_path: Path, key: tuple[str, str]) -> None:
    """Done, or refused with a reason: anything else would be our misunderstanding."""
    if shutil.which("firecracker") is None:
        pytest.skip("no firecracker on PATH; the contract server stands for its description only")
    schema = contract.body_schema(*key)
    body = None if schema is None else contract.full(schema)
    if body is not None and "{" in key[1]:
        body[key[1].split("{")[1].rstrip("}")] = "disk-1"

    async def talk(path: Path) -> None:
        async with FirecrackerApi(path) as api:
            assert await api.wait_for_socket()
            try:
                await CALLS[key](api, body)
            except FirecrackerRefused as refusal:
                assert refusal.status_code is None or "fault_message" in refusal.body

    with real_firecracker(tmp_path / "fc.sock"):
        asyncio.run(talk(tmp_path / "fc.sock"))


def test_a_real_firecracker_understands_us(tmp_path: Path) -> None:
    path = tmp_path / "fc.sock"
    with real_firecracker(path):
        asyncio.run(_talk_to_the_real_one(path))


async def _talk_to_the_real_one(path: Path) -> None:
    async with FirecrackerApi(path) as api:
        assert await api.wait_for_socket()
        info = await api.instance_info()
        assert info.id == "corral-test" and info.state == "Not started"
        assert (await api.version()).firecracker_version == info.vmm_version
        await api.put_machine_config(m.MachineConfiguration(vcpu_count=1, mem_size_mib=128))
        assert (await api.machine_config()).mem_size_mib == 128
        await api.patch_machine_config(m.MachineConfigurationUpdate(mem_size_mib=256))
        config = await api.vm_config()
        assert config.machine_config is not None and config.machine_config.mem_size_mib == 256
        with pytest.raises(FirecrackerRefused) as caught:
            await api.put_boot_source(m.BootSource(kernel_image_path="/nonexistent"))
        assert caught.value.status_code == 400
        with pytest.raises(FirecrackerRefused):
            await api.start_instance()
        await api.put_entropy(m.EntropyDevice())
