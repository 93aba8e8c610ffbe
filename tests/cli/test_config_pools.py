# SPDX-License-Identifier: Apache-2.0
"""Pools in several files, event pools, resources and schedules: each fault with its place, before a server reads it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.cli.config import Configuration, Source, load_configuration, parse_sources, to_pool
from corral.cli.config.secrets import SecretPlaces
from corral.decide.matching import Wanted, route
from corral.model.errors import Invalid
from corral.model.events import Exec, Webhook, WorkflowTarget
from corral.model.pools import Backoff, Machine, Window

SECRET = "whsec_" + base64.b64encode(b"s" * 24).decode()

GOOD = """\
version: 1
max_cpu: 64
max_memory: 256g
max_cost_per_hour: 12.5
creates_per_second: 2
creates_burst: 20
provision_backoff_base: 10
provision_backoff_max: 60
provisioner_slots: 3
machine_pools: [{name: rack, max_cpu: 16, max_memory: 32g}]
pools:
  - name: small
    backend: process
    labels: [small]
    max_agents: 4
    machine_pool: rack
    resources: {requests: {cpu: 2}, limits: {memory: 4g}}
  - name: cloud
    backend: event
    labels: [cloud]
    max_agents: 20
    min_idle: 1
    schedule: [{days: mon-fri, from: "08:00", to: "18:00", timezone: Europe/Berlin, min_idle: 5}]
    cost_per_hour: 0.4
    provisioner: {webhook: {url: "https://example.org/x", secret: $HOOK}}
"""


def parse(
    text: str, *parts: str, secrets: SecretPlaces | None = None, kinds: dict[str, str] | None = None
) -> Configuration:
    more = [Source(name=f"pools.d/{number}.yaml", text=part, part=True) for number, part in enumerate(parts)]
    return parse_sources([Source(name="corral.yaml", text=text), *more], secrets=secrets, kinds=kinds)


def faults(text: str, *parts: str, secrets: SecretPlaces | None = None, kinds: dict[str, str] | None = None) -> str:
    with pytest.raises(Invalid) as caught:
        parse(text, *parts, secrets=secrets, kinds=kinds)
    return "\n".join(str(fault) for fault in caught.value.faults)


def event(provisioner: str, more: str = "") -> str:
    head = "version: 1\npools:\n  - name: e\n    backend: event\n    max_agents: 2\n    labels: [e]\n"
    return f"{head}    provisioner: {provisioner}\n" + (f"    {more}\n" if more else "")


def process(line: str, top: str = "") -> str:
    return f"version: 1\n{top}pools:\n  - name: p\n    backend: process\n    max_agents: 2\n    {line}\n"


def test_every_key_reaches_the_values_that_are_worked_with() -> None:
    found = parse(GOOD)
    caps, (small, cloud) = found.caps(), found.pools()
    assert (caps.max_cpu, caps.max_memory, caps.max_cost_per_hour) == (64, 256 * 2**30, 12.5)
    assert (caps.creates_per_second, caps.creates_burst) == (2, 20)
    assert (caps.backoff, caps.provisioner_slots) == (Backoff(base=10, most=60), 3)
    assert caps.machines == (Machine(name="rack", max_cpu=16, max_memory=32 * 2**30),)
    assert (small.machine, small.cpu, small.cpu_limit) == ("rack", 2, 2)
    assert (small.memory, small.memory_limit) == (4 * 2**30, 4 * 2**30), "one side given serves as the other"
    window = Window(days=frozenset(range(5)), start=480, end=1080, timezone="Europe/Berlin", min_idle=5)
    assert (cloud.min_idle, cloud.schedule, cloud.cost_per_hour) == (1, (window,), 0.4)
    assert cloud.target == Webhook(url="https://example.org/x", secret="$HOOK")
    assert cloud.labels == {"cloud", "corral:pool:cloud", "corral:backend:event"}


def test_each_kind_of_provisioner() -> None:
    (one,) = parse(event("{exec: {command: [make, it], directory: /srv, env: [A]}}")).pools()
    assert one.target == Exec(command=("make", "it"), directory="/srv", env=("A",))
    (two,) = parse(event("{workflow: {name: machines, timeout: 60}}")).pools()
    assert two.target == WorkflowTarget(workflow="machines", timeout=60)


HOOK = "{webhook: {url: %s, secret: s}}"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version: 1\nmax_memory: 4Gi\n", "corral.yaml:2:1: max_memory: '4Gi' is not a size"),
        ("version: 1\nmachine_pools: [{name: m, max_memory: 4Gi}]\n", "machine_pools[0].max_memory: '4Gi' is not a"),
        (process("max_memory: 4Gi"), "corral.yaml:6:5: pools[0].max_memory: '4Gi' is not a size"),
        (process("resources: {requests: {memory: 4Gi}}"), "resources.requests.memory: '4Gi' is not a size"),
        (process("resources: {limits: {memory: 4GB}}"), "resources.limits.memory: '4GB' is not a size"),
        (process("resources: {requests: {memroy: 1g}}"), "unknown key (did you mean 'memory'?)"),
        (process("resources: {requests: {cpu: 4}, limits: {cpu: 2}}"), "the limit of cpu is below"),
        (process("resources: {requests: {cpu: 4}}", "max_cpu: 2\n"), "more cpu than max_cpu of the cluster"),
        (process("machine_pool: none"), "no machine pool 'none'"),
        (process("min_idle: 3"), "3 idle agents are more than max_agents (2) allows"),
        (process("schedule: [{days: mon-fry, from: '8', to: '24:00', timezone: X/Y, min_idle: 1}]"), "'mon-fry' is no"),
        (process("schedule: [{days: mon-fry, from: '8', to: '24:00', timezone: X/Y, min_idle: 1}]"), "'24:00' is no"),
        (process("schedule: [{from: '08:00', to: '09:00', timezone: X/Y, min_idle: 1}]"), "no time zone 'X/Y'"),
        (process("provisioner: {exec: {command: [a]}}"), "is for pools with backend event"),
        ("version: 1\nprovision_backoff_base: 1000\n", "provision_backoff_max (900 s) is below"),
        ("version: 1\npools: [{name: e, backend: event, max_agents: 1}]\n", "an event pool needs a 'provisioner'"),
        (event("{}"), "names no provisioner (exactly one of webhook, exec, workflow)"),
        (event("{exec: {command: [a]}, workflow: {name: w}}"), "has exec and workflow; a pool has one provisioner"),
        (event("{exec: {comand: [a]}}"), "pools[0].provisioner.exec.comand: unknown key (did you mean 'command'?)"),
        (event("{exec: {command: [a], directory: here}}"), "'here' is not an absolute path"),
        (event("{exec: {command: [a]}}", "user: builder"), "says nothing for backend event"),
        (event(HOOK % "http://example.org/"), "in the clear (https, or allow_plain_http: true)"),
        (event(HOOK % "ftp://example.org/"), "no URL that events can be sent to"),
        (event(HOOK % "https://me:pw@example.org/"), "has a user or password in it"),
        (event("{webhook: {url: https://example.org/, secret: ../key}}"), "'../key' names no secret"),
    ],
)
def test_each_fault(text: str, what: str) -> None:
    assert what in faults(text)


def test_plain_http_only_where_nobody_listens_or_on_request() -> None:
    for url in ("http://127.0.0.1:1/", "http://localhost/", "'http://[::1]/'"):
        parse(event(HOOK % url))
    parse(event("{webhook: {url: http://example.org/, secret: s, allow_plain_http: true}}"))


def test_a_platform_among_the_labels_gates_nothing_and_that_is_said() -> None:
    """The reference's defect 22: a bare platform label kept jobs away without a word."""
    text = event("{workflow: {name: w}}").replace("[e]", "[big, windows]")
    found = parse(text)
    assert route(Wanted(labels=frozenset({"big"})), found.pools()) == found.pools()
    (warning,) = found.warnings
    assert "jobs that do not ask for 'windows' may run here too" in warning.message


def test_the_backend_of_a_pool_that_is_there_does_not_change() -> None:
    text = event("{workflow: {name: w}}")
    assert "the backend of pool e is process and cannot change" in faults(text, kinds={"e": "process"})
    parse(text, kinds={"e": "event"})


def test_secrets_are_looked_for_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    text = event("{webhook: {url: https://example.org/, secret: hook}}")
    places = SecretPlaces(state_dir=tmp_path, environment={})
    assert "No such file" in faults(text, secrets=places)
    offline = SecretPlaces(state_dir=tmp_path, environment={}, required=False)
    (warning,) = parse(text, secrets=offline).warnings
    assert "No such file" in warning.message
    for wrong in ("hello", "whsec_?", "whsec_" + base64.b64encode(b"x" * 23).decode(), SECRET + "A" * 80):
        (tmp_path / "secrets" / "hook").write_text(wrong)
        (tmp_path / "secrets" / "hook").chmod(0o600)
        for each in (places, offline):
            found = faults(text, secrets=each)
            assert "secrets/hook does not hold whsec_" in found
            assert wrong not in found
    (tmp_path / "secrets" / "hook").write_text(SECRET + "\n")
    assert parse(text, secrets=places).warnings == ()
    # What a delivery would refuse is refused here, in its words.
    (tmp_path / "secrets" / "hook").chmod(0o644)
    assert "can be read or changed by others" in faults(text, secrets=places)
    parse(
        text.replace("secret: hook", "secret: $HOOK"),
        secrets=SecretPlaces(state_dir=tmp_path, environment={"HOOK": SECRET}),
    )


# --- pools.d -----------------------------------------------------------------------------------------------


def pool(name: str, label: str) -> str:
    return f"version: 1\npools:\n  - {{name: {name}, backend: process, max_agents: 1, labels: [{label}]}}\n"


def test_parts_are_read_in_the_order_of_the_alphabet(tmp_path: Path) -> None:
    (tmp_path / "pools.d").mkdir()
    (tmp_path / "corral.yaml").write_text(pool("main", "m"))
    (tmp_path / "pools.d" / "b.yaml").write_text(pool("second", "s"))
    (tmp_path / "pools.d" / "a.yml").write_text(pool("first", "f"))
    for ignored in ("notes.txt", ".b.yaml.swp.yaml", "c.yaml~"):
        (tmp_path / "pools.d" / ignored).write_text("not: [yaml")
    for path in (tmp_path, tmp_path / "corral.yaml"):
        found = load_configuration(path)
        assert [each.name for each in found.config.pools] == ["main", "first", "second"]
        assert [Path(name).name for name in found.files] == ["corral.yaml", "a.yml", "b.yaml"]
    (tmp_path / "pools.d" / "d.yaml").mkdir()
    with pytest.raises(Invalid, match=r"d\.yaml: cannot be read: it is not a file"):
        load_configuration(tmp_path)


def test_a_part_holds_pools_and_nothing_else() -> None:
    assert "pools.d/0.yaml:2:1: max_agents: unknown key" in faults(pool("a", "a"), "version: 1\nmax_agents: 3\n")
    assert "pools.d/0.yaml:1:1: version: version 2 is not known" in faults(pool("a", "a"), "version: 2\n")


def test_twins_in_two_files_name_both_places() -> None:
    found = faults(pool("a", "x"), pool("a", "X"))
    assert "pools.d/0.yaml:3:6: pools[0].name: 'a' is the name of the pool at corral.yaml:3:6 too" in found
    assert "pools[0].labels: has the same labels as the pool at corral.yaml:3:6" in found


def test_faults_of_every_file_are_told_together() -> None:
    found = faults("version: 1\nlistne: x\n", "version: 1\npolls: []\n", "- [")
    assert [line.split(":")[0] for line in found.splitlines()] == ["corral.yaml", "pools.d/0.yaml", "pools.d/1.yaml"]


# --- whatever it is ----------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *("version", "pools", "machine_pools", "name", "backend", "event", "process", "labels", "mandatory"),
        *("max_agents", "max_memory", "resources", "requests", "limits", "cpu", "memory", "schedule", "days", "from"),
        *("to", "timezone", "provisioner", "webhook", "exec", "url", "secret", "command", "min_idle", "uids"),
        *("machine_pool", "timing"),
    ]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), WORDS)
TREES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(WORDS, each, max_size=5), max_leaves=25
)
POOLS = st.lists(st.dictionaries(WORDS, TREES, max_size=6) | TREES, max_size=3)


@given(
    st.fixed_dictionaries({"version": st.just(1), "pools": POOLS}, optional={"machine_pools": POOLS, "uids": TREES}),
    st.fixed_dictionaries({"version": st.just(1), "pools": POOLS}),
)
@settings(max_examples=200, deadline=None)
def test_any_tree_is_a_configuration_or_invalid(main: object, part: object) -> None:
    import json

    try:
        found = parse(json.dumps(main), json.dumps(part), secrets=SecretPlaces(state_dir=Path("/nonexistent")))
    except Invalid as error:
        assert error.faults
    else:
        assert all(to_pool(each).name for each in found.config.pools)
        found.caps()


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_configuration_or_invalid(text: str) -> None:
    try:
        parse(text, text)
    except Invalid as error:
        assert error.faults
