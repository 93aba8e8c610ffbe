# SPDX-License-Identifier: Apache-2.0
"""One message of each kind with every field set. ``python -m tests.wire.frames`` prints the golden file of a *new*
protocol version; the frames of a released one never change."""

from __future__ import annotations

from corral.model.spec import (
    CombinationResult,
    JobOrder,
    JobSpec,
    NeedResult,
    NeedSpec,
    NeedWhen,
    PythonSpec,
    Reason,
    Resources,
    Result,
    RetrySpec,
    SourceRef,
    StepSpec,
)
from corral.wire.codec import encode
from corral.wire.messages import (
    Accept,
    Action,
    Cancel,
    ConfigAck,
    Decline,
    DeclineReason,
    Drain,
    Draining,
    Facts,
    FinishedAck,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    HeldJob,
    HeldState,
    Hello,
    JobAnswer,
    JobFinished,
    JobStarted,
    Limits,
    Log,
    LogAck,
    LogPosition,
    Offer,
    Refused,
    RefusedCode,
    Start,
    StepFinished,
    StepStarted,
    ToAgent,
    Welcome,
    Withdraw,
)

_JOB, _AT = "job_abcdefghijkmnpqr", 1_735_689_600_000_000
_STEP = StepSpec(
    name="test",
    script="make test",
    env={"A": "1"},
    shell=("bash", "-e"),
    working_directory="sub",
    condition="success()",
    timeout=60.0,
    continue_on_error=True,
    retry=RetrySpec(attempts=2),
)
_ORDER = JobOrder(
    run_id="run_abcdefghijkmnpqr",
    job_id=_JOB,
    attempt=2,
    name="test (3.11)",
    workflow="ci",
    spec=JobSpec(
        name="test",
        steps=(_STEP,),
        cleanup=(StepSpec(name="tidy", script="true"),),
        runs_on=("linux",),
        needs=(NeedSpec(job="build", when=NeedWhen.ALWAYS),),
        env={"B": "2"},
        secrets=("TOKEN",),
        outputs={"out": "${{ steps.test.outputs.x }}"},
        timeout=600.0,
        resources=Resources(cpu=1.5, memory=1024),
        python=PythonSpec(interpreter="python3.11", requirements=("pytest",)),
    ),
    matrix={"py": "3.11", "n": 1, "f": 1.5, "b": True},
    needs={
        "build": NeedResult(
            result=Result.SUCCEEDED,
            outputs={"wheel": "a.whl"},
            combinations=(CombinationResult(matrix={"os": "linux"}, result=Result.SUCCEEDED),),
        )
    },
    event={"ref": "main"},
    source=SourceRef(hash="ab" * 32, size=12345),
)

EXAMPLES: dict[str, FromAgent | ToAgent] = {
    "from.hello": Hello(
        protocol=1,
        agent_id="agent_abcdefghijkmnpqrstuvwxyz23",
        key="k" * 64,
        boot_id="boot",
        facts=Facts(os="linux", arch="x86_64", host="h1", version="0.1.0", pid=7, cpus=2, memory=2**33),
        claim_code="claim_" + "c" * 64,
        capabilities=("x",),
        jobs=(
            HeldJob(
                job_id=_JOB, attempt=2, state=HeldState.RUNNING, sequence=5, logs=(LogPosition(step=0, offset=99),)
            ),
        ),
        draining=True,
    ),
    "from.config_ack": ConfigAck(),
    "from.accept": Accept(job_id=_JOB, attempt=2),
    "from.decline": Decline(job_id=_JOB, attempt=2, reason=DeclineReason.UNFIT, detail="no such shell"),
    "from.job_started": JobStarted(job_id=_JOB, attempt=2, sequence=1, time=_AT),
    "from.step_started": StepStarted(job_id=_JOB, attempt=2, sequence=2, step=0, time=_AT),
    "from.step_finished": StepFinished(
        job_id=_JOB,
        attempt=2,
        sequence=3,
        step=255,
        time=_AT,
        result=Result.FAILED,
        reason=Reason.EXIT_CODE,
        detail="exit 3",
        exit_code=-3,
        signal=9,
        tries=2,
        outputs={"x": "1"},
        log_size=2**33,
        log_digest="d" * 64,
        log_dropped=5,
    ),
    "from.job_finished": JobFinished(
        job_id=_JOB,
        attempt=2,
        sequence=4,
        time=_AT,
        result=Result.SUCCEEDED,
        outputs={"out": "1"},
        logs=(LogPosition(step=0, offset=99), LogPosition(step=1, offset=0)),
    ),
    "from.log": Log(job_id=_JOB, attempt=2, step=1, offset=2**33, time=_AT, data=b"hello\x00\xff\n"),
    "from.heartbeat": Heartbeat(number=300),
    "from.heartbeat_ack": HeartbeatAck(number=300),
    "from.draining": Draining(reason="the host stops"),
    "to.welcome": Welcome(
        session=3,
        coordinator_urls=("http://127.0.0.1:7420",),
        heartbeat_interval=20.0,
        limits=Limits(lost_after=60.0),
        single_use=True,
        capabilities=("x",),
        jobs=(
            JobAnswer(
                job_id=_JOB,
                attempt=2,
                action=Action.START,
                sequence=1,
                logs=(LogPosition(step=0, offset=50),),
                secrets={"TOKEN": "s"},
            ),
        ),
    ),
    "to.refused": Refused(code=RefusedCode.IN_USE, message="another process is connected", retry_after=5.0),
    "to.offer": Offer(job_id=_JOB, attempt=2, order=_ORDER, deadline=10.0),
    "to.withdraw": Withdraw(job_id=_JOB, attempt=2),
    "to.start": Start(job_id=_JOB, attempt=2, secrets={"TOKEN": "s"}),
    "to.cancel": Cancel(job_id=_JOB, attempt=2, reason=Reason.JOB_TIMEOUT, grace=10.0, force=True),
    "to.log_ack": LogAck(job_id=_JOB, attempt=2, step=1, offset=2**33),
    "to.finished_ack": FinishedAck(job_id=_JOB, attempt=2),
    "to.drain": Drain(reason="given back", deadline=0.0),
    "to.heartbeat": Heartbeat(number=1),
    "to.heartbeat_ack": HeartbeatAck(number=1),
}


if __name__ == "__main__":
    print("# SPDX-License-Identifier: Apache-2.0")
    print("# Frames of corral.agent.v1, protocol 1, as released. They are read and written for ever; do not edit.")
    for name, message in EXAMPLES.items():
        print(name, encode(message).hex())
