# SPDX-License-Identifier: Apache-2.0
"""From the author's objects to plain data in the shape of the model's structs, with every wrong type as a fault.

Here belongs what needs the author's values: types, units, shorthands, which objects belong together. What must hold
of the data itself is asked once, in ``validate.py``. A wrong value leaves something harmless in its place, so that
one mistake gives one fault. Standard library only, any Python from 3.9.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from corral.workflow.language import (
    Event,
    Function,
    Job,
    Matrix,
    Need,
    Python,
    Resources,
    Retry,
    Shell,
    Workflow,
    sh,
    step,
)
from corral.workflow.loading import Tree
from corral.workflow.outputs import as_text
from corral.workflow.words import did_you_mean

PRODUCT_LIMIT = 65536
"""Combinations a matrix may have before excluding; more are not even written down to be counted."""
NAME_LENGTH = 60
"""Characters of a step's name made from its script."""
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([^\W\d]*)\Z")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?\Z")

Data = dict[str, Any]
_MISSING = object()


@dataclass(frozen=True)
class At:
    """Where a value was written: the place of its object, and the path of names down to the value."""

    file: str
    line: int
    path: str

    def __truediv__(self, name: str) -> At:
        return At(self.file, self.line, f"{self.path}.{name}" if self.path else name)


@dataclass
class Export:
    """One pass over the workflows of a tree; ``faults`` collects ``{file, line, path, message, remedy}``."""

    tree: Tree
    faults: list[Data] = field(default_factory=list)

    def add(self, at: At, message: str, remedy: str) -> None:
        self.faults.append({"file": at.file, "line": at.line, "path": at.path, "message": message, "remedy": remedy})

    def at(self, item: Any, path: str) -> At:
        return At(self.tree.relative(item.origin.file) or item.origin.file, item.origin.line, path)

    def wrong(self, at: At, value: object, wanted: str) -> None:
        self.add(at, f"{_shown(value)} is {_article(value)}, not {wanted}", f"give it {wanted}")

    # --- values --------------------------------------------------------------------------------------------

    def text(self, at: At, value: object, default: str = "") -> str:
        if isinstance(value, str):
            return str(value)
        self.wrong(at, value, "a text")
        return default

    def name(self, at: At, value: object) -> str:
        return self.text(at, value, f"line-{at.line}")

    def flag(self, at: At, value: object) -> bool:
        if isinstance(value, bool):
            return value
        self.wrong(at, value, "True or False")
        return False

    def whole(self, at: At, value: object) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return int(value)
        self.wrong(at, value, "a whole number")
        return None

    def number(self, at: At, value: object) -> float | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
            return float(value)
        self.wrong(at, value, "a number")
        return None

    def seconds(self, at: At, value: object) -> float | None:
        """A number, a timedelta, or text such as ``90s``, ``10m``, ``1h30m``."""
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, str):
            match = _DURATION.match(value.strip())
            if match and any(match.groups()):
                hours, minutes, seconds = (float(part or 0) for part in match.groups())
                return hours * 3600 + minutes * 60 + seconds
            self.add(at, f"{_shown(value)} is not a duration", 'a number of seconds, or "90s", "10m", "1h30m"')
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.add(at, f"{value} is not a duration", "a number of seconds")
            return None
        return self.number(at, value)

    def memory(self, at: At, value: object) -> int | None:
        if not isinstance(value, str):
            return self.whole(at, value)
        match = _MEMORY.match(value.strip())
        if match is None:
            self.add(at, f"{_shown(value)} is not an amount of memory", 'bytes, or "512m", "4g"')
            return None
        number, unit = match.groups()
        factor = _UNITS.get(unit.lower())
        if factor is None:
            self.add(at, f"unknown unit {unit!r} in {_shown(value)}", "units: k, m, g, t, powers of 1024")
            return None
        return min(int(float(number) * factor), 2**62)

    def items(self, at: At, value: object, wanted: str) -> list[object]:
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
            return list(itertools.islice(value, PRODUCT_LIMIT))
        self.wrong(at, value, wanted)
        return []

    def texts(self, at: At, value: object, *, single: bool = False) -> list[str]:
        """A list of texts; with ``single``, one text stands for itself."""
        if single and isinstance(value, str):
            return [value]
        found = self.items(at, value, "a list of texts")
        for item in found:
            if not isinstance(item, str):
                self.wrong(at, item, "a text")
        return [str(item) for item in found if isinstance(item, str)]

    def texts_by_name(self, at: At, value: object) -> dict[str, str]:
        """A mapping of texts; numbers and truth values become text."""
        if not isinstance(value, Mapping):
            self.wrong(at, value, "a dict of texts")
            return {}
        found: dict[str, str] = {}
        for name, item in value.items():
            if not isinstance(name, str):
                self.wrong(at, name, "a text as a name")
            elif item is None:
                self.add(at / name, f"{name!r} is None", 'leave it out, or write ""')
            else:
                found[name] = self._as_text(at / name, item)
        return found

    def _as_text(self, at: At, value: object) -> str:
        try:
            return as_text(value)
        except TypeError:
            self.wrong(at, value, "a text, a number or a truth value")
            return ""

    def command(self, at: At, value: object) -> list[str]:
        """A command line as a list, or as one text with a shell's quoting."""
        if not isinstance(value, str):
            return self.texts(at, value)
        try:
            return shlex.split(value)
        except ValueError as error:
            self.add(at, f"{_shown(value)} is not a command line: {error}", 'for example "bash -eu"')
            return []

    # --- parts ---------------------------------------------------------------------------------------------

    def fields(self, at: At, options: Mapping[str, object], readers: Mapping[str, Reader]) -> Data:
        """Each option through its reader; what a reader gives up on is left out."""
        found: Data = {}
        for name, value in options.items():
            reader = readers.get(name)
            if reader is None:
                self._unknown_option(at, name, readers)
                continue
            field_name, read = reader
            result = read(at / name, value)
            if result is not None:
                found[field_name] = result
        return found

    def _unknown_option(self, at: At, name: str, readers: Mapping[str, Reader]) -> None:
        self.add(
            at / name, f"unknown option {name!r}{did_you_mean(name, readers)}", f"options: {', '.join(sorted(readers))}"
        )

    def choice(self, *words: str) -> Read:
        def read(at: At, value: object) -> str | None:
            text = self.text(at, value, words[0])
            if text in words:
                return text
            self.add(at, f"unknown word {text!r}{did_you_mean(text, words)}", f"one of: {', '.join(words)}")
            return None

        return read

    def retry(self, at: At, value: object) -> Data | None:
        if isinstance(value, int) and not isinstance(value, bool):
            value = Retry(value)
        if not isinstance(value, Retry):
            self.wrong(at, value, "a Retry, or the number of attempts")
            return None
        readers: Mapping[str, Reader] = {
            "attempts": ("attempts", self.whole),
            "delay": ("delay", self.seconds),
            "backoff": ("backoff", self.choice("exponential", "fixed")),
            "max_delay": ("max_delay", self.seconds),
        }
        found = self.fields(at, value.options, readers)
        return found if "attempts" in found else None

    def resources(self, at: At, value: object) -> Data | None:
        if not isinstance(value, Resources):
            self.wrong(at, value, "Resources(...)")
            return None
        return self.fields(at, value.options, {"cpu": ("cpu", self.number), "memory": ("memory", self.memory)})

    def python(self, at: At, value: object) -> Data | None:
        if isinstance(value, str):
            return {"interpreter": value}
        if not isinstance(value, Python):
            self.wrong(at, value, "an interpreter's name, or Python(...)")
            return None
        readers: Mapping[str, Reader] = {
            "interpreter": ("interpreter", self.text),
            "requirements": ("requirements", self.texts),
        }
        return self.fields(at, value.options, readers)

    def needs(self, workflow: Workflow) -> Read:
        def read(at: At, value: object) -> list[Data]:
            several = isinstance(value, (list, tuple, set, frozenset))
            found = list(value) if several and isinstance(value, Iterable) else [value]
            return [need for item in found for need in self._need(at, item, workflow)]

        return read

    def _need(self, at: At, item: object, workflow: Workflow) -> list[Data]:
        when: object = "success"
        if isinstance(item, Need):
            options = dict(item.options)
            when = options.pop("when", "success")
            item = options.pop("job", None)
            for name in options:
                self.add(at / name, f"unknown option {name!r}{did_you_mean(name, ['when'])}", "options: when")
        if isinstance(item, Job):
            if item.workflow is not workflow:
                other = item.workflow.options.get("name")
                self.add(at, f"job {item.name!r} belongs to workflow {other!r}", "need a job of the same workflow")
                return []
            item = item.name
        if not isinstance(item, str):
            self.wrong(at, item, "a job or the name of one")
            return []
        return [{"job": item, "when": self.choice("success", "failure", "always")(at / "when", when) or "always"}]

    # --- matrix --------------------------------------------------------------------------------------------

    def matrix(self, at: At, value: object) -> list[Data]:
        """The combinations; when they cannot be made, one that has every key."""
        before = len(self.faults)
        if isinstance(value, Mapping):
            value = Matrix(**{str(name): values for name, values in value.items() if self._is_key(at, name)})
        if not isinstance(value, Matrix):
            self.wrong(at, value, "a Matrix or a dict of lists")
            return []
        include, exclude = value.include, value.exclude
        read = {name: self._axis(at, name, values) for name, values in value.axes.items()}
        included = self._combinations(at / "include", include)
        excluded = self._combinations(at / "exclude", exclude)
        self._check_excluded(at / "exclude", excluded, read)
        product = math.prod(len(values) for values in read.values())
        if product > PRODUCT_LIMIT:
            self.add(at, f"the matrix has {product} combinations; the limit is 256", "exclude does not help that much")
        found: list[Data] = []
        if len(self.faults) == before:
            found = expand_matrix(read, exclude=excluded, include=included)
            if not found:
                self.add(at, "the matrix has no combination left", "remove an exclude, or add an include")
        keys = dict.fromkeys([*(key for c in included for key in c), *read])
        return found or [dict.fromkeys(keys or ["unknown"], 0)]

    def _is_key(self, at: At, name: object) -> bool:
        if not isinstance(name, str):
            self.wrong(at, name, "a text as a key")
        return isinstance(name, str)

    def _axis(self, at: At, name: str, values: object) -> list[Any]:
        place = at / name
        found = self.items(place, values, "a list of values")
        if not found and not isinstance(values, (str, bytes, Mapping)) and isinstance(values, Iterable):
            self.add(place, f"matrix key {name!r} has no values", "give it one, or remove it")
        return [value for value in found if self._scalar(place, value)]

    def _scalar(self, at: At, value: object) -> bool:
        fine = isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))
        if not fine:
            self.wrong(at, value, "a text, a number or a truth value")
        elif isinstance(value, int) and abs(value) >= 2**63:
            self.add(at, f"{_shown(value)} does not fit in 64 bits", "write it as a text")
            return False
        return fine

    def _combinations(self, at: At, value: object) -> list[Data]:
        found = []
        for item in self.items(at, value, "a list of dicts"):
            if not isinstance(item, Mapping):
                self.wrong(at, item, "a dict of matrix values")
            else:
                wrong = [key for key in item if not (self._is_key(at, key) and self._scalar(at, item[key]))]
                found += [] if wrong else [dict(item)]
        return found

    def _check_excluded(self, at: At, excluded: Sequence[Data], axes: Mapping[Any, Sequence[Any]]) -> None:
        for combination in excluded:
            if not combination:
                self.add(at, "an empty exclude would exclude everything", "name a key and a value")
            for key, value in combination.items():
                if key not in axes:
                    hint = did_you_mean(key, [str(axis) for axis in axes])
                    self.add(at, f"exclude names an unknown matrix key {key!r}{hint}", f"keys: {', '.join(axes)}")
                elif not any(_same(value, other) for other in axes[key]):
                    values = ", ".join(map(repr, axes[key]))
                    self.add(at, f"exclude names {key}={value!r}, which the matrix does not have", f"it has: {values}")

    # --- steps ---------------------------------------------------------------------------------------------

    def steps(self, job: Job, names: set[str]) -> Read:
        def read(at: At, value: object) -> list[Data]:
            if isinstance(value, (Shell, Function, str)) or inspect.isfunction(value):
                self.add(at, "one step where a list of steps is wanted", "put it in square brackets")
                value = [value]
            before = len(self.faults)
            found = self.items(at, value, "a list of steps")
            if len(self.faults) > before:
                found = ["true"]
            return [self._step(at, item, job, names) for item in found]

        return read

    def _step(self, at: At, item: object, job: Job, names: set[str]) -> Data:
        if isinstance(item, str):
            made = sh(item)
            made.origin = job.origin
            return self._shell_step(made, at, names)
        if isinstance(item, Shell):
            return self._shell_step(item, at, names)
        if inspect.isfunction(item):
            made_from = step(item)
            made_from.origin = job.origin
            return self._function_step(made_from, at, names)
        if isinstance(item, Function):
            return self._function_step(item, at, names)
        self.wrong(at, item, "a step: sh(...), a function, or a script as text")
        return {"name": self._free("step", names), "script": "true"}

    def _shell_step(self, item: Shell, at: At, names: set[str]) -> Data:
        given = item.options.get("script")
        script = textwrap.dedent(given).strip("\n") if isinstance(given, str) else ""
        first = next((line.strip() for line in script.splitlines() if line.strip()), "")
        name = self._step_name(item, first, names)
        place = self.at(item, f"{_parent(at.path)}.{name}")
        readers = {**self._step_readers(), "script": ("script", self.text), "shell": ("shell", self.command)}
        found = self.fields(place, item.options, readers)
        if given is None:
            self.wrong(place, given, "a text")
        found.update(name=name, line=item.origin.line, script=script if isinstance(given, str) else "true")
        return found

    def _function_step(self, item: Function, at: At, names: set[str]) -> Data:
        function = item.function
        name = self._step_name(item, str(getattr(function, "__name__", "step")), names)
        place = self.at(item, f"{_parent(at.path)}.{name}")
        found = self.fields(place, item.options, self._step_readers())
        found.update(name=name, line=item.origin.line, **self._reference(place, function))
        return found

    def _step_readers(self) -> dict[str, Reader]:
        return {
            "name": ("name", self.name),
            "env": ("env", self.texts_by_name),
            "if_": ("condition", self.text),
            "working_directory": ("working_directory", self.text),
            "timeout": ("timeout", self.seconds),
            "retry": ("retry", self.retry),
            "continue_on_error": ("continue_on_error", self.flag),
        }

    def _step_name(self, item: Shell | Function, default: str, names: set[str]) -> str:
        given = item.options.get("name")
        if isinstance(given, str):
            names.add(given)
            return given
        cleaned = "".join(character for character in default.replace("${{", "") if character.isprintable())
        return self._free(cleaned[:NAME_LENGTH] or "step", names)

    def _free(self, name: str, names: set[str]) -> str:
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        found = next(n for n in itertools.chain([name], numbered) if n not in names)
        names.add(found)
        return found

    def _reference(self, at: At, function: Callable[..., object]) -> Data:
        """What finds the function again on an agent: file, name and the file's hash."""
        harmless = {"script": "true"}
        problem = self._unreachable(function)
        if problem:
            self.add(at, problem[0], problem[1])
            return harmless
        file = self.tree.relative(str(getattr(sys.modules[function.__module__], "__file__", ""))) or ""
        digest = self.tree.files.get(file)
        if digest is None:
            message = f"function {function.__qualname__!r} is not in a file of this tree"
            self.add(at, message, "define it in the workflow's file, or call it from a function there")
            return harmless
        return {"kind": "function", "function": function.__qualname__, "file": file, "file_hash": digest}

    def _unreachable(self, function: Callable[..., object]) -> tuple[str, str] | None:
        """Why an agent could not find or call the function, with what to do about it."""
        if not inspect.isfunction(function):
            return f"a step cannot call {_shown(function)}", "use a function defined with `def` in this module"
        name = function.__qualname__
        if name.endswith("<lambda>"):
            return "a step cannot be a lambda: an agent finds it by its name", "use `def`"
        if "<locals>" in name:
            return f"function {name!r} is inside another function: an agent cannot find it", "move it to the module"
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return f"function {name!r} is async", "make it a plain function that calls asyncio.run()"
        if inspect.isgeneratorfunction(function):
            return f"function {name!r} is a generator: calling it would do nothing", "return instead of yield"
        if not _callable_with_context(function):
            return f"function {name!r} must take one argument, the context, or none", "give the others a default"
        if _found_by_name(function) is not function:
            return (
                f"the name {name!r} means something else when the module is loaded",
                "give the function a name of its own",
            )
        return None

    # --- jobs and workflows --------------------------------------------------------------------------------

    def job(self, job: Job, workflow: Workflow) -> Data:
        path = f"{workflow.options.get('name')}.{job.name}"
        at = self.at(job, path)
        names: set[str] = set()
        readers: dict[str, Reader] = {
            "name": ("name", self.name),
            "steps": ("steps", self.steps(job, names)),
            "cleanup": ("cleanup", self.steps(job, names)),
            "runs_on": ("runs_on", self._labels),
            "excludes": ("excludes", self._labels),
            "needs": ("needs", self.needs(workflow)),
            "if_": ("condition", self.text),
            "matrix": ("matrix", self.matrix),
            "max_parallel": ("max_parallel", self.whole),
            "fail_fast": ("fail_fast", self.flag),
            "env": ("env", self.texts_by_name),
            "secrets": ("secrets", self.texts),
            "outputs": ("outputs", self.texts_by_name),
            "timeout": ("timeout", self.seconds),
            "retry": ("retry", self.retry),
            "on_lost": ("on_lost", self.choice("fail", "retry", "wait")),
            "continue_on_error": ("continue_on_error", self.flag),
            "resources": ("resources", self.resources),
            "working_directory": ("working_directory", self.text),
            "shell": ("shell", self.command),
            "python": ("python", self.python),
            "checkout": ("checkout", self.flag),
        }
        found = self.fields(at, job.options, readers)
        found.setdefault("name", "")
        found.setdefault("steps", [])
        found.update(file=at.file, line=at.line)
        return found

    def _labels(self, at: At, value: object) -> list[str]:
        found = [label.strip().lower() for label in self.texts(at, value, single=True)]
        return sorted(set(found))

    def events(self, at: At, value: object) -> list[str]:
        """The names, each once and in the author's order."""
        given = [value] if isinstance(value, Event) else value
        if isinstance(given, str):
            self.add(at, f"{_shown(given)} is a text, not an event", f"write on=event({given!r})")
            return []
        found: dict[str, None] = {}
        for item in self.items(at, given, 'event("NAME", …)'):
            if isinstance(item, Event):
                place = self.at(item, at.path)
                if not item.names:
                    self.add(place, "event() names no event", 'name one: event("corral.scaler.scale-up.v1")')
                found.update(dict.fromkeys(self.texts(place, item.names)))
            else:
                self.wrong(at, item, 'event("NAME", …)')
        return list(found)

    def workflow(self, workflow: Workflow) -> Data:
        at = self.at(workflow, str(workflow.options.get("name")))
        readers: dict[str, Reader] = {
            "name": ("name", self.name),
            "description": ("description", self.text),
            "env": ("env", self.texts_by_name),
            "timeout": ("timeout", self.seconds),
            "on": ("events", self.events),
        }
        found = self.fields(at, workflow.options, readers)
        found.setdefault("name", "")
        found.update(file=at.file, line=at.line, jobs=[self.job(job, workflow) for job in workflow.jobs])
        return found


Read = Callable[[At, object], Any]
Reader = tuple[str, Read]
"""The field of the model's struct, and what turns an author's value into it (None: give up)."""


def expand_matrix(
    axes: Mapping[Any, Sequence[Any]], *, exclude: Sequence[Data] = (), include: Sequence[Data] = ()
) -> list[Data]:
    """The product of the axes, the last varying fastest, less what an exclude matches, then the includes as given."""
    product = [dict(zip(axes, values)) for values in itertools.product(*axes.values())] if axes else []  # noqa: B905
    kept = [c for c in product if not any(all(_same(c[key], e[key]) for key in e) for e in exclude)]
    return kept + [dict(combination) for combination in include]


def _same(one: object, other: object) -> bool:
    """Equal and of one type: 1, 1.0 and True are three values."""
    return type(one) is type(other) and one == other


def _callable_with_context(function: Callable[..., object]) -> bool:
    signature = inspect.signature(function)
    try:
        signature.bind(*([None] if signature.parameters else []))
    except TypeError:
        return False
    return True


def _found_by_name(function: Callable[..., object]) -> object:
    found: object = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found.function if isinstance(found, Function) else found


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # an author's __repr__ may do anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:60]}…"


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
