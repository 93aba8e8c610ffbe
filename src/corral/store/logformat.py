# SPDX-License-Identifier: Apache-2.0
"""One log file: zstd frames, each led by a skippable frame that says what it holds (``docs/log-store.md``).

``zstd -dc FILE`` prints the log, because decompressors pass over skippable frames. A file describes itself: where it
was cut, by a crash or a full disk, the rest is found to be torn and everything before it stands.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zstandard

from corral.model.errors import PermanentError

VERSION = 1
RAW_LIMIT = 1024 * 1024
"""Raw bytes per frame: what a range read has to decompress at least, and the most it may have to hold."""
BODY_LIMIT = RAW_LIMIT + 64 * 1024
"""Compressed bytes per frame: zstd's bound for RAW_LIMIT incompressible bytes is 4 KiB more."""
LEVEL = 1
"""zstd level: for logs level 3 costs a third of the speed and gains nothing."""

_SKIPPABLE = 0x184D2A5C
"""One of zstd's sixteen magic numbers for frames to pass over; the C is ours."""
_TAG = b"CLog"
_LEAD = struct.Struct("<II4sBBH")
"""Magic, payload length, tag, version, kind, reserved (0)."""
_CHUNK = struct.Struct("<QIIQQI")
"""Raw offset, raw length, compressed length, time (µs), synced (file offset), CRC-32 of the compressed bytes."""
_FINAL = struct.Struct("<QQQ32s")
"""Raw size, missing bytes, synced (file offset), SHA-256."""
_CRC = struct.Struct("<I")
"""CRC-32 of everything before it in the skippable frame."""
_KIND_CHUNK, _KIND_FINAL = 1, 2
CHUNK_HEADER = _LEAD.size + _CHUNK.size + _CRC.size
FINAL_HEADER = _LEAD.size + _FINAL.size + _CRC.size
_SCAN_STEP = 1024 * 1024
_TAG_AT = 8

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


class LogDamaged(PermanentError):
    """Bytes that had been stored durably are not what they were: the disk's fault, or somebody wrote to the file.
    What comes before the damage can still be read."""

    code = "log_damaged"
    status = 500


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Header of one frame. ``synced``: every byte of the file before this offset had been synced when it was
    written, so that damage there is damage, and only what comes later may be torn."""

    raw_offset: int
    raw_length: int
    body_length: int
    time: int
    synced: int
    body_crc: int


@dataclass(frozen=True, kw_only=True)
class Final:
    """The end of a log. ``digest``: SHA-256 of the raw bytes."""

    raw_size: int
    missing: int
    synced: int
    digest: bytes


def pack_chunk(chunk: Chunk) -> bytes:
    """The skippable frame that goes before the body."""
    return _packed(
        _KIND_CHUNK,
        _CHUNK.pack(chunk.raw_offset, chunk.raw_length, chunk.body_length, chunk.time, chunk.synced, chunk.body_crc),
    )


def pack_final(final: Final) -> bytes:
    return _packed(_KIND_FINAL, _FINAL.pack(final.raw_size, final.missing, final.synced, final.digest))


def _packed(kind: int, payload: bytes) -> bytes:
    length = _LEAD.size - 8 + len(payload) + _CRC.size
    head = _LEAD.pack(_SKIPPABLE, length, _TAG, VERSION, kind, 0) + payload
    return head + _CRC.pack(zlib.crc32(head))


def unpack(head: bytes) -> Chunk | Final | None:
    """The header at the start of ``head``, or None when there is no whole and valid one."""
    if len(head) < _LEAD.size:
        return None
    magic, length, tag, version, kind, _ = _LEAD.unpack_from(head)
    form = {_KIND_CHUNK: _CHUNK, _KIND_FINAL: _FINAL}.get(kind)
    if magic != _SKIPPABLE or tag != _TAG or version != VERSION or form is None:
        return None
    size = _LEAD.size + form.size
    if length != size - 8 + _CRC.size or len(head) < size + _CRC.size:
        return None
    if _CRC.unpack_from(head, size)[0] != zlib.crc32(head[:size]):
        return None
    values = form.unpack_from(head, _LEAD.size)
    if kind == _KIND_FINAL:
        return Final(raw_size=values[0], missing=values[1], synced=values[2], digest=values[3])
    chunk = Chunk(
        raw_offset=values[0],
        raw_length=values[1],
        body_length=values[2],
        time=values[3],
        synced=values[4],
        body_crc=values[5],
    )
    return chunk if 0 < chunk.raw_length <= RAW_LIMIT and chunk.body_length <= BODY_LIMIT else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """``start`` and ``length`` in the file, header included; ``raw_offset`` and ``raw_length`` in the log."""

    start: int
    length: int
    raw_offset: int
    raw_length: int


class Index:
    """Where each frame of a log lies. Two numbers per frame; the lengths follow from the next frame's."""

    def __init__(self) -> None:
        self._raw = array("Q")
        self._file = array("Q")
        self.raw_size = 0
        self.file_size = 0
        """End of the last whole frame."""

    def add(self, chunk: Chunk) -> None:
        self._raw.append(self.raw_size)
        self._file.append(self.file_size)
        self.raw_size += chunk.raw_length
        self.file_size += CHUNK_HEADER + chunk.body_length

    def __len__(self) -> int:
        return len(self._raw)

    def containing(self, raw_offset: int) -> int:
        """Number of the frame that holds this byte; 0 ≤ raw_offset < raw_size."""
        return bisect_right(self._raw, raw_offset) - 1

    def frame(self, number: int) -> Frame:
        inside = number + 1 < len(self._raw)
        start, raw_offset = self._file[number], self._raw[number]
        return Frame(
            start=start,
            length=(self._file[number + 1] if inside else self.file_size) - start,
            raw_offset=raw_offset,
            raw_length=(self._raw[number + 1] if inside else self.raw_size) - raw_offset,
        )


@dataclass(kw_only=True)
class Scanned:
    """What a file holds. ``torn``: the bytes from ``index.file_size`` on were never acknowledged; cut them off.
    ``damage``: what is wrong with bytes that had been; what the index holds is intact."""

    index: Index = field(default_factory=Index)
    final: Final | None = None
    torn: bool = False
    damage: str = ""


def scan(fd: int) -> Scanned:
    """Read the headers, and the bodies of what was written last: only these can be torn. :raises OSError: disk."""
    size = os.fstat(fd).st_size
    found = Scanned()
    chunks: list[Chunk] = []
    synced = 0
    position = 0
    while position < size:
        header = unpack(os.pread(fd, FINAL_HEADER, position))
        if isinstance(header, Final):
            if header.raw_size == found.index.raw_size and header.synced <= position:
                found.final = header
                synced = max(synced, header.synced)
            break
        if header is None or not _continues(header, found.index, position, size):
            break
        chunks.append(header)
        synced = max(synced, header.synced)
        found.index.add(header)
        position = found.index.file_size
    _keep_whole(fd, found, chunks, synced)
    if found.final is None and found.index.file_size < size:
        _judge_rest(fd, found, size)
    return found


def _continues(chunk: Chunk, index: Index, position: int, size: int) -> bool:
    return (
        chunk.raw_offset == index.raw_size
        and chunk.synced <= position
        and position + CHUNK_HEADER + chunk.body_length <= size
    )


def _keep_whole(fd: int, found: Scanned, chunks: list[Chunk], synced: int) -> None:
    """Check the bodies written after the last proven sync; end the index before the first that is not whole."""
    for number in range(len(chunks)):
        frame = found.index.frame(number)
        if frame.start < synced:
            continue
        body = os.pread(fd, frame.length - CHUNK_HEADER, frame.start + CHUNK_HEADER)
        if zlib.crc32(body) != chunks[number].body_crc:
            found.final = None
            found.index = Index()
            for kept in chunks[:number]:
                found.index.add(kept)
            return


def _judge_rest(fd: int, found: Scanned, size: int) -> None:
    """Torn, or damaged? Damaged if a later frame proves that the place where the index ends had been synced."""
    end = found.index.file_size
    position = end + 1
    rest = b""
    while position < size:
        data = rest + os.pread(fd, _SCAN_STEP, position)
        if _proves_synced(data, end):
            found.damage = f"the frame at byte {end} is not what was written"
            return
        position += _SCAN_STEP
        rest = data[-FINAL_HEADER:]
    found.torn = True


def _proves_synced(data: bytes, end: int) -> bool:
    at = data.find(_TAG, _TAG_AT)
    while at >= 0:
        header = unpack(data[at - _TAG_AT : at - _TAG_AT + FINAL_HEADER])
        if header is not None and header.synced > end:
            return True
        at = data.find(_TAG, at + 1)
    return False


def frame(
    compressor: zstandard.ZstdCompressor, raw_offset: int, data: memoryview, time: int, synced: int
) -> tuple[bytes, bytes, Chunk]:
    """Header, body and what the header says. ``data``: 1 to RAW_LIMIT bytes."""
    body = compressor.compress(data)
    chunk = Chunk(
        raw_offset=raw_offset,
        raw_length=len(data),
        body_length=len(body),
        time=time,
        synced=synced,
        body_crc=zlib.crc32(body),
    )
    return pack_chunk(chunk), body, chunk


def new_compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=False)


def read_frame(fd: int, frame: Frame, decompressor: zstandard.ZstdDecompressor) -> bytes:
    """The raw bytes of one frame.

    :raises LogDamaged: they are not what was stored.
    :raises OSError: disk.
    """
    data = os.pread(fd, frame.length, frame.start)
    header = unpack(data)
    body = data[CHUNK_HEADER:]
    if not isinstance(header, Chunk) or len(data) != frame.length or zlib.crc32(body) != header.body_crc:
        raise LogDamaged(f"the frame at byte {frame.start} is not what was written")
    try:
        # The frame says itself how much it unfolds to: nothing is allocated for one that says otherwise.
        if zstandard.frame_content_size(body) != frame.raw_length:
            raise LogDamaged(f"the frame at byte {frame.start} does not hold {frame.raw_length} bytes")
        raw = decompressor.decompress(body)
    except zstandard.ZstdError as error:
        raise LogDamaged(f"the frame at byte {frame.start} cannot be decompressed", internal=str(error)) from None
    if len(raw) != frame.raw_length:
        raise LogDamaged(f"the frame at byte {frame.start} does not hold {frame.raw_length} bytes")
    return raw


def digest_of(fd: int, index: Index) -> Hash:
    """A running SHA-256 over all that is stored, to go on from. :raises LogDamaged, OSError: see read_frame."""
    running = hashlib.sha256()
    decompressor = zstandard.ZstdDecompressor()
    for number in range(len(index)):
        running.update(read_frame(fd, index.frame(number), decompressor))
    return running
