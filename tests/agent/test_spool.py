# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from corral.agent.masking import Masker
from corral.agent.pump import Pump
from corral.agent.spool import Budget, StepSpool
from tests.waiting import eventually

KIB = 1024


def everything(spool: StepSpool, start: int = 0) -> bytes:
    out = bytearray()
    while piece := spool.read(start + len(out), 64 * KIB):
        out += piece
    return bytes(out)


def test_what_is_appended_can_be_read_from_any_offset_not_acknowledged(tmp_path: Path) -> None:
    spool = StepSpool(tmp_path, Budget(1024 * KIB), 10**9)
    data = os.urandom(700 * KIB)
    for at in range(0, len(data), 10_000):
        spool.append(data[at : at + 10_000])
    assert everything(spool) == data
    assert everything(spool, 123_457) == data[123_457:]
    spool.stored(300 * KIB)
    assert everything(spool, 300 * KIB) == data[300 * KIB :]
    digest = spool.close()
    assert digest == (len(data), hashlib.sha256(data).hexdigest(), 0)
    assert list(tmp_path.iterdir()) == [], "spool files have no name"


def test_a_full_budget_stops_the_writer_until_bytes_are_acknowledged(tmp_path: Path) -> None:
    budget = Budget(256 * KIB)
    spool = StepSpool(tmp_path, budget, 10**9)
    data = os.urandom(1024 * KIB)
    writer = threading.Thread(target=spool.append, args=(data,), daemon=True)
    writer.start()
    got = b""
    eventually(lambda: spool.end == 256 * KIB)
    assert budget.used == 256 * KIB
    while len(got) < len(data):
        piece = eventually(lambda got=got: spool.read(len(got), 64 * KIB))
        got += piece
        spool.stored(len(got))
    writer.join()
    assert got == data
    spool.close()
    assert budget.used == 0


def test_what_a_waiting_append_wrote_is_announced(tmp_path: Path) -> None:
    announced: list[int] = []
    spool = StepSpool(tmp_path, Budget(64 * KIB), 10**9, grew=lambda: announced.append(spool.end))
    writer = threading.Thread(target=spool.append, args=(b"x" * 100 * KIB,), daemon=True)
    writer.start()
    eventually(lambda: announced[-1:] == [64 * KIB])
    spool.stored(64 * KIB)
    writer.join(10)
    assert announced[-1] == 100 * KIB


def test_a_line_of_corrals_own_never_waits(tmp_path: Path) -> None:
    budget = Budget(64 * KIB)
    spool = StepSpool(tmp_path, budget, 10**9)
    spool.append(b"x" * 64 * KIB)
    marker = threading.Thread(target=spool.mark, args=("said although there is no room",), daemon=True)
    marker.start()
    marker.join(10)
    assert not marker.is_alive()
    assert everything(spool, 64 * KIB) == b"[corral: said although there is no room]\n"
    spool.stored(spool.end)
    spool.close()
    assert budget.used == 0


def test_many_closed_steps_give_their_room_back(tmp_path: Path) -> None:
    budget = Budget(256 * KIB)

    def hundred_steps() -> None:
        for _ in range(100):
            spool = StepSpool(tmp_path, budget, 10**9)
            spool.append(b"x" * 10 * KIB)
            spool.stored(10 * KIB)
            spool.close()

    writer = threading.Thread(target=hundred_steps, daemon=True)
    writer.start()
    writer.join(10)
    stuck = writer.is_alive()
    budget.close()
    writer.join()
    assert not stuck
    assert budget.used == 0


def test_acknowledged_after_the_close(tmp_path: Path) -> None:
    budget = Budget(256 * KIB)
    spool = StepSpool(tmp_path, budget, 10**9)
    spool.append(b"x" * 100)
    spool.close()
    assert (budget.used, spool.read(0, 10)) == (100, b"x" * 10)
    spool.stored(100)
    assert budget.used == 0


def test_abandoning_lets_a_waiting_writer_go(tmp_path: Path) -> None:
    budget = Budget(64 * KIB)
    spool = StepSpool(tmp_path, budget, 10**9)
    writer = threading.Thread(target=spool.append, args=(b"x" * 1024 * KIB,))
    writer.start()
    eventually(lambda: budget.used == 64 * KIB)
    spool.abandon()
    writer.join(10)
    assert not writer.is_alive()
    assert budget.used == 0


def test_the_limit_is_marked_once_and_counted(tmp_path: Path) -> None:
    spool = StepSpool(tmp_path, Budget(1024 * KIB), 10)
    for _ in range(5):
        spool.append(b"abcd")
    spool.append(b"")
    log = everything(spool)
    assert log == b"abcdabcdab\n[corral: log limit of 10 bytes reached; what follows is not kept]\n"
    assert spool.close() == (len(log), hashlib.sha256(log).hexdigest(), 10)


def test_a_full_disk_is_stated_not_hidden(tmp_path: Path) -> None:
    class FullDisk(StepSpool):
        full = True

        def _write(self, view: memoryview) -> int:
            if self.full:
                raise OSError(5, "no")
            return super()._write(view)

    budget = Budget(1024 * KIB)
    spool = FullDisk(tmp_path, budget, 10**9, patience=0.0)
    spool.append(b"lost")
    spool.full = False
    spool.append(b"kept")
    log = everything(spool)
    assert log == b"\n[corral: 4 bytes were not kept: the agent's disk is full]\nkept"
    assert spool.close().dropped == 4
    assert budget.used == len(log)


def test_a_survivor_that_holds_the_pipe_ends_the_pump_after_a_moment(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    done = threading.Event()
    spool = StepSpool(tmp_path, Budget(1024 * KIB), 10**9)
    pump = Pump(read_end, masker=Masker(["secret"]), spool=spool, learn=lambda: None, done=done.set)
    pump.start()
    os.write(write_end, b"printed before the end: secr")
    pump.process_ended()
    assert done.wait(10)
    pump.join()
    os.close(write_end)
    assert pump.held_open
    assert everything(spool) == b"printed before the end: secr"


def test_the_pump_ends_with_its_pipe(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    done = threading.Event()
    spool = StepSpool(tmp_path, Budget(1024 * KIB), 10**9)
    pump = Pump(read_end, masker=Masker(), spool=spool, learn=lambda: None, done=done.set)
    pump.start()
    os.write(write_end, b"all")
    os.close(write_end)
    assert done.wait(10)
    pump.process_ended()
    pump.join()
    assert (everything(spool), pump.held_open) == (b"all", False)


# --- dropping instead of waiting ---------------------------------------------------------------------------


def test_what_does_not_fit_is_dropped_counted_and_marked(tmp_path: Path) -> None:
    """G7: never silent: spilled to disk first, then a counted marker where the bytes would be."""
    budget = Budget(8000, drop=True)
    log = StepSpool(tmp_path, budget, 10**9)
    log.append(b"a" * 7000)
    log.append(b"b" * 7000)
    log.append(b"c" * 100)
    assert log.end == 8000
    log.stored(log.end)
    log.append(b"d" * 10)
    digest = log.close()
    assert digest.dropped == 6100
    rest = everything(log, 8000)
    assert (
        rest
        == b"\n[corral: 6100 bytes were not kept: the coordinator had not taken 8000 bytes before them]\n" + b"d" * 10
    )
    assert digest.size == 8000 + len(rest)


def test_after_a_drop_nothing_is_kept_before_there_is_real_room(tmp_path: Path) -> None:
    budget = Budget(8000, drop=True)
    log = StepSpool(tmp_path, budget, 10**9)
    log.append(b"a" * 9000)
    log.stored(1000)
    log.append(b"b" * 10)
    assert log.end == 8000, "an eighth is free, a quarter is needed"
    log.stored(2000)
    log.append(b"c" * 10)
    assert b"1010 bytes" in log.read(8000, 1000) and log.read(8000, 1000).endswith(b"c" * 10)


def test_bytes_dropped_at_the_very_end_are_marked_too(tmp_path: Path) -> None:
    log = StepSpool(tmp_path, Budget(8000, drop=True), 10**9)
    log.append(b"a" * 9000)
    digest = log.close()
    assert digest.dropped == 1000
    assert b"[corral: 1000 bytes were not kept" in log.read(8000, 1000)


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=40))
def test_every_printed_byte_is_kept_or_counted(steps: list[tuple[int, bool]]) -> None:
    """Whatever comes and goes: printed = kept + dropped, and every gap has its marker with its size."""
    with tempfile.TemporaryDirectory() as directory:
        log = StepSpool(Path(directory), Budget(8000, drop=True), 10**9)
        seen, printed = b"", 0
        for count, taken in steps:
            log.append(b"x" * count)
            printed += count
            if taken:
                while data := log.read(len(seen), 10**6):
                    seen += data
                log.stored(len(seen))
        digest = log.close()
        while data := log.read(len(seen), 10**6):
            seen += data
        markers = re.findall(rb"\n\[corral: (\d+) bytes were not kept: [^\n]*\]\n", seen)
        assert sum(map(int, markers)) == digest.dropped
        assert re.sub(rb"\n\[corral: [^\n]*\]\n", b"", seen) == b"x" * (printed - digest.dropped)
        assert (len(seen), hashlib.sha256(seen).hexdigest()) == (digest.size, digest.sha256)
        log.abandon()
