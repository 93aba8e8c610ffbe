# SPDX-License-Identifier: Apache-2.0
"""Lock files: canonical bytes, and every fault of one that a stranger hands over."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.errors import Fault, Invalid, NotFound
from corral.model.spec import JobSpec, Lock, NeedSpec, StepKind, StepSpec, WorkflowSpec
from corral.workflow.checks import FAULT_LIMIT
from corral.workflow.lock import LOCK_LIMIT, check_lock, lock_bytes, make_lock, read_lock
from corral.workflow.positions import line_of, lines_of

DIGEST = "ab" * 32


def spec(name: str = "ci", **changes: Any) -> WorkflowSpec:
    step = StepSpec(name="s", script="true")
    jobs = (
        JobSpec(name="build", steps=(step,), line=3),
        JobSpec(name="test", steps=(step,), needs=(NeedSpec(job="build"),), matrix=({"n": 1}, {"n": 2}), line=4),
    )
    return WorkflowSpec(**{"name": name, "jobs": jobs, "file": "ci.py", "line": 2, **changes})


def sealed(*workflows: WorkflowSpec, files: dict[str, str] | None = None) -> Lock:
    return make_lock(workflows or (spec(),), files or {})


def edited(change: Any, *, reseal: bool = False) -> bytes:
    """The bytes of a good lock after ``change`` was made to its JSON."""
    raw = json.loads(lock_bytes(sealed()))
    change(raw)
    if reseal:
        from corral.workflow.lock import _hash

        raw["hash"] = _hash(raw)
    return json.dumps(raw, indent=2).encode()


def faults_of(data: bytes) -> tuple[Fault, ...]:
    with pytest.raises(Invalid) as caught:
        read_lock(data, name="x.json")
    assert caught.value.faults
    return caught.value.faults


def test_what_is_written_is_read() -> None:
    lock = sealed(spec("b"), spec("a"), files={"ci.py": DIGEST})
    assert [workflow.name for workflow in lock.workflows] == ["a", "b"]
    assert read_lock(lock_bytes(lock)) == lock
    assert lock == sealed(spec("a"), spec("b"), files={"ci.py": DIGEST})


def test_the_bytes_are_canonical() -> None:
    data = lock_bytes(sealed())
    assert data.endswith(b"}\n")
    assert data == (json.dumps(json.loads(data), sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def test_whitespace_and_order_of_keys_do_not_matter_to_a_reader() -> None:
    raw = json.loads(lock_bytes(sealed()))
    shuffled = dict(reversed(raw.items()))
    assert read_lock(json.dumps(shuffled).encode()) == sealed()


@pytest.mark.parametrize(("key", "value"), [("files", {"x.py": DIGEST}), ("workflows", [])])
def test_the_hash_covers_everything(key: str, value: object) -> None:
    assert [fault.path for fault in faults_of(edited(_change(key, value)))] == ["hash"]


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"", 1, "not JSON: Expecting value"),
        (b"{", 1, "not JSON: Expecting property name"),
        (b'{"version": 1,\n"a": nul}', 2, "not JSON: Expecting value"),
        (b"[]", 1, "the outermost value must be an object"),
        (b"{}", 1, "`version` is missing or not a number"),
        (b'{"version": true}', 1, "`version` is missing or not a number"),
        (b'{"version": "1"}', 1, "`version` is missing or not a number"),
        (b'{\n"version": 2}', 2, "the lock file has version 2; this Corral reads version 1"),
        (b'{\n"version": 0}', 2, "there is no lock file version 0"),
        (b'{"version": 1, "version": 1}', 0, "the key 'version' stands twice"),
        (b'{"version": 1, "files": NaN}', 0, "NaN is not a JSON number"),
        (b'{"version": 1, "files": "\\ud800"}', 0, "half of a surrogate pair"),
        (b'{"version": 1, "x": ' + b"[" * 100_000, 0, "nested too deeply"),
        (b'{"version": 1, "x": ' + b"9" * 5000 + b"}", 0, "not JSON"),
        (b"\n\xff", 2, "not UTF-8"),
        (b'{\n<<<<<<< HEAD\n"version": 1', 2, "an unresolved merge conflict"),
        (b" " * (LOCK_LIMIT + 1), 0, f"the lock file is above {LOCK_LIMIT} bytes"),
    ],
)
def test_what_is_no_lock_at_all(data: bytes, line: int, message: str) -> None:
    (fault,) = faults_of(data)
    assert message in fault.message
    assert (fault.file, fault.line) == ("x.json", line)
    assert fault.remedy


def _change(path: str, value: object) -> Any:
    def change(raw: Any) -> None:
        *above, last = path.split(".")
        for key in above:
            raw = raw[int(key) if key.isdigit() else key]
        raw[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "place", "message"),
    [
        ("extra", 1, "extra", "unknown field 'extra'"),
        ("workflows.0.jobz", 1, "workflows[0].jobz", "unknown field 'jobz'; did you mean 'jobs'?"),
        ("workflows.0.jobs.1.needs.0.wen", "always", "workflows[0].jobs[1].needs[0].wen", "did you mean 'when'?"),
        ("workflows.0.jobs.1.needs.0.when", "maybe", "workflows[0].jobs[1].needs[0].when", "'maybe' is none of"),
        ("workflows.0.jobs.0.timeout", "5", "workflows[0].jobs[0].timeout", "'5' is not of type number"),
        ("workflows.0.jobs.0.steps", {}, "workflows[0].jobs[0].steps", "{} is not of type array"),
        ("workflows.0.timeout", "5", "workflows[0].timeout", "'5' has the wrong type"),
        ("files", [], "files", "[] is not of type object"),
        ("workflows.0.jobs.1.matrix.0", {"n": None}, "workflows[0].jobs[1].matrix[0].n", "None"),
    ],
)
def test_structure(path: str, value: object, place: str, message: str) -> None:
    data = edited(_change(path, value), reseal=True)
    (fault,) = faults_of(data)
    assert fault.path == place
    assert message in fault.message
    wanted = place.rpartition(".")[2].rpartition("[")[0] or place.rpartition(".")[2]
    assert f'"{wanted}"' in data.decode().splitlines()[fault.line - 1]


def test_missing_fields_are_named() -> None:
    def change(raw: Any) -> None:
        del raw["files"]
        del raw["workflows"][0]["name"]

    assert [fault.message for fault in faults_of(edited(change, reseal=True))] == ["missing: files", "missing: name"]


def test_all_faults_at_once() -> None:
    def change(raw: Any) -> None:
        raw["workflows"][0]["jobz"] = 1
        raw["workflows"][0]["jobs"][0]["timeout"] = "x"
        raw["workflows"][0]["jobs"][1]["steps"][0]["kind"] = "shelll"
        del raw["files"]

    faults = faults_of(edited(change))
    assert len(faults) == 5
    assert [fault.path for fault in faults][-1] == "hash"


def test_the_compilers_checks_hold_for_a_lock() -> None:
    step = StepSpec(name="s", script="echo ${{ run.id }}", line=7)
    bad = spec(jobs=(JobSpec(name="a", steps=(step,), needs=(NeedSpec(job="b"),), line=5),))
    faults = faults_of(lock_bytes(sealed(bad)))
    assert {(fault.file, fault.line, fault.path) for fault in faults} == {
        ("ci.py", 5, "ci.a.needs"),
        ("ci.py", 7, "ci.a.s"),
    }


def job(name: str = "a", **changes: Any) -> JobSpec:
    return JobSpec(**{"name": name, "steps": (StepSpec(name="s", script="true"),), **changes})


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ((job(env={f"V{n}": "x" * 60_000 for n in range(9)}),), "bytes; the limit is 524288"),
        ((job(needs=tuple(NeedSpec(job=f"n{n}") for n in range(257))),), "257 needs; the limit is 256"),
        ((job(env={"A": "${{ run.id }}" * 257}),), "has 257 expressions in templates; the limit is 256"),
        ((job(env={f"V{n}": "" for n in range(257)}),), "257 variables; the limit is 256"),
        (tuple(job(f"j{n}") for n in range(1025)), "has 1025 jobs with its matrices expanded; the limit is 1024"),
        (tuple(job(f"j{n}", matrix=tuple({"n": m} for m in range(200))) for n in range(6)), "has 1200 jobs"),
    ],
)
def test_limits(jobs: tuple[JobSpec, ...], message: str) -> None:
    (fault,) = faults_of(lock_bytes(sealed(spec(jobs=jobs))))
    assert message in fault.message


def test_faults_without_end_are_cut_off() -> None:
    faults = faults_of(lock_bytes(sealed(spec(jobs=tuple(job(f"j {n}") for n in range(1000))))))
    assert len(faults) == FAULT_LIMIT + 1
    assert faults[-1].message == f"there may be more faults than these {FAULT_LIMIT}"
    many = {f"../{n}.py": DIGEST for n in range(1000)}
    assert len(faults_of(lock_bytes(sealed(files=many)))) == FAULT_LIMIT
    workflows = [spec(f"w{n}") for n in range(257)]
    assert [fault.message for fault in faults_of(lock_bytes(sealed(*workflows)))] == ["257 workflows; the limit is 256"]


def test_a_stranger_cannot_write_to_a_terminal() -> None:
    evil = "\x1b]0;evil\x07\n\u202e"
    jobs = (job(evil, needs=(NeedSpec(job="b"),), condition=f"'{evil}'.x"), job("b", needs=(NeedSpec(job=evil),)))
    for data in (
        lock_bytes(sealed(spec(evil, jobs=jobs, file=evil), files={evil: evil})),
        edited(_change(evil.replace(".", ""), evil), reseal=True),
    ):
        for fault in faults_of(data):
            assert str(fault).isprintable()


@pytest.mark.parametrize(
    ("files", "step_file", "step_hash", "message"),
    [
        ({}, "ci.py", DIGEST, "is not in the lock's list of files"),
        ({"ci.py": "cd" * 32}, "ci.py", DIGEST, "is not in the lock's list of files"),
        ({"../ci.py": DIGEST}, "../ci.py", DIGEST, "it leaves the tree"),
        ({"/etc/ci.py": DIGEST}, "/etc/ci.py", DIGEST, "it is not relative"),
        ({"ci.py": "short"}, "ci.py", "short", "its hash is not a SHA-256"),
    ],
)
def test_function_files(files: dict[str, str], step_file: str, step_hash: str, message: str) -> None:
    step = StepSpec(name="s", kind=StepKind.FUNCTION, function="f", file=step_file, file_hash=step_hash)
    faults = faults_of(lock_bytes(sealed(spec(jobs=(JobSpec(name="a", steps=(step,)),)), files=files)))
    assert any(message in fault.message for fault in faults)


def test_a_lock_that_is_already_a_struct() -> None:
    lock = sealed()
    assert check_lock(lock) == ()
    for changes, path in (({"hash": DIGEST}, "hash"), ({"version": 2}, "version")):
        assert [fault.path for fault in check_lock(replace(lock, **changes))] == [path]
    bad = sealed(spec(jobs=(job(needs=(NeedSpec(job="a"),)),)), files={"../x": DIGEST})
    assert [fault.path for fault in check_lock(bad)] == ["files", "ci.a.needs"]
    assert "surrogate" in check_lock(replace(lock, hash="x", files={"\ud800": ""}))[0].message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no lock file .*: run `corral compile`"):
        read_lock(tmp_path / "corral.lock.json")
    with pytest.raises(Invalid, match="cannot be read: Is a directory"):
        read_lock(tmp_path)


def test_reading_a_good_lock_does_not_import_jsonschema() -> None:
    """It costs a tenth of a second, and every start of a server or command would pay it."""
    import subprocess

    script = (
        "import sys; from corral.workflow.lock import read_lock; read_lock(sys.stdin.buffer.read());"
        "print('jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], input=lock_bytes(sealed()), capture_output=True, check=True)
    assert done.stdout == b"False\n"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_lock_never_raises_anything_else(data: st.DataObject) -> None:
    """Any value of a good lock replaced by any JSON: it is a lock, or Invalid says why not."""
    raw = json.loads(lock_bytes(sealed(files={"a.py": DIGEST})))
    places: list[tuple[Any, Any]] = []

    def gather(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                gather(node[key])

    gather(raw)
    node, key = data.draw(st.sampled_from(places))
    node[key] = data.draw(_JSON)
    try:
        read_lock(json.dumps(raw).encode("utf-8", "surrogatepass"))
    except Invalid as error:
        assert error.faults


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_lock(data)


# --- positions ---------------------------------------------------------------------------------------------


def test_line_of() -> None:
    text = '{\n "a": {"b": [1,\n 2, {"c}": "x,]",\n "d": []}]},\n "e": null\n}'
    assert line_of(text, ()) == 1
    assert line_of(text, ("a",)) == 2
    assert line_of(text, ("a", "b", 0)) == 2
    assert line_of(text, ("a", "b", 1)) == 3
    assert line_of(text, ("a", "b", 2, "c}")) == 3
    assert line_of(text, ("a", "b", 2, "d")) == 4
    assert line_of(text, ("e",)) == 5
    assert line_of(text, ("a", "b", 2, "gone", 5)) == 3


@given(_JSON)
@settings(deadline=None)
def test_every_place_of_any_json_is_found(value: Any) -> None:
    """Written with each entry, and each end of a container that is not empty, on a line of its own."""
    expected: dict[tuple[str | int, ...], int] = {}

    def place(node: Any, path: tuple[str | int, ...], line: int) -> int:
        expected[path] = line
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        last = line
        for key, item in entries:
            last = place(item, (*path, key), last + 1)
        return last + 1 if last > line else line

    place(value, (), 1)
    assert lines_of(json.dumps(value, indent=1), list(expected)) == expected
