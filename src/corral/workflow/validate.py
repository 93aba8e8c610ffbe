# SPDX-License-Identifier: Apache-2.0
"""What must hold of workflows beyond their shape; the compiler and every reader of a lock ask here.

Pure: workflows in, faults out, all of them, in the order of the workflows. A fault's ``path`` names the place by
names (``ci.test.needs.build``), its file and line are where the author wrote the workflow, job or step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from corral.model.errors import Fault
from corral.model.expressions import TEMPLATE_LIMIT
from corral.model.labels import MAX_LABELS, label_fault, labels
from corral.model.spec import (
    JOBS_LIMIT,
    MATRIX_LIMIT,
    STEPS_LIMIT,
    JobSpec,
    Lock,
    Resources,
    RetrySpec,
    Scalar,
    StepKind,
    StepSpec,
    WorkflowSpec,
)
from corral.model.triggers import CLAIM_SECRET, EVENT_KEYS, KNOWN_EVENTS, LOCAL_KEYS, RESERVED_EVENTS
from corral.workflow.checks import FAULT_LIMIT, Checks, Enough, Place, find_cycles, relative_path_fault
from corral.workflow.references import Scope, check_condition, check_template
from corral.workflow.words import RECOMPILE, did_you_mean, listed

NAME_LIMIT = 100
"""Characters of a name: it becomes part of a title, a file name and a column."""
SCRIPT_LIMIT = 64 * 1024
"""Bytes of one script: it travels in one protocol frame (1 MiB) with the rest of its job."""
VALUE_LIMIT = 64 * 1024
"""Bytes of one environment value: Linux refuses a single string above 128 KiB."""
ENV_LIMIT = 256
"""Variables of one workflow, job or step."""
JOB_LIMIT = 512 * 1024
"""Bytes of one job as JSON: half of a protocol frame, so that its offer has room for what its needs hand on."""
WORKFLOWS_LIMIT = 256
NEEDS_LIMIT = 256
EXPRESSIONS_LIMIT = 256
"""Expressions in the templates of one job."""
LONGEST = 30 * 24 * 3600.0
"""Seconds of any timeout: a month. Above it a unit was mixed up."""
ATTEMPTS_LIMIT = 100
LONGEST_DELAY = 24 * 3600.0
CPU_LIMIT = 1024.0
MEMORY_LIMITS = (1024**2, 64 * 1024**4)
"""Bytes: 1 MiB to 64 TiB."""
REQUIREMENTS_LIMIT = 1000
CYCLES_LIMIT = 20

_REPOSITORY = "put it into a file of the repository"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUALNAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_HASH = re.compile(r"[0-9a-f]{64}\Z")
RESERVED_VARIABLES = ("CORRAL_",)
"""Prefixes of variables that only Corral sets."""


def validate(workflows: Sequence[WorkflowSpec], *, incomplete: frozenset[str] = frozenset()) -> tuple[Fault, ...]:
    """Every fault of the workflows; empty when they may run.

    :param incomplete: files of which a part is missing: that something is not there is no fault in them.
    """
    checks = Checks(incomplete=incomplete)
    try:
        _workflows(checks, workflows)
    except Enough:
        more = Fault(message=f"there may be more faults than these {FAULT_LIMIT}", remedy="correct these first")
        return (*checks.faults, more)
    return tuple(checks.faults)


def _workflows(checks: Checks, workflows: Sequence[WorkflowSpec]) -> None:
    if len(workflows) > WORKFLOWS_LIMIT:
        nowhere = Place(file="", line=0, path="workflows")
        checks.add(nowhere, f"{len(workflows)} workflows; the limit is {WORKFLOWS_LIMIT}", "join some")
        return
    seen: dict[str, WorkflowSpec] = {}
    for workflow in workflows:
        place = Place(file=workflow.file, line=workflow.line, path=workflow.name)
        if workflow.name in seen:
            where = _where(seen[workflow.name])
            checks.add(place, f"a second workflow is named {workflow.name!r}; the first is {where}", "rename one")
        seen.setdefault(workflow.name, workflow)
        _workflow(checks, workflow, place)


def validate_files(lock: Lock, name: str) -> tuple[Fault, ...]:
    """Whether the files that a lock's functions name are those it lists. ``name`` is the lock's."""
    checks = Checks()
    try:
        _files(checks, lock, Place(file=name, line=0, path="files"))
    except Enough:
        pass  # the rest is the same again
    return tuple(checks.faults)


def _files(checks: Checks, lock: Lock, place: Place) -> None:
    for path, digest in lock.files.items():
        fault = relative_path_fault(path) or ("" if _HASH.match(digest) else "its hash is not a SHA-256")
        if fault:
            checks.add(place, f"{path!r}: {fault}", RECOMPILE)
    for workflow in lock.workflows:
        for job in workflow.jobs:
            for step in (*job.steps, *job.cleanup):
                if step.kind is StepKind.FUNCTION and lock.files.get(step.file) != step.file_hash:
                    at = Place(file=place.file, line=0, path=f"{workflow.name}.{job.name}.{step.name}")
                    checks.add(at, f"file {step.file!r} is not in the lock's list of files with this hash", RECOMPILE)


def _where(item: WorkflowSpec | JobSpec | StepSpec) -> str:
    return f"{item.file}:{item.line}" if item.file else f"line {item.line}" if item.line else "before it"


# --- workflow ----------------------------------------------------------------------------------------------


def _workflow(checks: Checks, workflow: WorkflowSpec, place: Place) -> None:
    _name(checks, place, workflow.name, "workflow")
    _text(checks, place.at("description"), workflow.description, "the description", VALUE_LIMIT)
    _events(checks, workflow, place.at("on"))
    known = _event_keys(workflow)
    _env(checks, place, workflow.env, Scope(contexts=("run", "event"), event=known))
    _timeout(checks, place.at("timeout"), workflow.timeout)
    if not workflow.jobs:
        checks.missing(place, f"workflow {workflow.name!r} has no jobs", f"add one with `{workflow.name}.job(...)`")
    total = sum(len(job.matrix) or 1 for job in workflow.jobs)
    if total > JOBS_LIMIT:
        message = f"workflow {workflow.name!r} has {total} jobs with its matrices expanded; the limit is {JOBS_LIMIT}"
        checks.add(place, message, "split the workflow")
        return
    jobs: dict[str, JobSpec] = {}
    for job in workflow.jobs:
        below = place.inside(job.name, job.file, job.line)
        if job.name in jobs:
            message = f"a second job is named {job.name!r}; the first is {_where(jobs[job.name])}"
            checks.add(below, message, "rename one")
        jobs.setdefault(job.name, job)
    for job in workflow.jobs:
        _job(checks, job, jobs, place.inside(job.name, job.file, job.line), known)
    _cycles(checks, jobs, place)


def _events(checks: Checks, workflow: WorkflowSpec, at: Place) -> None:
    for name, count in Counter(workflow.events).items():
        if name not in KNOWN_EVENTS:
            whose = "is not one of Corral's" if name.startswith(RESERVED_EVENTS) else "is sent by nobody"
            message = f"event {name[:NAME_LIMIT]!r} {whose}{did_you_mean(name, KNOWN_EVENTS)}"
            checks.add(at, message, f"events: {listed(KNOWN_EVENTS)}")
        elif count > 1:
            checks.add(at, f"event {name!r} is named {count} times", "name it once")


def _event_keys(workflow: WorkflowSpec) -> tuple[str, ...]:
    """What ``event`` may be asked for; nothing known means anything."""
    return (*EVENT_KEYS, *LOCAL_KEYS) if workflow.events else ()


def _cycles(checks: Checks, jobs: Mapping[str, JobSpec], place: Place) -> None:
    edges = {
        name: [need.job for need in job.needs if need.job in jobs and need.job != name] for name, job in jobs.items()
    }
    for cycle in find_cycles(edges)[:CYCLES_LIMIT]:
        first = jobs[cycle[0]]
        at = place.inside(first.name, first.file, first.line).at("needs")
        path = " → ".join((*cycle, cycle[0]))
        checks.add(at, f"the jobs need each other in a circle: {path}", "remove one of these needs")


def _name(checks: Checks, place: Place, name: str, what: str) -> None:
    if not name:
        checks.add(place, f"the {what}'s name is empty", "name it")
    elif len(name) > NAME_LIMIT:
        message = f"{what} name {name[:20]!r}… has {len(name)} characters; the limit is {NAME_LIMIT}"
        checks.add(place, message, "shorten it")
    elif not _NAME.match(name):
        message = f"{what} name {name!r} may hold only letters, digits and _ . -, and starts with a letter or _"
        checks.add(place, message, "rename it")


# --- job ---------------------------------------------------------------------------------------------------


def _job(checks: Checks, job: JobSpec, jobs: Mapping[str, JobSpec], place: Place, event: tuple[str, ...] = ()) -> None:
    try:
        size = len(msgspec.json.encode(job))
    except UnicodeEncodeError:
        checks.add(place, f"a text of job {job.name!r} holds half of a surrogate pair", "remove it")
        return
    if size > JOB_LIMIT:
        checks.add(place, f"job {job.name!r} has {size} bytes; the limit is {JOB_LIMIT}", _REPOSITORY)
        return
    if len(job.needs) > NEEDS_LIMIT:
        checks.add(place.at("needs"), f"{len(job.needs)} needs; the limit is {NEEDS_LIMIT}", "put a job in between")
        return
    scope = _job_scope(job, jobs, event)
    _expressions(checks, job, place)
    _name(checks, place, job.name, "job")
    _labels(checks, job, place)
    _needs(checks, job, jobs, place)
    _matrix(checks, job, place)
    check_condition(checks, place.at("if_"), job.condition, scope)
    _env(checks, place, job.env, scope)
    _secrets(checks, job, place, event)
    _timeout(checks, place.at("timeout"), job.timeout)
    _retry(checks, place.at("retry"), job.retry)
    _resources(checks, place.at("resources"), job.resources)
    _directory(checks, place.at("working_directory"), job.working_directory)
    _shell(checks, place.at("shell"), job.shell)
    _python(checks, job, place.at("python"))
    _steps(checks, job, scope, place)
    _outputs(checks, job, scope, place)


def _expressions(checks: Checks, job: JobSpec, place: Place) -> None:
    """How many a job may have is bounded because the server evaluates them for strangers."""
    steps = (*job.steps, *job.cleanup)
    templates = [*job.env.values(), *job.outputs.values(), *(v for step in steps for v in step.env.values())]
    count = sum(text.count("${{") for text in templates)
    if count > EXPRESSIONS_LIMIT:
        message = f"job {job.name!r} has {count} expressions in templates; the limit is {EXPRESSIONS_LIMIT}"
        checks.add(place, message, "compute in a step")


def _job_scope(job: JobSpec, jobs: Mapping[str, JobSpec], event: tuple[str, ...]) -> Scope:
    return Scope(
        contexts=("needs", "matrix", "run", "event"),
        jobs=jobs,
        needs={need.job: tuple(jobs[need.job].outputs) for need in job.needs if need.job in jobs},
        matrix=tuple(dict.fromkeys(key for combination in job.matrix for key in combination)),
        event=event,
    )


def _labels(checks: Checks, job: JobSpec, place: Place) -> None:
    for field, values in (("runs_on", job.runs_on), ("excludes", job.excludes)):
        at = place.at(field)
        for value in values:
            fault = label_fault(value)
            if fault:
                checks.add(at, fault, "a label is a name such as `linux` or `gpu:a100`; patterns are not supported")
        if len(values) > MAX_LABELS:
            checks.add(at, f"{len(values)} labels; the limit is {MAX_LABELS}", "give the pool one label for the group")
    for label in sorted(labels(job.runs_on) & labels(job.excludes)):
        message = f"label {label!r} is both required and excluded, so no agent ever fits"
        checks.add(place.at("excludes"), message, "remove it from one of the two")


def _needs(checks: Checks, job: JobSpec, jobs: Mapping[str, JobSpec], place: Place) -> None:
    at = place.at("needs")
    for name, count in Counter(need.job for need in job.needs).items():
        if name == job.name:
            checks.add(at, f"job {job.name!r} needs itself", "remove it from its needs")
        elif name not in jobs:
            others = [other for other in jobs if other != job.name]
            message = f"job {job.name!r} needs an unknown job {name!r}{did_you_mean(name, others)}"
            checks.missing(at, message, f"this workflow has: {listed(others) or 'no other job'}")
        if count > 1:
            checks.add(at, f"job {job.name!r} needs {name!r} {count} times", "name it once, with one `when`")


def _matrix(checks: Checks, job: JobSpec, place: Place) -> None:
    at = place.at("matrix")
    if len(job.matrix) > MATRIX_LIMIT:
        message = f"the matrix has {len(job.matrix)} combinations; the limit is {MATRIX_LIMIT}"
        checks.add(at, message, "exclude some, or split the job")
    keys = dict.fromkeys(key for combination in job.matrix for key in combination)
    for key in keys:
        if not _VARIABLE.match(key):
            checks.add(at, f"matrix key {key!r} is not an identifier", "use letters, digits and _")
    for combination in job.matrix:
        _combination(checks, combination, at)
    _distinct(checks, job.matrix, at)
    if job.max_parallel is not None and job.max_parallel < 1:
        checks.add(place.at("max_parallel"), f"max_parallel is {job.max_parallel}", "1 or more, or leave it out")
    if job.max_parallel is not None and not job.matrix:
        checks.add(place.at("max_parallel"), "max_parallel without a matrix has no effect", "remove it")


def _combination(checks: Checks, combination: Mapping[str, Scalar], at: Place) -> None:
    if not combination:
        checks.add(at, "a combination of the matrix is empty", "give it at least one key")
    for key, value in combination.items():
        if isinstance(value, str):
            _text(checks, at, value, f"matrix value {key!r}", 1024)
        elif isinstance(value, float) and not math.isfinite(value):
            checks.add(at, f"matrix value {key!r} is not a finite number", "use a number or a text")
        elif isinstance(value, int) and abs(value) >= 2**63:
            checks.add(at, f"matrix value {key!r} does not fit in 64 bits", "write it as a text")


def _distinct(checks: Checks, matrix: Sequence[Mapping[str, Scalar]], at: Place) -> None:
    seen = Counter(tuple(sorted((k, type(v).__name__, str(v)) for k, v in c.items())) for c in matrix)
    for combination, count in seen.items():
        if count > 1:
            shown = ", ".join(f"{key}={value}" for key, _, value in combination)
            checks.add(at, f"the combination ({shown}) stands {count} times in the matrix", "keep one of them")


def _secrets(checks: Checks, job: JobSpec, place: Place, event: tuple[str, ...]) -> None:
    at = place.at("secrets")
    for name, count in Counter(job.secrets).items():
        if name != CLAIM_SECRET or not event:
            _variable(checks, at, name, "secret")
        if count > 1:
            checks.add(at, f"secret {name!r} is named {count} times", "name it once")
        if name in job.env:
            checks.add(
                at, f"{name!r} is both a secret and a variable of the job's env", "remove it from one of the two"
            )


def _python(checks: Checks, job: JobSpec, at: Place) -> None:
    if job.python is None:
        return
    _text(checks, at, job.python.interpreter, "the interpreter", 1024, lines=False)
    if len(job.python.requirements) > REQUIREMENTS_LIMIT:
        checks.add(at, f"more than {REQUIREMENTS_LIMIT} requirement lines", "use one `-r requirements.txt` line")
    for line in job.python.requirements:
        if not line.strip():
            checks.add(at, "a requirement line is empty", "remove it")
        _text(checks, at, line, "a requirement line", 1024, lines=False)


def _outputs(checks: Checks, job: JobSpec, scope: Scope, place: Place) -> None:
    at = place.at("outputs")
    names = tuple(step.name for step in job.steps)
    inner = scope.widened(("steps", "env"), steps=names, later=())
    for name, template in job.outputs.items():
        _name(checks, at.at(name), name, "output")
        check_template(checks, at.at(name), template, inner)


# --- steps -------------------------------------------------------------------------------------------------


def _steps(checks: Checks, job: JobSpec, scope: Scope, place: Place) -> None:
    if not job.steps:
        checks.add(place, f"job {job.name!r} has no steps", 'give it one: steps=[sh("make test")]')
    total = len(job.steps) + len(job.cleanup)
    if total > STEPS_LIMIT:
        message = f"job {job.name!r} has {total} steps; the limit is {STEPS_LIMIT}"
        checks.add(place, message, "put several commands into one script")
    every = [step.name for step in (*job.steps, *job.cleanup)]
    for name, count in Counter(every).items():
        if count > 1:
            again = [step for step in (*job.steps, *job.cleanup) if step.name == name][1]
            at = place.inside(name, job.file, again.line)
            checks.add(at, f"{count} steps of job {job.name!r} are named {name!r}", "give each a name of its own")
    for index, step in enumerate((*job.steps, *job.cleanup)):
        inner = scope.widened(("steps", "env"), steps=tuple(every[:index]), later=tuple(every[index:]))
        _step(checks, step, inner, place.inside(step.name, job.file, step.line or job.line))


def _step(checks: Checks, step: StepSpec, scope: Scope, place: Place) -> None:
    _text(checks, place, step.name, "a step's name", NAME_LIMIT, lines=False)
    if not step.name.strip():
        checks.add(place, "a step has no name", "name it")
    if "${{" in step.name:
        checks.add(place, f"step name {step.name!r} holds a template", "a step's name is fixed; its job's name varies")
    if step.kind is StepKind.SHELL:
        _script(checks, step, place)
    else:
        _function(checks, step, place)
    check_condition(checks, place.at("if_"), step.condition, scope)
    _env(checks, place, step.env, scope)
    _timeout(checks, place.at("timeout"), step.timeout)
    _retry(checks, place.at("retry"), step.retry)
    _directory(checks, place.at("working_directory"), step.working_directory)
    _shell(checks, place.at("shell"), step.shell)


def _script(checks: Checks, step: StepSpec, place: Place) -> None:
    if not step.script.strip():
        checks.add(place, f"step {step.name!r} has an empty script", "write a command")
    if "${{" in step.script:
        message = f"the script of step {step.name!r} holds a template, which would turn a value into code"
        checks.add(place, message, 'pass it through env: env={"VALUE": "${{ … }}"}, and read "$VALUE" in the script')
    _text(checks, place, step.script, "a script", SCRIPT_LIMIT)
    if step.function or step.file_hash:
        checks.add(place, f"step {step.name!r} is a shell step and names a function", RECOMPILE)


def _function(checks: Checks, step: StepSpec, place: Place) -> None:
    if step.script:
        checks.add(place, f"step {step.name!r} is a function step and has a script", RECOMPILE)
    if not _QUALNAME.match(step.function):
        checks.add(place, f"{step.function!r} is not the name of a function", "use a function of a module")
    fault = relative_path_fault(step.file) or ("" if _HASH.match(step.file_hash) else "its hash is not a SHA-256")
    if fault:
        checks.add(place, f"the function's file {step.file!r}: {fault}", RECOMPILE)


# --- parts of jobs and steps -------------------------------------------------------------------------------


def _env(checks: Checks, place: Place, env: Mapping[str, str], scope: Scope) -> None:
    at = place.at("env")
    if len(env) > ENV_LIMIT:
        checks.add(at, f"{len(env)} variables; the limit is {ENV_LIMIT}", _REPOSITORY)
    for name, value in env.items():
        entry = at.at(name)
        _variable(checks, entry, name, "variable")
        _text(checks, entry, value, f"variable {name!r}", VALUE_LIMIT)
        if len(value) <= TEMPLATE_LIMIT:
            check_template(checks, entry, value, scope)


def _variable(checks: Checks, at: Place, name: str, what: str) -> None:
    if not _VARIABLE.match(name) or len(name) > NAME_LIMIT:
        message = f"{what} name {name[:NAME_LIMIT]!r} may hold only letters, digits and _, and starts with none of 0-9"
        checks.add(at, message, "rename it")
    elif name.startswith(RESERVED_VARIABLES):
        checks.add(at, f"{what} {name!r}: names that start with CORRAL_ are Corral's own", "rename it")


def _timeout(checks: Checks, at: Place, seconds: float | None) -> None:
    _seconds(checks, at, seconds, "the timeout", LONGEST)
    if seconds == 0:
        checks.add(at, "the timeout is 0", "a number of seconds above 0, or leave it out")


def _seconds(checks: Checks, at: Place, seconds: float | None, what: str, longest: float) -> None:
    if seconds is None:
        return
    if not math.isfinite(seconds) or seconds < 0:
        checks.add(at, f"{what} is {seconds:g} seconds", "a number of seconds above 0")
    elif seconds > longest:
        checks.add(at, f"{what} is {seconds:g} seconds; the limit is {longest:g}", "the unit is seconds")


def _retry(checks: Checks, at: Place, retry: RetrySpec | None) -> None:
    if retry is None:
        return
    if not 1 <= retry.attempts <= ATTEMPTS_LIMIT:
        message = f"retry has {retry.attempts} attempts; 1 to {ATTEMPTS_LIMIT} are possible, the first included"
        checks.add(at, message, "2 means: try once more")
    _seconds(checks, at, retry.delay, "the retry's delay", LONGEST_DELAY)
    _seconds(checks, at, retry.max_delay, "the retry's max_delay", LONGEST_DELAY)


def _resources(checks: Checks, at: Place, resources: Resources) -> None:
    cpu, memory = resources.cpu, resources.memory
    if cpu is not None and not 0 < cpu <= CPU_LIMIT:
        checks.add(at, f"cpu is {cpu:g}", f"cores: above 0, at most {CPU_LIMIT:g}; 0.5 is half a core")
    low, high = MEMORY_LIMITS
    if memory is not None and not low <= memory <= high:
        checks.add(at, f"memory is {memory} bytes", 'between 1 MiB and 64 TiB; with a unit: "512m", "4g"')


def _directory(checks: Checks, at: Place, path: str) -> None:
    fault = relative_path_fault(path) if path else ""
    if fault:
        checks.add(at, f"working_directory {path!r}: {fault}", "a path below the checked-out tree")


def _shell(checks: Checks, at: Place, shell: Iterable[str]) -> None:
    for part in shell:
        if not part:
            checks.add(at, "a part of the shell's command line is empty", 'for example shell=["bash", "-eu"]')
        _text(checks, at, part, "a part of the shell's command line", 1024, lines=False)


def _text(checks: Checks, at: Place, text: str, what: str, limit: int, *, lines: bool = True) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        checks.add(at, f"{what} is above {limit} bytes", _REPOSITORY)
    if "\0" in text:
        checks.add(at, f"{what} holds a NUL character", "remove it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        checks.add(at, f"{what} holds half of a surrogate pair", "remove it")
    if not lines and any(ord(character) < 32 or ord(character) == 127 for character in text):
        checks.add(at, f"{what} holds a line break or another control character", "keep it on one line")
