# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of Firecracker's public API, v1.x, with its own field names.

``None`` is "not given" and is not sent. Answers may hold fields that are not known here; they are passed
over, so that a newer Firecracker is still understood. Sizes carry their unit in the name, as the API's do.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all."""


class TokenBucket(Message, frozen=True, kw_only=True):
    """``size`` tokens, refilled in ``refill_time`` milliseconds, after ``one_time_burst`` tokens once."""

    size: int
    refill_time: int
    one_time_burst: int | None = None


class RateLimiter(Message, frozen=True, kw_only=True):
    """``bandwidth`` counts bytes, ``ops`` operations."""

    bandwidth: TokenBucket | None = None
    ops: TokenBucket | None = None


class InstanceInfo(Message, frozen=True, kw_only=True):
    """``state`` is "Not started", "Running" or "Paused"; a newer Firecracker may know others."""

    app_name: str
    id: str
    state: str
    vmm_version: str


class FirecrackerVersion(Message, frozen=True, kw_only=True):
    firecracker_version: str


class InstanceActionInfo(Message, frozen=True, kw_only=True):
    action_type: Literal["FlushMetrics", "InstanceStart", "SendCtrlAltDel"]


class Error(Message, frozen=True, kw_only=True):
    """The body of an answer that is not 2xx."""

    fault_message: str | None = None


class Balloon(Message, frozen=True, kw_only=True):
    amount_mib: int
    deflate_on_oom: bool
    stats_polling_interval_s: int | None = None
    free_page_hinting: bool | None = None
    free_page_reporting: bool | None = None


class BalloonUpdate(Message, frozen=True, kw_only=True):
    amount_mib: int


class BalloonStatsUpdate(Message, frozen=True, kw_only=True):
    stats_polling_interval_s: int


class BalloonStartCmd(Message, frozen=True, kw_only=True):
    acknowledge_on_stop: bool | None = None


class BalloonHintingStatus(Message, frozen=True, kw_only=True):
    host_cmd: int
    guest_cmd: int | None = None


class BalloonStats(Message, frozen=True, kw_only=True):
    """Memory figures are bytes, the rest counts; the guest gives what its kernel knows."""

    target_pages: int
    actual_pages: int
    target_mib: int
    actual_mib: int
    swap_in: int | None = None
    swap_out: int | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    free_memory: int | None = None
    total_memory: int | None = None
    available_memory: int | None = None
    disk_caches: int | None = None
    hugetlb_allocations: int | None = None
    hugetlb_failures: int | None = None
    oom_kill: int | None = None
    alloc_stall: int | None = None
    async_scan: int | None = None
    direct_scan: int | None = None
    async_reclaim: int | None = None
    direct_reclaim: int | None = None


class BootSource(Message, frozen=True, kw_only=True):
    kernel_image_path: str
    initrd_path: str | None = None
    boot_args: str | None = None


class CpuidRegisterModifier(Message, frozen=True, kw_only=True):
    register: Literal["eax", "ebx", "ecx", "edx"]
    bitmap: str


class CpuidLeafModifier(Message, frozen=True, kw_only=True):
    leaf: str
    subleaf: str
    flags: int
    modifiers: tuple[CpuidRegisterModifier, ...]


class MsrModifier(Message, frozen=True, kw_only=True):
    addr: str
    bitmap: str


class ArmRegisterModifier(Message, frozen=True, kw_only=True):
    addr: str
    bitmap: str


class VcpuFeatures(Message, frozen=True, kw_only=True):
    index: int
    bitmap: str


class CpuConfig(Message, frozen=True, kw_only=True):
    kvm_capabilities: tuple[str, ...] | None = None
    cpuid_modifiers: tuple[CpuidLeafModifier, ...] | None = None
    msr_modifiers: tuple[MsrModifier, ...] | None = None
    reg_modifiers: tuple[ArmRegisterModifier, ...] | None = None
    vcpu_features: tuple[VcpuFeatures, ...] | None = None


class Drive(Message, frozen=True, kw_only=True):
    """``is_read_only`` and ``path_on_host`` for virtio block; ``socket`` for vhost-user block instead."""

    drive_id: str
    is_root_device: bool
    is_read_only: bool | None = None
    path_on_host: str | None = None
    partuuid: str | None = None
    cache_type: Literal["Unsafe", "Writeback"] | None = None
    io_engine: Literal["Sync", "Async"] | None = None
    rate_limiter: RateLimiter | None = None
    socket: str | None = None


class PartialDrive(Message, frozen=True, kw_only=True):
    drive_id: str
    path_on_host: str | None = None
    rate_limiter: RateLimiter | None = None


class Pmem(Message, frozen=True, kw_only=True):
    id: str
    path_on_host: str
    root_device: bool | None = None
    read_only: bool | None = None
    rate_limiter: RateLimiter | None = None


class PartialPmem(Message, frozen=True, kw_only=True):
    id: str
    rate_limiter: RateLimiter | None = None


class Logger(Message, frozen=True, kw_only=True):
    log_path: str | None = None
    level: Literal["Error", "Warning", "Info", "Debug", "Trace", "Off"] | None = None
    show_level: bool | None = None
    show_log_origin: bool | None = None
    module: str | None = None


class Metrics(Message, frozen=True, kw_only=True):
    metrics_path: str
    emit_id: bool | None = None
    properties: dict[str, str] | None = None


CpuTemplate = Literal["C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"]


class MachineConfiguration(Message, frozen=True, kw_only=True):
    vcpu_count: int
    mem_size_mib: int
    smt: bool | None = None
    track_dirty_pages: bool | None = None
    cpu_template: CpuTemplate | None = None
    huge_pages: Literal["None", "Transparent", "2M"] | None = None


class MachineConfigurationUpdate(Message, frozen=True, kw_only=True):
    """For PATCH, which takes any part of the whole."""

    vcpu_count: int | None = None
    mem_size_mib: int | None = None
    smt: bool | None = None
    track_dirty_pages: bool | None = None
    cpu_template: CpuTemplate | None = None
    huge_pages: Literal["None", "Transparent", "2M"] | None = None


class MmdsConfig(Message, frozen=True, kw_only=True):
    """Without a ``version``, the client asks for V2: Firecracker's own default, V1, hands the store out to
    whoever asks, without a session token."""

    network_interfaces: tuple[str, ...]
    version: Literal["V1", "V2"] | None = None
    ipv4_address: str | None = None
    imds_compat: bool | None = None


class NetworkInterface(Message, frozen=True, kw_only=True):
    iface_id: str
    host_dev_name: str
    guest_mac: str | None = None
    mtu: int | None = None
    rx_rate_limiter: RateLimiter | None = None
    tx_rate_limiter: RateLimiter | None = None


class PartialNetworkInterface(Message, frozen=True, kw_only=True):
    iface_id: str
    rx_rate_limiter: RateLimiter | None = None
    tx_rate_limiter: RateLimiter | None = None


class EntropyDevice(Message, frozen=True, kw_only=True):
    rate_limiter: RateLimiter | None = None


class SerialDevice(Message, frozen=True, kw_only=True):
    serial_out_path: str | None = None
    rate_limiter: TokenBucket | None = None


class MemoryHotplugConfig(Message, frozen=True, kw_only=True):
    total_size_mib: int | None = None
    slot_size_mib: int | None = None
    block_size_mib: int | None = None


class MemoryHotplugSizeUpdate(Message, frozen=True, kw_only=True):
    requested_size_mib: int | None = None


class MemoryHotplugStatus(Message, frozen=True, kw_only=True):
    total_size_mib: int | None = None
    slot_size_mib: int | None = None
    block_size_mib: int | None = None
    plugged_size_mib: int | None = None
    requested_size_mib: int | None = None


class Vsock(Message, frozen=True, kw_only=True):
    guest_cid: int
    uds_path: str
    vsock_id: str | None = None


class Vm(Message, frozen=True, kw_only=True):
    state: Literal["Paused", "Resumed"]


class MemoryBackend(Message, frozen=True, kw_only=True):
    backend_type: Literal["File", "Uffd"]
    backend_path: str


class NetworkOverride(Message, frozen=True, kw_only=True):
    iface_id: str
    host_dev_name: str


class VsockOverride(Message, frozen=True, kw_only=True):
    uds_path: str


class SnapshotCreateParams(Message, frozen=True, kw_only=True):
    snapshot_path: str
    mem_file_path: str
    snapshot_type: Literal["Full", "Diff"] | None = None


class SnapshotLoadParams(Message, frozen=True, kw_only=True):
    """Exactly one of ``mem_backend`` and ``mem_file_path`` (deprecated)."""

    snapshot_path: str
    mem_backend: MemoryBackend | None = None
    mem_file_path: str | None = None
    enable_diff_snapshots: bool | None = None
    track_dirty_pages: bool | None = None
    resume_vm: bool | None = None
    network_overrides: tuple[NetworkOverride, ...] | None = None
    vsock_override: VsockOverride | None = None
    clock_realtime: bool | None = None
    huge_pages: Literal["Snapshot", "None", "Transparent", "2M"] | None = None


class FullVmConfiguration(Message, frozen=True, kw_only=True, rename="kebab"):
    """What is configured; what is not is ``None``."""

    balloon: Balloon | None = None
    drives: tuple[Drive, ...] | None = None
    boot_source: BootSource | None = None
    cpu_config: CpuConfig | None = None
    logger: Logger | None = None
    machine_config: MachineConfiguration | None = None
    metrics: Metrics | None = None
    memory_hotplug: MemoryHotplugConfig | None = None
    mmds_config: MmdsConfig | None = None
    network_interfaces: tuple[NetworkInterface, ...] | None = None
    pmem: tuple[Pmem, ...] | None = None
    vsock: Vsock | None = None
    entropy: EntropyDevice | None = None
