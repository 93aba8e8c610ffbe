# SPDX-License-Identifier: Apache-2.0
"""A real agent process against a small coordinator: every way in which a job runs and ends."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import sys
import tarfile
from pathlib import Path

import pytest

from corral.agent.ending import ExitCode
from corral.model.spec import NeedResult, PythonSpec, Reason, Result, RetrySpec, SourceRef, StepKind, StepSpec
from corral.wire.messages import StepStarted
from tests.agent.coordinator import Coordinator, gone, in_loop, order, running
from tests.waiting import eventually


async def pid_from(coordinator: Coordinator, job_id: str = "job_1", step: int = 0) -> int:
    """The number that a step printed on its first line."""
    await coordinator.until(lambda: b"\n" in coordinator.log(job_id, step))
    return int(coordinator.log(job_id, step).split()[0])


def test_a_job_runs_and_a_single_use_agent_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await coordinator.run(order("echo out; echo err >&2; echo again"))
            assert (end.result, end.reason, end.detail) == (Result.SUCCEEDED, Reason.NONE, "")
            assert await agent.ended() == ExitCode.DONE
            assert coordinator.log("job_1") == b"out\nerr\nagain\n"
            coordinator.verify_logs("job_1")
            assert list((tmp_path / "work" / "jobs").iterdir()) == []
            assert not agent.config.exists(), "what carried the claim is wiped"

    in_loop(work)


def test_outputs_pass_between_steps_and_to_the_job(tmp_path: Path) -> None:
    second = StepSpec(
        name="second",
        script='echo "$FROM_FIRST"; printf "text<<EOF\\na\\nb=c\\nEOF\\n" >> "$CORRAL_OUTPUT"',
        env={"FROM_FIRST": "got ${{ steps.s0.outputs.x }}"},
    )

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await coordinator.run(order('echo x=1 >> "$CORRAL_OUTPUT"', second))
            assert end.outputs == {"x": "1", "text": "a\nb=c"}
            assert coordinator.steps("job_1")[1].outputs == {"text": "a\nb=c"}
            await agent.ended()
            assert coordinator.log("job_1", 1) == b"got 1\n"

    in_loop(work)


def test_declared_outputs_are_the_only_ones(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            job = order('echo x=1 >> "$CORRAL_OUTPUT"', outputs={"y": "<${{ steps.s0.outputs.x }}>"})
            assert (await coordinator.run(job)).outputs == {"y": "<1>"}

    in_loop(work)


def test_bad_outputs_fail_the_step_and_name_the_line(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order('echo "no output" >> "$CORRAL_OUTPUT"'))
            assert (end.result, end.reason) == (Result.FAILED, Reason.OUTPUTS_INVALID)
            assert "line 1" in end.detail

    in_loop(work)


def test_a_failing_step_skips_the_rest_and_runs_cleanup(tmp_path: Path) -> None:
    steps = (
        "exit 3",
        "echo never",
        StepSpec(name="always", script="echo always", condition="always()"),
        StepSpec(name="onfail", script="echo onfail", condition="failure()"),
    )
    cleanup = (StepSpec(name="tidy", script="echo tidied"),)

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await coordinator.run(order(*steps, cleanup=cleanup))
            assert (end.result, end.reason) == (Result.FAILED, Reason.EXIT_CODE)
            assert end.detail == "step 's0' exited with code 3"
            await agent.ended()
            ends = coordinator.steps("job_1")
            assert [ends[i].result for i in range(5)] == [
                Result.FAILED,
                Result.SKIPPED,
                Result.SUCCEEDED,
                Result.SUCCEEDED,
                Result.SUCCEEDED,
            ]
            assert ends[0].exit_code == 3
            assert coordinator.log("job_1", 4) == b"tidied\n"
            assert {m.step for m in coordinator.said(StepStarted)} == {0, 2, 3, 4}

    in_loop(work)


def test_continue_on_error_and_pipefail(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(
                order(StepSpec(name="soft", script="false | true", continue_on_error=True), "echo fine")
            )
            assert end.result is Result.SUCCEEDED
            assert coordinator.steps("job_1")[0].result is Result.FAILED

    in_loop(work)


def test_a_step_is_tried_again_as_its_policy_says(tmp_path: Path) -> None:
    step = StepSpec(
        name="flaky",
        script='echo try; test -e "$HOME/seen" || { touch "$HOME/seen"; exit 7; }',
        retry=RetrySpec(attempts=3, delay=0.01),
    )

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            assert (await coordinator.run(order(step))).result is Result.SUCCEEDED
            await agent.ended()
            assert coordinator.steps("job_1")[0].tries == 2
            log = coordinator.log("job_1").decode()
            assert log.startswith(
                "try\n[corral: try 1 of 3 failed (step 'flaky' exited with code 7); again in 0.01 s]\ntry"
            )

    in_loop(work)


@pytest.mark.parametrize(
    ("script", "reason", "number", "code"),
    [
        ("kill -SEGV $$", Reason.SIGNAL, signal.SIGSEGV, None),
        ("kill -KILL $$", Reason.SIGNAL, signal.SIGKILL, None),
        ("exit 137", Reason.EXIT_CODE, None, 137),
    ],
)
def test_signals_and_exit_codes_are_told_apart(
    tmp_path: Path, script: str, reason: Reason, number: int | None, code: int | None
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order(script))
            assert (end.result, end.reason) == (Result.FAILED, reason)
            step = coordinator.steps("job_1")[0]
            assert (step.signal, step.exit_code) == (number, code)

    in_loop(work)


def test_a_step_timeout_names_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order(StepSpec(name="slow", script="sleep 600", timeout=0.2), timeout=60))
            assert (end.result, end.reason) == (Result.FAILED, Reason.STEP_TIMEOUT)
            assert end.detail == "step 'slow' ran into its own timeout of 0.2 s"

    in_loop(work)


def test_a_job_timeout_names_itself_and_runs_cleanup(tmp_path: Path) -> None:
    cleanup = (StepSpec(name="tidy", script="echo tidied"),)

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await coordinator.run(order("sleep 600", "echo never", timeout=0.3, cleanup=cleanup))
            assert (end.result, end.reason) == (Result.FAILED, Reason.JOB_TIMEOUT)
            assert end.detail == "the job ran into its own timeout of 0.3 s"
            await agent.ended()
            assert coordinator.steps("job_1")[1].result is Result.SKIPPED
            assert coordinator.log("job_1", 2) == b"tidied\n"

    in_loop(work)


def test_cancel_interrupts_and_runs_cleanup(tmp_path: Path) -> None:
    cleanup = (StepSpec(name="tidy", script="echo tidied"),)

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            job = order("trap 'echo interrupted; exit 1' INT; echo $$; while :; do sleep 0.05; done", cleanup=cleanup)
            await coordinator.begin(job)
            pid = await pid_from(coordinator)
            await coordinator.cancel(job, grace=10.0)
            assert await agent.ended() == ExitCode.DONE
            end = coordinator.steps("job_1")
            assert (end[0].result, end[0].reason) == (Result.CANCELLED, Reason.CANCELLED)
            assert coordinator.log("job_1").endswith(b"interrupted\n")
            assert coordinator.log("job_1", 1) == b"tidied\n"
            assert gone(pid)

    in_loop(work)


@pytest.mark.parametrize("trap", ["trap '' INT", "trap '' INT TERM"])
def test_a_step_that_ignores_signals_is_killed_within_the_grace(tmp_path: Path, trap: str) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            job = order(f"{trap}; echo $$; while :; do sleep 0.05; done")
            await coordinator.begin(job)
            pid = await pid_from(coordinator)
            await coordinator.cancel(job, grace=1.0)
            await agent.ended()
            assert coordinator.steps("job_1")[0].result is Result.CANCELLED
            assert gone(pid)

    in_loop(work)


def test_force_kills_at_once_and_runs_no_cleanup(tmp_path: Path) -> None:
    cleanup = (StepSpec(name="tidy", script="echo tidied"),)

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            job = order("trap '' INT TERM; echo $$; while :; do sleep 0.05; done", cleanup=cleanup)
            await coordinator.begin(job)
            pid = await pid_from(coordinator)
            await coordinator.cancel(job, grace=600.0)
            await coordinator.cancel(job, grace=600.0)
            await agent.ended()
            step = coordinator.steps("job_1")
            assert step[0].signal == signal.SIGKILL
            assert step[1].result is Result.SKIPPED
            assert gone(pid)

    in_loop(work)


def test_a_stopped_step_can_be_cancelled(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            job = order("echo $$; kill -STOP $$; echo on")
            await coordinator.begin(job)
            pid = await pid_from(coordinator)
            eventually(lambda: "T" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
            await coordinator.cancel(job, grace=4.0)
            await agent.ended()
            assert coordinator.steps("job_1")[0].result is Result.CANCELLED
            assert gone(pid)

    in_loop(work)


def test_what_is_left_of_the_group_is_killed_at_the_steps_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            end = await coordinator.run(order("sleep 600 & echo $!", "echo next"))
            assert end.result is Result.SUCCEEDED
            assert gone(await pid_from(coordinator))
            assert b"held its output open" not in coordinator.log("job_1")

    in_loop(work)


DAEMON = """
python3 - <<'END'
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        {closing}
        time.sleep(600)
    os._exit(0)
os.wait()
END
"""


def test_a_daemon_that_keeps_the_pipe_open_hangs_nothing_and_dies_with_the_job(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            end = await coordinator.run(order(DAEMON.format(closing=""), "echo next"))
            assert end.result is Result.SUCCEEDED
            assert b"a process that outlived this step held its output open" in coordinator.log("job_1")
            assert gone(await pid_from(coordinator))
            coordinator.verify_logs("job_1")

    in_loop(work)


def test_a_daemon_that_closed_everything_lives_for_the_next_step_and_dies_with_the_job(tmp_path: Path) -> None:
    closing = "[os.close(fd) for fd in (0, 1, 2)]"
    asks = 'read pid < "$HOME/pid"; kill -0 "$pid"'

    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            first = DAEMON.format(
                closing=f"open(os.environ['HOME'] + '/pid', 'w').write(str(os.getpid())+chr(10)); {closing}"
            )
            end = await coordinator.run(order(first, asks))
            assert end.result is Result.SUCCEEDED
            assert gone(await pid_from(coordinator))

    in_loop(work)


def test_a_step_that_closes_its_pipes_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await coordinator.run(order("echo before; exec >&- 2>&-; sleep 0.2; exit 4"))
            assert (end.reason, end.detail) == (Reason.EXIT_CODE, "step 's0' exited with code 4")
            await agent.ended()
            assert coordinator.log("job_1") == b"before\n"

    in_loop(work)


def test_ref56_ten_mebibytes_right_before_the_end_are_all_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.run(order("head -c 10485760 /dev/zero | tr '\\0' 'x'"))
            await agent.ended()
            assert coordinator.log("job_1") == b"x" * 10485760
            coordinator.verify_logs("job_1")

    in_loop(work)


def test_binary_output_is_kept_byte_for_byte(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.run(
                order("python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)'"),
                secrets={"T": "unseen"},
            )
            await agent.ended()
            assert coordinator.log("job_1") == data

    in_loop(work)


def test_the_log_limit_is_marked_and_counted(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.run(order("head -c 300000 /dev/zero | tr '\\0' 'x'", order_log_limit=100_000))
            await agent.ended()
            log = coordinator.log("job_1")
            assert log == b"x" * 100_000 + b"\n[corral: log limit of 100000 bytes reached; what follows is not kept]\n"
            assert coordinator.steps("job_1")[0].log_dropped == 200_000
            coordinator.verify_logs("job_1")

    in_loop(work)


def test_the_environment_is_the_documented_one(tmp_path: Path) -> None:
    env = {
        "VIRTUAL_ENV": "/elsewhere",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://user:password@mirror.example/simple",
        "PRIVATE": "not for jobs",
    }
    wanted = {
        "CI": "true",
        "LANG": "C.UTF-8",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "CORRAL": "true",
        "CORRAL_RUN_ID": "run_1",
        "CORRAL_JOB_ID": "job_1",
        "CORRAL_JOB": "test",
        "CORRAL_WORKFLOW": "main",
        "CORRAL_ATTEMPT": "1",
        "CORRAL_STEP": "show",
        "CORRAL_STEP_INDEX": "0",
        "JOB": "job",
        "BOTH": "step",
        "TOKEN": "***",
    }

    async def work() -> None:
        async with running(tmp_path, env=env, inherit_env=("PIP_*", "VIRTUAL_ENV")) as (coordinator, agent):
            step = StepSpec(name="show", script="env -0", env={"BOTH": "step", "CORRAL_JOB": "forged"})
            await coordinator.run(order(step, env={"JOB": "job", "BOTH": "job"}), secrets={"TOKEN": "s3cret-value"})
            await agent.ended()
            seen = dict(entry.split("=", 1) for entry in coordinator.log("job_1").decode().split("\0") if entry)
            assert {name: seen.get(name) for name in wanted} == wanted
            assert not {"VIRTUAL_ENV", "PRIVATE", "PIP_EXTRA_INDEX_URL", "PYTHONPATH"} & seen.keys()
            private = tmp_path / "work" / "jobs" / "job_1.1"
            assert seen["HOME"] == str(private / "home")
            assert seen["TMPDIR"] == str(private / "tmp")
            assert seen["PWD"] == str(private / "work")
            if sys.prefix != sys.base_prefix:
                assert str(Path(sys.prefix) / "bin") not in seen["PATH"].split(":")

    in_loop(work)


def test_needs_are_in_a_file(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            needs = {"build": NeedResult(result=Result.SUCCEEDED, outputs={"v": "1"})}
            await coordinator.run(
                order('cat "$CORRAL_NEEDS"; echo " $CORRAL_MATRIX"', order_needs=needs, order_matrix={"a": 1})
            )
            await agent.ended()
            assert coordinator.log("job_1") == b'{"build":{"result":"succeeded","outputs":{"v":"1"}}} {"a":1}\n'

    in_loop(work)


def test_a_secret_registered_by_a_step_is_masked_at_once_and_later(tmp_path: Path) -> None:
    script = """
        echo late-secret >> "$CORRAL_MASK"
        echo "given: $TOKEN late: late-secret"
        echo "o=late-secret" >> "$CORRAL_OUTPUT"
    """

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            end = await coordinator.run(order(script, "echo late-secret"), secrets={"TOKEN": "given-secret"})
            await agent.ended()
            assert coordinator.log("job_1") == b"given: *** late: ***\n"
            assert coordinator.log("job_1", 1) == b"***\n"
            assert end.outputs == {"o": "***"}
            assert b"given-secret" not in b"".join(repr(m).encode() for m in coordinator.messages)

    in_loop(work)


def archive(
    entries: dict[str, bytes], modes: dict[str, int] | None = None, links: dict[str, str] | None = None
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), (modes or {}).get(name, 0o644)
            tar.addfile(info, io.BytesIO(data))
        for name, to in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            tar.addfile(info)
    return buffer.getvalue()


def test_the_source_is_fetched_verified_and_unpacked(tmp_path: Path) -> None:
    data = archive({"run.sh": b"#!/bin/sh\necho from source\n", "dir/a": b"a"}, {"run.sh": 0o755}, {"link": "dir/a"})
    digest = hashlib.sha256(data).hexdigest()

    async def work() -> None:
        async with running(tmp_path, single_use=False) as (coordinator, _):
            coordinator.sources[digest] = data
            source = SourceRef(hash=digest, size=len(data))
            for number in (1, 2):
                job = order("./run.sh; cat link; pwd", job_id=f"job_{number}", order_source=source)
                assert (await coordinator.run(job)).result is Result.SUCCEEDED
                await coordinator.until(lambda: len(coordinator.steps("job_1")) == 1)
            assert coordinator.log("job_1").startswith(b"from source\na")
            assert len(coordinator.source_requests) == 1, "the second job takes it from the cache"
            headers = coordinator.source_requests[0]
            assert headers["Corral-Agent"] == "agent_test"
            assert headers["Authorization"].startswith("Bearer corral_agent_")

    in_loop(work)


def test_a_source_that_is_not_there_fails_the_job_and_skips_all(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order("echo never", order_source=SourceRef(hash="0" * 64, size=1)))
            assert (end.result, end.reason) == (Result.FAILED, Reason.SOURCE_UNAVAILABLE)
            assert "404" in end.detail
            assert coordinator.steps("job_1")[0].result is Result.SKIPPED

    in_loop(work)


def test_a_shell_that_is_not_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order("echo", shell=("no-such-shell",)))
            assert (end.result, end.reason) == (Result.FAILED, Reason.NO_SHELL)
            assert "no-such-shell" in end.detail

    in_loop(work)


def test_another_shell_gets_the_script(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.run(order(StepSpec(name="py", script="print(6 * 7)", shell=("python3",))))
            await agent.ended()
            assert coordinator.log("job_1") == b"42\n"

    in_loop(work)


def test_a_condition_without_a_value_fails_the_step(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order(StepSpec(name="odd", script="echo", condition="1 < 'a'")))
            assert (end.result, end.reason) == (Result.FAILED, Reason.EXPRESSION_FAILED)

    in_loop(work)


def test_a_function_of_another_file_than_was_compiled_is_refused(tmp_path: Path) -> None:
    data = archive({"ci.py": b"def go():\n    print('ran')\n"})
    digest = hashlib.sha256(data).hexdigest()

    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            coordinator.sources[digest] = data
            step = StepSpec(name="f", kind=StepKind.FUNCTION, function="go", file="ci.py", file_hash="0" * 64)
            end = await coordinator.run(order(step, order_source=SourceRef(hash=digest, size=len(data))))
            assert (end.result, end.reason) == (Result.FAILED, Reason.LOCK_MISMATCH)
            assert "corral compile" in end.detail

    in_loop(work)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, _):
            end = await coordinator.run(order("echo", python=PythonSpec(interpreter="python9.9")))
            assert (end.result, end.reason) == (Result.FAILED, Reason.INTERPRETER_LOST)
            assert "python9.9" in end.detail

    in_loop(work)


def test_requirements_make_an_environment_in_the_cache(tmp_path: Path) -> None:
    script = "python -c 'import sys; print(sys.prefix)'; echo $VIRTUAL_ENV"

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            # An empty requirement line: the environment is made, and nothing has to be downloaded.
            job = order(script, python=PythonSpec(requirements=("",)), env={"PIP_NO_INDEX": "1"})
            assert (await coordinator.run(job)).result is Result.SUCCEEDED
            await agent.ended()
            lines = coordinator.log("job_1").decode().splitlines()
            assert lines[-1] == lines[-2]
            assert [Path(lines[-1])] == list((tmp_path / "cache" / "python").iterdir())

    in_loop(work)


def test_steps_run_at_normal_priority_and_die_before_the_agent(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            job = order("nice; cat /proc/self/oom_score_adj; ps -o sess= -p $$ | tr -d ' '; echo $$")
            await coordinator.run(job)
            await agent.ended()
            nice, oom, session, pid = coordinator.log("job_1").split()
            assert int(nice) == os.getpriority(os.PRIO_PROCESS, 0)
            assert int(oom) == 500
            assert session == pid

    in_loop(work)


def test_steps_ignore_no_signal_that_the_agents_starter_ignored(tmp_path: Path) -> None:
    """As under nohup, or in the background of a shell without job control."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGQUIT)}

    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            assert (await coordinator.run(order("grep SigIgn /proc/self/status"))).result is Result.SUCCEEDED
            await agent.ended()
            ignored = int(coordinator.log("job_1").split()[1], 16)
            # 32 and 33 are the C library's own: no program can set them, and none can take them back.
            assert ignored & ~(0b11 << 31) == 0

    try:
        in_loop(work)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_nothing_survives_a_killed_agent_s_steps(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.begin(order("echo $$; exec sleep 600"))
            pid = await pid_from(coordinator)
            await agent.kill()
            eventually(lambda: gone(pid))

    in_loop(work)
