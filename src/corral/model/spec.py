# SPDX-License-Identifier: Apache-2.0
"""What an author asked for, as data: the lock file's contents and what an agent is offered.

Durations are seconds, sizes bytes. Expressions are kept as source text (``corral.model.expressions``).
A template is text with ``${{ expression }}`` inside; templates stand in ``env``, ``outputs`` and names only,
never in scripts: a script reads values from its environment, so no value can become code.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

Scalar = str | int | float | bool
"""A matrix value."""

MATRIX_LIMIT = 256
"""Combinations of one job's matrix."""
STEPS_LIMIT = 256
"""Steps of one job, cleanup steps included."""
JOBS_LIMIT = 1024
"""Jobs of one run after matrix expansion."""


class StepKind(StrEnum):
    SHELL = "shell"
    FUNCTION = "function"


class NeedWhen(StrEnum):
    """Which end of an upstream job satisfies the edge."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


class OnLost(StrEnum):
    """What becomes of a started job whose agent was lost."""

    FAIL = "fail"
    RETRY = "retry"
    WAIT = "wait"


class Backoff(StrEnum):
    EXPONENTIAL = "exponential"
    FIXED = "fixed"


class RetrySpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``attempts`` includes the first. Wait after attempt n: ``min(delay * 2**(n-1), max_delay)`` or ``delay``."""

    attempts: int
    delay: float = 1.0
    backoff: Backoff = Backoff.EXPONENTIAL
    max_delay: float = 30.0

    def wait_after(self, attempt: int) -> float:
        """Seconds to wait after attempt number ``attempt`` (from 1) failed."""
        if self.backoff is Backoff.FIXED:
            return min(self.delay, self.max_delay)
        return float(min(self.delay * 2 ** min(attempt - 1, 40), self.max_delay))


class StepSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command or Python function.

    ``shell`` is a command line prefix to which the path of the script file is appended, empty: the job's.
    ``function`` is the qualified name inside ``file``, whose SHA-256 must be ``file_hash`` where it runs.
    ``condition`` empty means ``success()``. ``timeout`` None: bounded by the job's only.
    """

    name: str
    kind: StepKind = StepKind.SHELL
    script: str = ""
    function: str = ""
    file: str = ""
    file_hash: str = ""
    line: int = 0
    env: dict[str, str] = {}
    shell: tuple[str, ...] = ()
    working_directory: str = ""
    condition: str = ""
    timeout: float | None = None
    continue_on_error: bool = False
    retry: RetrySpec | None = None


class NeedSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    job: str
    when: NeedWhen = NeedWhen.SUCCESS


class Resources(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``cpu`` in cores, ``memory`` in bytes; None: the pool's default."""

    cpu: float | None = None
    memory: int | None = None


class PythonSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``interpreter``: a name on PATH or an absolute path, empty: the agent's own python3.
    ``requirements``: requirement lines; not empty means a virtual environment cached by their hash."""

    interpreter: str = ""
    requirements: tuple[str, ...] = ()


class GitSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit that the agent itself fetches (``corral.model.gitsource`` says what is allowed). ``commit``: its full
    hash. ``credential``: the name of the secret that the repository asks for, empty: it asks for none."""

    url: str
    commit: str
    credential: str = ""


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job before matrix expansion. ``matrix`` lists the combinations; empty means one job without any.

    ``condition`` is evaluated by the server when all needs are met; empty means "all edges are satisfied".
    ``secrets`` are the names this job's steps may see. ``git``: fetched instead of the run's archive.
    ``on_lost`` None: never started → queued again, started → lost.
    """

    name: str
    steps: tuple[StepSpec, ...]
    cleanup: tuple[StepSpec, ...] = ()
    runs_on: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    needs: tuple[NeedSpec, ...] = ()
    condition: str = ""
    matrix: tuple[dict[str, Scalar], ...] = ()
    max_parallel: int | None = None
    fail_fast: bool = False
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    outputs: dict[str, str] = {}
    timeout: float = 3600.0
    retry: RetrySpec | None = None
    on_lost: OnLost | None = None
    continue_on_error: bool = False
    resources: Resources = Resources()
    working_directory: str = ""
    shell: tuple[str, ...] = ()
    python: PythonSpec | None = None
    checkout: bool = True
    git: GitSource | None = None
    file: str = ""
    line: int = 0

    def needed_secrets(self) -> tuple[str, ...]:
        """Names of all that its agent is given: what the steps see, and what fetching its source takes."""
        credential = self.git.credential if self.git is not None and self.checkout else ""
        return (*self.secrets, credential) if credential and credential not in self.secrets else self.secrets


class WorkflowSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One workflow of a lock file. ``file`` and ``line`` say where the author wrote it. ``events``: names of those
    that start it once it is registered with a server (``corral.model.triggers``)."""

    name: str
    jobs: tuple[JobSpec, ...]
    description: str = ""
    env: dict[str, str] = {}
    timeout: float | None = None
    events: tuple[str, ...] = ()
    file: str = ""
    line: int = 0


class Lock(Struct, frozen=True, kw_only=True):
    """``corral.lock.json``. ``files``: path → SHA-256 of every local file that compiling imported.
    ``hash``: SHA-256 over the canonical JSON of everything else."""

    version: int
    hash: str
    files: dict[str, str]
    workflows: tuple[WorkflowSpec, ...]


class Result(StrEnum):
    """How a job, step or attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    LOST = "lost"


class Reason(StrEnum):
    """Why it ended so; stable codes, shown beside a sentence. Empty results carry none."""

    NONE = ""
    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    STEP_TIMEOUT = "step_timeout"
    JOB_TIMEOUT = "job_timeout"
    RUN_TIMEOUT = "run_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    EXCEPTION = "exception"
    INTERPRETER_LOST = "interpreter_lost"
    LOCK_MISMATCH = "lock_mismatch"
    NO_SHELL = "no_shell"
    SOURCE_UNAVAILABLE = "source_unavailable"
    SECRET_UNAVAILABLE = "secret_unavailable"
    ENVIRONMENT_FAILED = "environment_failed"
    OUTPUTS_INVALID = "outputs_invalid"
    EXPRESSION_FAILED = "expression_failed"
    DISK_FULL = "disk_full"
    INSTANCE_LOST = "instance_lost"
    AGENT_LOST = "agent_lost"
    UNROUTABLE = "unroutable"
    CREATES_EXHAUSTED = "creates_exhausted"
    OFFERS_EXHAUSTED = "offers_exhausted"
    NEED_NOT_MET = "need_not_met"
    CONDITION_FALSE = "condition_false"
    FAIL_FAST = "fail_fast"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class NeedResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An upstream job as its dependents see it. With a matrix, ``outputs`` merges the combinations in order
    (the last wins) and ``combinations`` lists each."""

    result: Result
    outputs: dict[str, str] = {}
    combinations: tuple[CombinationResult, ...] = ()


class CombinationResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    matrix: dict[str, Scalar]
    result: Result
    outputs: dict[str, str] = {}


class SourceRef(Struct, frozen=True, kw_only=True):
    """A source archive by content. ``size`` in bytes."""

    hash: str
    size: int


STEP_LOG_LIMIT = 2 * 1024**3
"""Bytes of one step's log, unless the server's configuration says otherwise."""


class JobOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything an agent needs to run one attempt, but the secrets. ``spec.env`` has its templates of
    ``needs``, ``matrix``, ``run`` and ``event`` expanded."""

    run_id: str
    job_id: str
    attempt: int
    name: str
    workflow: str
    spec: JobSpec
    matrix: dict[str, Scalar] = {}
    needs: dict[str, NeedResult] = {}
    event: dict[str, str] = {}
    source: SourceRef | None = None
    log_limit: int = STEP_LOG_LIMIT


OUTPUT_LIMIT = 256 * 1024
"""Bytes of all outputs of one job, names and values together."""
OUTPUT_VALUE_LIMIT = 64 * 1024
"""Bytes of one output's value."""
