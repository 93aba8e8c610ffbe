# SPDX-License-Identifier: Apache-2.0
"""`corral.yaml`: ten faults are ten errors, each with its place and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.cli.config import (
    ServerConfig,
    default_config,
    host_labels,
    load_config,
    parse_config,
    parse_size,
    to_caps,
    to_pool,
)
from corral.decide.matching import Wanted, route
from corral.model.errors import Invalid

GOOD = """\
version: 1
listen: 127.0.0.1:7420
max_agents: 20
retention: {runs: 5, size: 1g}
timing: {lost_after: 60}
pools:
  - name: small
    backend: process
    labels: [Small]
    max_agents: 4
    default: true
  - name: gpu
    backend: process
    labels: [gpu, big]
    mandatory: [gpu]
    max_agents: 1
    inherit_env: [PATH, "PIP_*"]
"""


def faults(text: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        parse_config(text, "corral.yaml")
    return [str(fault) for fault in caught.value.faults]


def with_pool(line: str) -> str:
    return f"version: 1\npools:\n  - name: p\n    backend: process\n    max_agents: 1\n    {line}\n"


def test_a_good_file() -> None:
    config = parse_config(GOOD, "corral.yaml")
    assert (config.max_agents, config.timing.lost_after, config.keep().keep_bytes) == (20, 60.0, 2**30)
    small, gpu = (to_pool(pool) for pool in config.pools)
    assert small.labels == {"small", *host_labels(), "corral:pool:small", "corral:backend:process"}
    assert (gpu.mandatory, gpu.inherit_env, small.inherit_env) == ({"gpu"}, ("PATH", "PIP_*"), None)
    assert route(Wanted(labels=frozenset()), (small, gpu)) == (small,)
    assert to_caps(config).max_agents == 20
    assert config.uid_range() == range(64000, 65000)


TEN = """\
version: 2
listne: here
max_agents: many
uids: 10-20
retention:
  size: 5x
timing:
  lost_after: -1
pools:
  - name: One
    backend: container
    lables: [a]
    labels: [ok, "not ok"]
    max_agents: 1
  - name: two
    backend: process
"""


def test_ten_faults_are_ten_errors_with_place_and_remedy() -> None:
    found = faults(TEN)
    assert len(found) == 11, "\n".join(found)
    expected = [
        (1, "version: version 2 is not known"),
        (2, "listne: unknown key (did you mean 'listen'?)"),
        (3, "max_agents: 'many' is not of type 'integer'"),
        (4, "uids: 10-20 is no range of ordinary users"),
        (6, "retention.size: '5x' is not a size"),
        (8, "timing.lost_after: -1 is less than the minimum of 1"),
        (10, "pools[0].name: 'One' does not match"),
        (11, "pools[0].backend: no backend 'container' in this release (there is process, event)"),
        (12, "pools[0].lables: unknown key (did you mean 'labels'?)"),
        (13, "pools[0].labels[1]: label 'not ok' may hold only"),
        (15, "pools[1]: 'max_agents' is missing"),
    ]
    for line, (number, what) in zip(found, expected, strict=True):
        assert re.match(rf"corral\.yaml:{number}:\d+: {re.escape(what)}", line), line


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[1, 2]\n", "is not of type 'object'"),
        ("just words\n", "is not of type 'object'"),
        ("", "'version' is missing"),
        ("version: true\n", "is not of type 'integer'"),
        ("version: 1.0\n", "1.0 is not of type 'integer'"),
        ("version: 1\nmax_agents: 2.0\n", "2.0 is not of type 'integer'"),
        ("version: 1\nmax_agents: 1e400\n", "max_agents"),
        ("version: 1\npools: nothing\n", "is not of type 'array'"),
        ("version: 1\npools: [3]\n", "is not of type 'object'"),
        ("version: 1\nretention: {size: -5}\n", "is not a size"),
        ("version: 1\nretention: {size: 1.5}\n", "should be"),
        ("version: 1\nretention: {size: true}\n", "retention.size"),
        ("version: 1\nuids: 2000-1000\n", "no range of ordinary users"),
        ("version: 1\ntiming: {heartbeat_interval: 40, agent_dead_after: 60}\n", "at least twice"),
        (with_pool("labels: [corral:os:linux]"), "is reserved"),
        (with_pool("mandatory: [gpu]"), "no job could ever fit"),
        (with_pool("labels: [" + ", ".join(f"l{n}" for n in range(33)) + "]"), "has 33 labels; the limit is 32"),
        (with_pool("inherit_env: [A, 'B C', '*']"), "inherit_env[1]: 'B C' is no variable's name"),
        (with_pool("idle_timeout: 1e9"), "idle_timeout"),
        (with_pool("spawn_timeout: 0"), "spawn_timeout"),
        ('version: 1\npools:\n  - {name: "p\\n", backend: process, max_agents: 1}\n', "pools[0].name"),
    ],
)
def test_each_kind_of_fault(text: str, what: str) -> None:
    assert what in "\n".join(faults(text))


def pools(*lines: str) -> str:
    return "version: 1\npools:\n" + "".join(f"  - {{{line}, backend: process, max_agents: 1}}\n" for line in lines)


def test_pools_that_could_not_be_told_apart() -> None:
    assert faults(pools("name: a, labels: [x]", "name: a, labels: [y]")) == [
        "corral.yaml:4:6: pools[1].name: 'a' is the name of the pool at corral.yaml:3:6 too"
    ]
    (fault,) = faults(pools("name: a, labels: [x, y]", "name: b, labels: [Y, X]"))
    assert "has the same labels as the pool at corral.yaml:3:6" in fault
    own = host_labels()[0]
    (fault,) = faults(pools("name: a", f"name: b, labels: [{own}]"))
    assert "has the same labels as the pool at corral.yaml:3:6" in fault, (
        "the host's labels belong to every pool of processes"
    )
    (fault,) = faults(pools("name: a, labels: [x], default: true", "name: b, labels: [y], default: true"))
    assert "the pool at corral.yaml:3:6 is the default already" in fault


def test_mandatory_labels_of_the_host_are_the_pools_own() -> None:
    parse_config(with_pool(f"mandatory: [{host_labels()[0]}]"), "corral.yaml")


@pytest.mark.parametrize(
    ("text", "bytes_"), [("0", 0), (7, 7), ("5k", 5120), ("2M", 2**21), (" 3g ", 3 * 2**30), ("1t", 2**40)]
)
def test_sizes(text: str | int, bytes_: int) -> None:
    assert parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["", "k", "1.5g", "-1", "1gb", "1 g", "one", "1G\n2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases: list[tuple[Path, str]] = [(tmp_path / "none.yaml", "no such file")]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"version: 1 # \xe9\n")
    cases.append((latin, "is not UTF-8 text"))
    for path, what in cases:
        with pytest.raises(Invalid) as caught:
            load_config(path)
        (fault,) = caught.value.faults
        assert (fault.file, what in fault.message) == (str(path), True)
    good = tmp_path / "corral.yaml"
    good.write_text(GOOD)
    assert load_config(good) == parse_config(GOOD, "x")


def test_without_a_file_every_job_has_a_pool() -> None:
    config = default_config(3)
    (pool,) = (to_pool(pool) for pool in config.pools)
    assert (pool.max_agents, pool.default) == (3, True)
    assert default_config().pools[0].max_agents >= 1


VALUES = st.sampled_from(
    ["1", "-1", "x", "true", "null", "[]", "{}", "[1]", "{a: 1}", "1.5", "'1'", "1e400", "99999999999999999999"]
)
KEYS = st.sampled_from([*ServerConfig.__struct_fields__, "nonsense", "pool"])


@given(
    st.dictionaries(KEYS, VALUES, max_size=6),
    st.lists(
        st.dictionaries(
            st.sampled_from(["name", "backend", "labels", "mandatory", "max_agents", "default", "inherit_env", "user"]),
            VALUES,
        ),
        max_size=2,
    ),
)
@settings(max_examples=150)
def test_whatever_the_values_are_it_is_a_configuration_or_invalid(
    top: dict[str, str], pools: list[dict[str, str]]
) -> None:
    lines = [f"{key}: {value}" for key, value in top.items() if key != "pools"]
    flow = ", ".join("{" + ", ".join(f"{key}: {value}" for key, value in pool.items()) + "}" for pool in pools)
    try:
        config = parse_config("\n".join([*lines, f"pools: [{flow}]"]) + "\n", "corral.yaml")
    except Invalid as error:
        assert error.faults
    else:
        assert isinstance(config, ServerConfig)
