# SPDX-License-Identifier: Apache-2.0
"""``FirecrackerApi``: Firecracker's public API, v1.x, as typed calls over its unix socket. See
docs/firecracker-api.md."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec

from corral.backends.firecracker import messages as m
from corral.backends.firecracker.calls import Caller, decoded, encoded
from corral.backends.firecracker.errors import (
    FirecrackerApiError,
    FirecrackerRefused,
    FirecrackerSocketRefused,
)
from corral.model.secret import Secret

T = TypeVar("T", bound=m.Message)
JSON = None | bool | int | float | str | Secret | list["JSON"] | Mapping[str, "JSON"]

# Seconds. The API answers in milliseconds; on a host whose disks are saturated, in a few seconds.
DEADLINE = 5.0
# Seconds. A snapshot writes or maps the guest's whole memory before it answers.
SNAPSHOT_DEADLINE = 300.0
# Seconds for one attempt of ``wait_for_socket``: a socket that takes the connection and says nothing is
# asked again.
ATTEMPT = 1.0

_EMPTY_META_DATA: JSON = {"latest": {"meta-data": {}}}


class FirecrackerApi:
    """A client for the Firecracker that listens on ``socket_path``. One connection is kept; calls wait
    their turn.

    Every call takes ``deadline`` in seconds, which covers all of it, and raises
    :class:`~corral.backends.firecracker.errors.FirecrackerApiError` for whatever is not a right 2xx answer.
    A call that is cancelled closes its connection at once; the next call makes a new one. Calls are never
    repeated by themselves: after a broken connection nobody but the caller knows what may be done twice.

    :param deadline: for calls that give none.
    :param long_path: connect even where the path is longer than a socket address takes (108 bytes).
    :param peer_uid: the user that must be listening, where it is known: the VMM's folder may be writable to
        a guest that broke out, and secrets go through this socket.
    :param machine: the host's architecture, as ``platform.machine()`` says it.
    :raises FirecrackerSocketRefused: the path is too long, and ``long_path`` is not set.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        deadline: float = DEADLINE,
        long_path: bool = False,
        peer_uid: int | None = None,
        machine: str | None = None,
    ) -> None:
        self._caller = Caller(socket_path=socket_path, long_path=long_path, peer_uid=peer_uid)
        self._deadline = deadline
        self._machine = machine if machine is not None else platform.machine()

    @property
    def socket_path(self) -> str:
        return self._caller.socket_path

    async def __aenter__(self) -> FirecrackerApi:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connection; what is in flight fails. A later call connects again."""
        self._caller.close()

    async def wait_for_socket(self, timeout: float = 5.0, interval: float = 0.1) -> bool:
        """True once Firecracker *answers* (``GET /``); False where it does not within ``timeout`` seconds.

        Never later than ``timeout``, whatever the other side does. ``interval``: seconds between attempts.

        :raises FirecrackerSocketRefused: something stands at the path that waiting does not change.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while (left := end - loop.time()) > 0:
            try:
                await self.instance_info(deadline=min(left, ATTEMPT))
                return True
            except FirecrackerSocketRefused:
                raise
            except FirecrackerApiError:
                await asyncio.sleep(max(0.0, min(interval, end - loop.time())))
        return False

    # -- the instance ----------------------------------------------------------------------------

    async def instance_info(self, *, deadline: float | None = None) -> m.InstanceInfo:
        """Also the check whether it lives."""
        return await self._get("/", m.InstanceInfo, deadline)

    async def version(self, *, deadline: float | None = None) -> m.FirecrackerVersion:
        return await self._get("/version", m.FirecrackerVersion, deadline)

    async def vm_config(self, *, deadline: float | None = None) -> m.FullVmConfiguration:
        return await self._get("/vm/config", m.FullVmConfiguration, deadline)

    async def patch_vm(self, vm: m.Vm, *, deadline: float | None = None) -> None:
        """Pause or resume."""
        await self._send("PATCH", "/vm", vm, deadline)

    async def start_instance(self, *, deadline: float | None = None) -> None:
        await self._act("InstanceStart", deadline)

    async def flush_metrics(self, *, deadline: float | None = None) -> None:
        await self._act("FlushMetrics", deadline)

    async def send_ctrl_alt_del(self, *, deadline: float | None = None) -> None:
        """Ask the guest to shut down.

        :raises FirecrackerRefused: off x86_64, without asking: there is no i8042 keyboard to press it on.
        """
        if self._machine != "x86_64":
            raise FirecrackerRefused(
                f"SendCtrlAltDel needs an i8042 keyboard, which Firecracker has on x86_64 only, not on "
                f"{self._machine}; end the VMM's process instead",
                "/actions",
            )
        await self._act("SendCtrlAltDel", deadline)

    # -- before the boot -------------------------------------------------------------------------

    async def machine_config(self, *, deadline: float | None = None) -> m.MachineConfiguration:
        return await self._get("/machine-config", m.MachineConfiguration, deadline)

    async def put_machine_config(self, config: m.MachineConfiguration, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/machine-config", config, deadline)

    async def patch_machine_config(
        self, config: m.MachineConfigurationUpdate, *, deadline: float | None = None
    ) -> None:
        await self._send("PATCH", "/machine-config", config, deadline)

    async def put_boot_source(self, source: m.BootSource, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/boot-source", source, deadline)

    async def put_cpu_config(self, config: m.CpuConfig, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/cpu-config", config, deadline)

    async def put_logger(self, logger: m.Logger, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/logger", logger, deadline)

    async def put_metrics(self, metrics: m.Metrics, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/metrics", metrics, deadline)

    async def put_entropy(self, device: m.EntropyDevice, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/entropy", device, deadline)

    async def put_serial(self, device: m.SerialDevice, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/serial", device, deadline)

    async def put_vsock(self, vsock: m.Vsock, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/vsock", vsock, deadline)

    # -- devices with an id ----------------------------------------------------------------------

    async def put_drive(self, drive: m.Drive, *, deadline: float | None = None) -> None:
        await self._send("PUT", _under("/drives", drive.drive_id), drive, deadline)

    async def patch_drive(self, drive: m.PartialDrive, *, deadline: float | None = None) -> None:
        await self._send("PATCH", _under("/drives", drive.drive_id), drive, deadline)

    async def put_pmem(self, pmem: m.Pmem, *, deadline: float | None = None) -> None:
        await self._send("PUT", _under("/pmem", pmem.id), pmem, deadline)

    async def patch_pmem(self, pmem: m.PartialPmem, *, deadline: float | None = None) -> None:
        await self._send("PATCH", _under("/pmem", pmem.id), pmem, deadline)

    async def put_network_interface(self, interface: m.NetworkInterface, *, deadline: float | None = None) -> None:
        await self._send("PUT", _under("/network-interfaces", interface.iface_id), interface, deadline)

    async def patch_network_interface(
        self, interface: m.PartialNetworkInterface, *, deadline: float | None = None
    ) -> None:
        await self._send("PATCH", _under("/network-interfaces", interface.iface_id), interface, deadline)

    # -- balloon and memory ----------------------------------------------------------------------

    async def balloon(self, *, deadline: float | None = None) -> m.Balloon:
        return await self._get("/balloon", m.Balloon, deadline)

    async def put_balloon(self, balloon: m.Balloon, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/balloon", balloon, deadline)

    async def patch_balloon(self, update: m.BalloonUpdate, *, deadline: float | None = None) -> None:
        await self._send("PATCH", "/balloon", update, deadline)

    async def balloon_statistics(self, *, deadline: float | None = None) -> m.BalloonStats:
        return await self._get("/balloon/statistics", m.BalloonStats, deadline)

    async def patch_balloon_statistics(self, update: m.BalloonStatsUpdate, *, deadline: float | None = None) -> None:
        await self._send("PATCH", "/balloon/statistics", update, deadline)

    async def start_balloon_hinting(
        self, command: m.BalloonStartCmd | None = None, *, deadline: float | None = None
    ) -> None:
        await self._send("PATCH", "/balloon/hinting/start", command, deadline)

    async def balloon_hinting_status(self, *, deadline: float | None = None) -> m.BalloonHintingStatus:
        return await self._get("/balloon/hinting/status", m.BalloonHintingStatus, deadline)

    async def stop_balloon_hinting(self, *, deadline: float | None = None) -> None:
        await self._send("PATCH", "/balloon/hinting/stop", None, deadline)

    async def memory_hotplug(self, *, deadline: float | None = None) -> m.MemoryHotplugStatus:
        return await self._get("/hotplug/memory", m.MemoryHotplugStatus, deadline)

    async def put_memory_hotplug(self, config: m.MemoryHotplugConfig, *, deadline: float | None = None) -> None:
        await self._send("PUT", "/hotplug/memory", config, deadline)

    async def patch_memory_hotplug(self, update: m.MemoryHotplugSizeUpdate, *, deadline: float | None = None) -> None:
        await self._send("PATCH", "/hotplug/memory", update, deadline)

    # -- metadata: what carries secrets ----------------------------------------------------------

    async def put_mmds_config(self, config: m.MmdsConfig, *, deadline: float | None = None) -> None:
        """V2 where ``config`` names no version."""
        if config.version is None:
            config = msgspec.structs.replace(config, version="V2")
        await self._send("PUT", "/mmds/config", config, deadline)

    async def put_mmds(self, data: Mapping[str, JSON], *, deadline: float | None = None) -> None:
        """Replace the store. A :class:`~corral.model.secret.Secret` inside is revealed to Firecracker
        only."""
        await self._send("PUT", "/mmds", data, deadline)

    async def patch_mmds(self, data: Mapping[str, JSON], *, deadline: float | None = None) -> None:
        """Merge into the store (JSON merge patch)."""
        await self._send("PATCH", "/mmds", data, deadline)

    async def mmds(self, *, deadline: float | None = None) -> dict[str, object]:
        """The whole store, secrets included: keep it out of logs."""
        body = await self._call("GET", "/mmds", None, deadline)
        return decoded(body, dict[str, object], method="GET", path="/mmds", confidential=True)

    async def clear_mmds(self, *, deadline: float | None = None) -> None:
        """Leave ``latest/meta-data`` empty, and nothing else."""
        await self._send("PUT", "/mmds", _EMPTY_META_DATA, deadline)

    # -- snapshots -------------------------------------------------------------------------------

    async def create_snapshot(self, params: m.SnapshotCreateParams, *, deadline: float = SNAPSHOT_DEADLINE) -> None:
        await self._send("PUT", "/snapshot/create", params, deadline)

    async def load_snapshot(self, params: m.SnapshotLoadParams, *, deadline: float = SNAPSHOT_DEADLINE) -> None:
        await self._send("PUT", "/snapshot/load", params, deadline)

    # -- by hand ---------------------------------------------------------------------------------

    async def request(self, method: str, path: str, body: object = None, *, deadline: float | None = None) -> object:
        """Any request, for operators: the answer's JSON, ``None`` where it has no body. Nothing is checked
        first.

        :raises FirecrackerRefused: the method or the path could not stand in a request.
        """
        if method not in ("GET", "PUT", "PATCH"):
            raise FirecrackerRefused(f"the API knows GET, PUT and PATCH, not {method[:20]!r}", path)
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise FirecrackerRefused("a path begins with / and holds printable ASCII without blanks", path)
        data = None if body is None else encoded(body, method=method, path=path)
        answer = await self._call(method, path, data, deadline)
        if not answer:
            return None
        secret = _is_confidential(path)
        return decoded(answer, object, method=method, path=path, confidential=secret)

    async def _act(
        self, action: Literal["FlushMetrics", "InstanceStart", "SendCtrlAltDel"], deadline: float | None
    ) -> None:
        await self._send("PUT", "/actions", m.InstanceActionInfo(action_type=action), deadline)

    async def _get(self, path: str, into: type[T], deadline: float | None) -> T:
        body = await self._call("GET", path, None, deadline)
        return decoded(body, into, method="GET", path=path, confidential=False)

    async def _send(self, method: str, path: str, body: object, deadline: float | None) -> None:
        data = None if body is None else encoded(body, method=method, path=path)
        await self._call(method, path, data, deadline)

    async def _call(self, method: str, path: str, body: bytes | None, deadline: float | None) -> bytes:
        return await self._caller.call(
            method,
            path,
            body,
            deadline=self._deadline if deadline is None else deadline,
            confidential=_is_confidential(path),
        )


def _is_confidential(path: str) -> bool:
    return path == "/mmds" or path.startswith(("/mmds/", "/mmds?"))


def _under(folder: str, name: str) -> str:
    return f"{folder}/{quote(name, safe='')}"
