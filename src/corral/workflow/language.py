# SPDX-License-Identifier: Apache-2.0
"""The words an author writes a workflow with. Standard library only, any Python from 3.9.

Nothing here judges what it is given: each object keeps the author's values and where they were written, and
compiling reads them all (``export.py``), so that ten mistakes give ten faults and not the first exception.
Options that do not exist are kept too, for the same reason; type checkers refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Union, overload

from corral.workflow.origin import Origin, author

if TYPE_CHECKING:
    from typing import Literal

    Scalar = Union[str, int, float, bool]
    Duration = Union[int, float, str, timedelta]
    When = Literal["success", "failure", "always"]
    Labels = Union[str, Iterable[str]]
    Env = Mapping[str, object]
    CommandLine = Union[str, Sequence[str]]
    StepLike = Union["Shell", "Function", Callable[..., object], str]
    NeedLike = Union["Job", "Need", str]

_declared: list[Workflow] = []


def declared() -> tuple[Workflow, ...]:
    """Every workflow made so far in this process, in order."""
    return tuple(_declared)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """What of a call's ``locals()`` the author set; None means "not set" everywhere."""
    unknown: dict[str, Any] = given.pop("unknown", {})
    known = {name: value for name, value in given.items() if name != "self" and value is not None}
    return {**known, **unknown}


class Workflow:
    """A named set of jobs; one run executes it once.

    :param name: unique in the repository.
    :param env: variables of every job; values may hold ``${{ run.… }}`` and ``${{ event.… }}``.
    :param timeout: of the whole run: seconds, or text such as ``"90m"``; none by default.
    :param on: what starts it once it is registered with a server: :func:`event`.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str | None = None,
        env: Env | None = None,
        timeout: Duration | None = None,
        on: Event | Sequence[Event] | None = None,
        **unknown: NoReturn,
    ) -> None:
        self.options = _options(locals())
        self.origin = author()
        self.jobs: list[Job] = []
        _declared.append(self)

    def job(
        self,
        name: str,
        *,
        steps: Sequence[StepLike] | None = None,
        cleanup: Sequence[StepLike] | None = None,
        runs_on: Labels | None = None,
        excludes: Labels | None = None,
        needs: Sequence[NeedLike] | NeedLike | None = None,
        if_: str | None = None,
        matrix: Matrix | Mapping[str, Sequence[Scalar]] | None = None,
        max_parallel: int | None = None,
        fail_fast: bool | None = None,
        env: Env | None = None,
        secrets: Sequence[str] | None = None,
        outputs: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
        on_lost: Literal["fail", "retry", "wait"] | None = None,
        continue_on_error: bool | None = None,
        resources: Resources | None = None,
        working_directory: str | None = None,
        shell: CommandLine | None = None,
        python: Python | str | None = None,
        checkout: bool | None = None,
        **unknown: NoReturn,
    ) -> Job:
        """Add a job: steps in order on one agent.

        :param steps: :func:`sh`, functions (plain or with :func:`step`), or texts, each a shell script.
        :param cleanup: steps that run at the end whatever happened.
        :param runs_on: labels an agent must all have; ``excludes``: labels it must not have.
        :param needs: jobs that come first; ``job.failed`` and ``job.finished`` choose another end than success.
        :param if_: an expression; when it is false the job is skipped.
        :param matrix: runs the job once for each combination; ``max_parallel`` of them at a time; with ``fail_fast``
            the first failure cancels the others.
        :param secrets: names of the secrets it may see, as variables.
        :param outputs: name → template; without it, all outputs of the steps.
        :param timeout: of one attempt; 1 hour by default.
        :param retry: of the whole job, on a fresh agent.
        :param on_lost: what happens when its agent is lost after it started.
        :param continue_on_error: the run goes on, and succeeds, although this job failed.
        :param working_directory: below the checked-out tree; ``shell``: the command line that runs scripts.
        :param python: for function steps: an interpreter, or :class:`Python` with requirements.
        :param checkout: False: an empty work directory.
        """
        job = Job(self, _options(locals()), author())
        self.jobs.append(job)
        return job

    def __repr__(self) -> str:
        return f"<workflow {self.options.get('name')!r}>"


class Job:
    """A job of one workflow; made by :meth:`Workflow.job`."""

    def __init__(self, workflow: Workflow, options: dict[str, Any], origin: Origin) -> None:
        self.workflow = workflow
        self.options = options
        self.origin = origin

    @property
    def name(self) -> str:
        return str(self.options.get("name"))

    @property
    def succeeded(self) -> Need:
        """For ``needs``: when this job succeeded; the same as the job itself."""
        return Need(self, when="success")

    @property
    def failed(self) -> Need:
        """For ``needs``: only when this job failed."""
        return Need(self, when="failure")

    @property
    def finished(self) -> Need:
        """For ``needs``: however this job ended."""
        return Need(self, when="always")

    def output(self, name: str) -> str:
        """A template for this job's output, for the ``env`` or ``outputs`` of a job that needs it."""
        return "${{ needs[" + _quoted(self.name) + "].outputs[" + _quoted(str(name)) + "] }}"

    @property
    def result(self) -> str:
        """A template for how this job ended."""
        return "${{ needs[" + _quoted(self.name) + "].result }}"

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Need:
    """An edge: the job that comes first, and which end of it counts."""

    def __init__(self, job: Job | str, *, when: When = "success", **unknown: NoReturn) -> None:
        self.options = _options(locals())
        self.origin = author()


class Event:
    """Names of events; made by :func:`event`."""

    def __init__(self, names: tuple[str, ...], origin: Origin) -> None:
        self.names = names
        self.origin = origin


def event(*names: str) -> Event:
    """For ``on``: any of these events starts the workflow, such as ``event("corral.scaler.scale-up.v1")``.

    Only a workflow that is registered with a server (``corral workflows register``) is started by one. What the event
    says is in ``${{ event.… }}``.
    """
    return Event(names, author())


class Matrix:
    """Combinations of values: the product of the axes, less ``exclude``, then each of ``include`` exactly as given.

    ``Matrix(python=["3.11", "3.12"], os=["linux"], exclude=[{"python": "3.11"}], include=[{"os": "arm"}])``
    """

    def __init__(
        self,
        *,
        include: Sequence[Mapping[str, Scalar]] | None = None,
        exclude: Sequence[Mapping[str, Scalar]] | None = None,
        **axes: Sequence[Scalar],
    ) -> None:
        self.axes: dict[str, Any] = axes
        self.include: Any = () if include is None else include
        self.exclude: Any = () if exclude is None else exclude
        self.origin = author()


class Retry:
    """``attempts`` counts the first. The wait doubles from ``delay`` up to ``max_delay``, or is ``delay`` each time."""

    def __init__(
        self,
        attempts: int,
        *,
        delay: Duration | None = None,
        backoff: Literal["exponential", "fixed"] | None = None,
        max_delay: Duration | None = None,
        **unknown: NoReturn,
    ) -> None:
        self.options = _options(locals())
        self.origin = author()


class Resources:
    """``cpu`` in cores (0.5 is half of one), ``memory`` in bytes or as ``"512m"``, ``"4g"`` (powers of 1024)."""

    def __init__(self, *, cpu: float | None = None, memory: int | str | None = None, **unknown: NoReturn) -> None:
        self.options = _options(locals())
        self.origin = author()


class Python:
    """What function steps run with: an interpreter on PATH or by absolute path, and requirement lines for a virtual
    environment, which is kept and used again by jobs with the same lines."""

    def __init__(
        self,
        interpreter: str | None = None,
        *,
        requirements: Sequence[str] | None = None,
        **unknown: NoReturn,
    ) -> None:
        self.options = _options(locals())
        self.origin = author()


class Shell:
    """A shell step; made by :func:`sh`."""

    def __init__(self, options: dict[str, Any], origin: Origin) -> None:
        self.options = options
        self.origin = origin


class Function:
    """A function step; made by :func:`step`. Calling it calls the function."""

    def __init__(self, function: Callable[..., object], options: dict[str, Any], origin: Origin) -> None:
        self.function = function
        self.options = options
        self.origin = origin

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        return self.function(*args, **kwargs)


def sh(
    script: str,
    *,
    name: str | None = None,
    env: Env | None = None,
    if_: str | None = None,
    shell: CommandLine | None = None,
    working_directory: str | None = None,
    timeout: Duration | None = None,
    retry: Retry | int | None = None,
    continue_on_error: bool | None = None,
    **unknown: NoReturn,
) -> Shell:
    """A step that runs a script. It holds no templates: values come through ``env``, as ``"$NAME"``.

    :param name: unique in the job; by default the script's first line.
    :param if_: an expression; by default the step runs when none before it failed.
    """
    return Shell(_options(locals()), author())


@overload
def step(  # type: ignore[overload-overlap]  # NoReturn in **unknown only says that there are no other options
    function: Callable[..., object],
    *,
    name: str | None = ...,
    env: Env | None = ...,
    if_: str | None = ...,
    working_directory: str | None = ...,
    timeout: Duration | None = ...,
    retry: Retry | int | None = ...,
    continue_on_error: bool | None = ...,
    **unknown: NoReturn,
) -> Function: ...


@overload
def step(
    *,
    name: str | None = ...,
    env: Env | None = ...,
    if_: str | None = ...,
    working_directory: str | None = ...,
    timeout: Duration | None = ...,
    retry: Retry | int | None = ...,
    continue_on_error: bool | None = ...,
    **unknown: NoReturn,
) -> Callable[[Callable[..., object]], Function]: ...


def step(
    function: Callable[..., object] | None = None,
    *,
    name: str | None = None,
    env: Env | None = None,
    if_: str | None = None,
    working_directory: str | None = None,
    timeout: Duration | None = None,
    retry: Retry | int | None = None,
    continue_on_error: bool | None = None,
    **unknown: NoReturn,
) -> Any:
    """A step that calls a function of this module with a :class:`~corral.workflow.StepContext`, on the agent.

    As a decorator, with options or without, or around a function where it is used: ``step(check, timeout=60)``.
    A dict it returns is its outputs.
    """
    options = _options(locals())
    origin = author()
    options.pop("function", None)
    if function is None:
        return lambda decorated: Function(decorated, options, origin)
    if isinstance(function, Function):
        return Function(function.function, {**function.options, **options}, origin)
    return Function(function, options, origin)
