# SPDX-License-Identifier: Apache-2.0
"""Every kind of mistake in a workflow: one fault each, at its line, with what to do."""

from __future__ import annotations

import pytest

from corral.model.errors import Fault
from tests.compile.trees import faults_of

HEAD = """
from corral.workflow import Job, Matrix, Need, Python, Resources, Retry, StepContext, Workflow, sh, step

ci = Workflow("ci")
ok = ci.job("ok", steps=["true"], outputs={"version": "1"})
"""
FIRST = HEAD.count("\n")
"""The line on which the text after HEAD starts (one-based, HEAD's own first line break stripped)."""

# (text after HEAD, line counted from 1 in that text, what the message says, what the remedy says)
CASES = [
    # names and structure
    ('ci.job("ok", steps=["true"])', 1, "a second job is named 'ok'; the first is .corral/workflows/ci.py:4", "rename"),
    ('ci.job("a b", steps=["true"])', 1, "job name 'a b' may hold only", "rename it"),
    ('ci.job("", steps=["true"])', 1, "the job's name is empty", "name it"),
    ('ci.job("x" * 101, steps=["true"])', 1, "has 101 characters; the limit is 100", "shorten"),
    ("ci.job(5, steps=['true'])", 1, "5 is an int, not a text", "give it a text"),
    ('Workflow("other")', 1, "workflow 'other' has no jobs", "add one"),
    ('w = Workflow("ci")\nw.job("x", steps=["true"])', 1, "a second workflow is named 'ci'", "rename"),
    (
        'Workflow("w", tiemout=5).job("x", steps=["true"])',
        1,
        "unknown option 'tiemout'; did you mean 'timeout'?",
        "options",
    ),
    ('Workflow("w", env={"A": []}).job("x", steps=["true"])', 1, "[] is a list, not a text", "give it"),
    ('Workflow("w", timeout="1y").job("x", steps=["true"])', 1, "'1y' is not a duration", "1h30m"),
    # steps
    ('ci.job("x")', 1, "job 'x' has no steps", "steps=["),
    ('ci.job(\n    "x",\n    steps=5,\n)', 3, "5 is an int, not a list of steps", "list of steps"),
    ('ci.job("x", steps="make")', 1, "one step where a list of steps is wanted", "square brackets"),
    ('ci.job("x", steps=[5])', 1, "5 is an int, not a step", "sh(...)"),
    ('ci.job("x", steps=[sh("")])', 1, "has an empty script", "write a command"),
    ('ci.job("x", steps=[sh(None)])', 1, "None is a NoneType, not a text", "give it a text"),
    (
        'ci.job("x", steps=[\n    sh("a", name="n"),\n    sh("b", name="n"),\n])',
        3,
        "2 steps of job 'x' are named 'n'",
        "name",
    ),
    ('ci.job("x", steps=[sh("a", name="")])', 1, "a step has no name", "name it"),
    ('ci.job("x", steps=[sh("a", name="a\\nb")])', 1, "holds a line break", "one line"),
    (
        'ci.job("x", steps=[\n    sh("true"),\n    sh("echo ${{ run.id }}", name="n"),\n])',
        3,
        "the script of step 'n' holds a template",
        "pass it through env",
    ),
    ('ci.job("x", steps=[sh("a\\0b")])', 1, "holds a NUL character", "remove"),
    ('ci.job("x", steps=[sh("a", shel="bash")])', 1, "unknown option 'shel'; did you mean 'shell'?", "options"),
    ('ci.job("x", steps=["true"] * 257)', 1, "job 'x' has 257 steps; the limit is 256", "one script"),
    ('ci.job("x", steps=[sh("#" * 65537)])', 1, "a script is above 65536 bytes", "file of the repository"),
    ('ci.job("x", steps=[sh("a", timeout=-1)])', 1, "the timeout is -1 seconds", "above 0"),
    ('ci.job("x", steps=[sh("a", timeout=0)])', 1, "the timeout is 0", "above 0"),
    ('ci.job("x", steps=[sh("a", working_directory="/tmp")])', 1, "it is not relative", "below the checked-out tree"),
    ('ci.job("x", steps=[sh("a", working_directory="a/../../b")])', 1, "it leaves the tree", "below"),
    ("ci.job('x', steps=[sh('a', shell='bash \"')])", 1, "is not a command line: No closing quotation", "bash -eu"),
    # functions
    ('ci.job("x", steps=[lambda ctx: 1])', 1, "a step cannot be a lambda", "use `def`"),
    ('ci.job("x", steps=[print])', 1, "<built-in function print> is a builtin_function_or_method, not a step", "sh("),
    ('ci.job("x", steps=[step(print)])', 1, "a step cannot call <built-in function print>", "def"),
    (
        "def outer():\n    def inner(ctx): ...\n    return inner\nci.job('x', steps=[outer()])",
        4,
        "is inside another",
        "move",
    ),
    ("async def f(ctx): ...\nci.job('x', steps=[f])", 2, "function 'f' is async", "asyncio.run()"),
    ("def f(ctx):\n    yield 1\nci.job('x', steps=[f])", 3, "function 'f' is a generator", "return instead"),
    ("def f(ctx, more): ...\nci.job('x', steps=[f])", 2, "must take one argument, the context, or none", "default"),
    ("def f(ctx): ...\ng = f\ndef f(ctx): ...\nci.job('x', steps=[g])", 4, "the name 'f' means something else", "own"),
    ("import shutil\nci.job('x', steps=[step(shutil.which)])", 2, "is not in a file of this tree", "define it"),
    # placement
    ('ci.job("x", steps=["a"], runs_on=["bad label"])', 1, "label 'bad label' may hold only", "patterns"),
    ('ci.job("x", steps=["a"], runs_on=[""])', 1, "a label is empty", "label"),
    ('ci.job("x", steps=["a"], runs_on=5)', 1, "5 is an int, not a list of texts", "list"),
    (
        'ci.job(\n    "x",\n    steps=["a"],\n    runs_on=["Linux", "gpu"],\n    excludes="linux",\n)',
        5,
        "label 'linux' is both required and excluded",
        "remove it from one",
    ),
    ('ci.job("x", steps=["a"], runs_on=[f"l{n}" for n in range(33)])', 1, "33 labels; the limit is 32", "one label"),
    ('ci.job("x", steps=["a"], resources=Resources(memory="4q"))', 1, "unknown unit 'q' in '4q'", "k, m, g, t"),
    ('ci.job("x", steps=["a"], resources=Resources(memory="lots"))', 1, "is not an amount of memory", "512m"),
    ('ci.job("x", steps=["a"], resources=Resources(memory=5))', 1, "memory is 5 bytes", "between 1 MiB"),
    ('ci.job("x", steps=["a"], resources=Resources(cpu=0))', 1, "cpu is 0", "cores"),
    ('ci.job("x", steps=["a"], resources=Resources(cpu="2"))', 1, "'2' is a str, not a number", "a number"),
    ('ci.job("x", steps=["a"], resources={"cpu": 2})', 1, "not Resources(...)", "Resources"),
    # needs
    ('ci.job("x", steps=["a"], needs=["okk"])', 1, "needs an unknown job 'okk'; did you mean 'ok'?", "has: ok"),
    ('ci.job("x", steps=["a"], needs=["x"])', 1, "job 'x' needs itself", "remove"),
    ('ci.job("x", steps=["a"], needs=[ok, ok.failed])', 1, "job 'x' needs 'ok' 2 times", "once"),
    ('ci.job("x", steps=["a"], needs=[5])', 1, "5 is an int, not a job", "a job"),
    (
        'ci.job("x", steps=["a"], needs=Need(ok, when="allways"))',
        1,
        "unknown word 'allways'; did you mean 'always'?",
        "one of",
    ),
    (
        'w = Workflow("w")\nw.job("x", steps=["a"], needs=[ok])',
        2,
        "job 'ok' belongs to workflow 'ci'",
        "same workflow",
    ),
    (
        'ci.job("a", steps=["a"], needs=["c"])\n'
        'ci.job("b", steps=["a"], needs=["a"])\n'
        'ci.job("c", steps=["a"], needs=["b"])',
        1,
        "need each other in a circle: a → c → b → a",
        "remove one",
    ),
    # matrix
    ('ci.job("x", steps=["a"], matrix=Matrix(os=[]))', 1, "matrix key 'os' has no values", "give it one"),
    ('ci.job("x", steps=["a"], matrix=Matrix())', 1, "the matrix has no combination left", "include"),
    (
        'ci.job("x", steps=["a"], matrix=Matrix(os=["a"], exclude=[{"os": "a"}]))',
        1,
        "the matrix has no combination left",
        "exclude",
    ),
    ('ci.job("x", steps=["a"], matrix=Matrix(os="linux"))', 1, "'linux' is a str, not a list of values", "list"),
    ('ci.job("x", steps=["a"], matrix=Matrix(os=[None]))', 1, "None is a NoneType, not a text, a number", "give"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=[float("nan")]))', 1, "nan is a float, not a text, a number", "give"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=[2**63]))', 1, "does not fit in 64 bits", "as a text"),
    ('ci.job("x", steps=["a"], matrix={"a b": [1]})', 1, "matrix key 'a b' is not an identifier", "letters"),
    ('ci.job("x", steps=["a"], matrix={1: [1]})', 1, "1 is an int, not a text as a key", "give"),
    ('ci.job("x", steps=["a"], matrix=[1])', 1, "[1] is a list, not a Matrix", "Matrix"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=[1, 1]))', 1, "the combination (n=1) stands 2 times", "keep one"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=range(257)))', 1, "has 257 combinations; the limit is 256", "split"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=range(300), m=range(300)))', 1, "has 90000 combinations", "exclude"),
    (
        'ci.job("x", steps=["a"], matrix=Matrix(os=["a", "b"], exclude=[{"so": "a"}]))',
        1,
        "exclude names an unknown matrix key 'so'; did you mean 'os'?",
        "keys: os",
    ),
    (
        'ci.job("x", steps=["a"], matrix=Matrix(n=[1, 2], exclude=[{"n": "1"}]))',
        1,
        "exclude names n='1', which the matrix does not have",
        "it has: 1, 2",
    ),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=[1, 2], exclude=[{}]))', 1, "would exclude everything", "name a key"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=[1], include=[5]))', 1, "5 is an int, not a dict of matrix", "give"),
    ('ci.job("x", steps=["a"], matrix=Matrix(include=[{}]))', 1, "a combination of the matrix is empty", "one key"),
    ('ci.job("x", steps=["a"], max_parallel=2)', 1, "max_parallel without a matrix", "remove"),
    ('ci.job("x", steps=["a"], matrix=Matrix(n=[1]), max_parallel=0)', 1, "max_parallel is 0", "1 or more"),
    # env, secrets, outputs
    (
        'ci.job(\n    "x",\n    steps=["a"],\n    env={\n        "GOOD": "1",\n        "1BAD": "x",\n    },\n)',
        6,
        "variable name '1BAD' may hold only",
        "rename",
    ),
    ('ci.job("x", steps=["a"], env={"CORRAL_X": "1"})', 1, "names that start with CORRAL_", "rename"),
    ('ci.job("x", steps=["a"], env={"A": None})', 1, "'A' is None", "leave it out"),
    ('ci.job("x", steps=["a"], env={1: "a"})', 1, "1 is an int, not a text as a name", "give"),
    ('ci.job("x", steps=["a"], env=["A=1"])', 1, "not a dict of texts", "dict"),
    ('ci.job("x", steps=["a"], env={"A": "\\0"})', 1, "variable 'A' holds a NUL", "remove"),
    ('ci.job("x", steps=["a"], env={"A": "x" * 65537})', 1, "variable 'A' is above 65536 bytes", "file"),
    ('ci.job("x", steps=["a"], secrets=["bad-name"])', 1, "secret name 'bad-name'", "rename"),
    ('ci.job("x", steps=["a"], secrets=["T", "T"])', 1, "secret 'T' is named 2 times", "once"),
    (
        'ci.job("x", steps=["a"], secrets=["T"], env={"T": "1"})',
        1,
        "'T' is both a secret and a variable",
        "one of the two",
    ),
    ('ci.job("x", steps=["a"], outputs={"bad name": "1"})', 1, "output name 'bad name'", "rename"),
    (
        'ci.job("x", steps=["a"], outputs={"v": "${{ steps.b.outputs.x }}"})',
        1,
        "no earlier step is called 'b'",
        "steps: a",
    ),
    # policies
    ('ci.job("x", steps=["a"], timeout="-5m")', 1, "'-5m' is not a duration", "seconds"),
    ('ci.job("x", steps=["a"], timeout=-5)', 1, "the timeout is -5 seconds", "above 0"),
    ('ci.job("x", steps=["a"], timeout=float("inf"))', 1, "inf is not a duration", "seconds"),
    ('ci.job("x", steps=["a"], timeout=10**7)', 1, "the limit is 2.592e+06", "seconds"),
    ('ci.job("x", steps=["a"], retry=0)', 1, "retry has 0 attempts", "try once more"),
    ('ci.job("x", steps=["a"], retry="3")', 1, "'3' is a str, not a Retry", "Retry"),
    ('ci.job("x", steps=["a"], retry=Retry(2, delay=-1))', 1, "the retry's delay is -1 seconds", "above 0"),
    (
        'ci.job("x", steps=["a"], retry=Retry(2, backoff="fix"))',
        1,
        "unknown word 'fix'; did you mean 'fixed'?",
        "one of",
    ),
    ('ci.job("x", steps=["a"], on_lost="retri")', 1, "unknown word 'retri'; did you mean 'retry'?", "one of"),
    ('ci.job("x", steps=["a"], fail_fast="yes")', 1, "'yes' is a str, not True or False", "True or False"),
    ('ci.job("x", steps=["a"], checkout=0)', 1, "0 is an int, not True or False", "True"),
    (
        'ci.job("x", steps=["a"], python=Python(requirements="pytest"))',
        1,
        "'pytest' is a str, not a list of texts",
        "list",
    ),
    ('ci.job("x", steps=["a"], python=Python(requirements=["a\\nb"]))', 1, "holds a line break", "one line"),
    ('ci.job("x", steps=["a"], working_directory="../x")', 1, "it leaves the tree", "below"),
    ('ci.job("x", steps=["a"], shell=[""])', 1, "a part of the shell's command line is empty", "bash"),
    # expressions
    ('ci.job(\n    "x",\n    steps=["a"],\n    if_="success(",\n)', 4, "condition `success(`", "docs/workflows.md"),
    ('ci.job("x", steps=["a"], if_=True)', 1, "True is a bool, not a text", "text"),
    (
        'ci.job("x", steps=["a"], if_="needs.ok.result == \'succeeded\'")',
        1,
        "job 'ok' is not among this job's needs",
        "add 'ok'",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], if_="needs.okk.result == \'failed\'")',
        1,
        "unknown job 'okk'; did you mean 'ok'?",
        "jobs",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], if_="needs.ok.result == \'success\'")',
        1,
        "no result is called 'success'",
        "results",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], if_="needs.ok.reslt == \'failed\'")',
        1,
        "needs.ok has no 'reslt'; did you mean 'result'?",
        "it has",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], if_="needs.ok.outputs.version")',
        1,
        "takes needs.ok.outputs.version for true or false",
        "compare it",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], env={"V": "${{ needs.ok.outputs.versoin }}"})',
        1,
        "job 'ok' has no output 'versoin'; did you mean 'version'?",
        "its outputs",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], env={"V": ok.output("verzion")})',
        1,
        "job 'ok' has no output 'verzion'",
        "its outputs",
    ),
    (
        'ci.job("x", steps=["a"], needs=[ok], if_="len(needs) > 0")',
        1,
        "`needs` must be followed by a job's name",
        "needs.NAME",
    ),
    ('ci.job("x", steps=["a"], env={"V": "${{ matrix.os }}"})', 1, "the job has no matrix", "give it one"),
    (
        'ci.job("x", steps=["a"], matrix=Matrix(os=["a"]), env={"V": "${{ matrix.so }}"})',
        1,
        "the matrix has no key 'so'; did you mean 'os'?",
        "its keys",
    ),
    ('ci.job("x", steps=["a"], env={"V": "${{ env.A }}"})', 1, "`env` cannot be used here", "here there are"),
    (
        'ci.job("x", steps=["a"], if_="steps.a.result == \'failed\'")',
        1,
        "`steps` cannot be used here",
        "here there are",
    ),
    ('ci.job("x", steps=["a"], env={"V": "${{ run.idd }}"})', 1, "run has no 'idd'; did you mean 'id'?", "run has"),
    ('ci.job("x", steps=["a"], env={"V": "${{ run.id"})', 1, "is not closed by `}}`", "docs"),
    (
        'ci.job("x", steps=[sh("a", if_="steps.b.result == \'failed\'"), "b"])',
        1,
        "step 'b' has not run yet",
        "later step",
    ),
    (
        'ci.job("x", steps=["a", sh("b", if_="steps.c.result == \'failed\'")])',
        1,
        "no earlier step is called 'c'",
        "earlier steps: a",
    ),
    ('ci.job("x", steps=["a", sh("b", if_="env.FLAG")])', 1, "takes env.FLAG for true or false", "env.FLAG == 'true'"),
    (
        'Workflow("w", env={"A": "${{ matrix.x }}"}).job("x", steps=["a"])',
        1,
        "`matrix` cannot be used here",
        "run, event",
    ),
    # Python
    ("undefined", 1, "name 'undefined' is not defined", "define or import it"),
    ('Workflo("x")', 1, "name 'Workflo' is not defined; did you mean 'Workflow'?", "import"),
    ('ci.jobb("x")', 1, "no attribute 'jobb'; did you mean 'job'?", "must load"),
    ("import corral.workflw", 1, "No module named 'corral.workflw'", "compiling sees"),
    ("import corral.model", 1, "No module named 'corral.model'", "compiling sees"),
    (
        "from corral.workflow import Retri",
        1,
        "cannot import name 'Retri' from 'corral.workflow'; did you mean 'Retry'?",
        "sees",
    ),
    ("1 / 0", 1, "ZeroDivisionError: division by zero", "must load"),
    ("import sys\nsys.exit(3)", 2, "the workflow ended its process: sys.exit(3)", "remove it"),
    ("ci.job()", 1, "missing 1 required positional argument: 'name'", "must load"),
    ("raise KeyboardInterrupt", 1, "KeyboardInterrupt", "must load"),
    ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", 3, "E", "must load"),
    (
        "class D(dict):\n    def items(self): 1 / 0\nci.job('x', steps=['a'], env=D())",
        2,
        "ZeroDivisionError",
        "must load",
    ),
]


Found = dict[str, list[Fault]]


def file_of(number: int) -> str:
    return f".corral/workflows/case{number}.py"


def _distinct(text: str, number: int) -> str:
    """The text with workflow names that no other case has."""
    return text.replace('"ci"', f'"ci{number}"').replace('"w"', f'"w{number}"')


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All cases as the files of one tree: each must be told apart from the others'."""
    root = tmp_path_factory.mktemp("faults")
    texts = {f"case{number}": _distinct(HEAD + text + "\n", number) for number, (text, *_) in enumerate(CASES)}
    by_file: Found = {}
    for fault in faults_of(root, **texts):
        by_file.setdefault(fault.file, []).append(fault)
    return by_file


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0][:50] for case in CASES])
def test_fault(found: Found, number: int) -> None:
    _, line, message, remedy = CASES[number]
    faults = found[file_of(number)]
    assert len(faults) == 1, [str(fault) for fault in faults]
    (fault,) = faults
    assert message.replace("ci.py", f"case{number}.py").replace("'ci'", f"'ci{number}'") in fault.message
    assert remedy in fault.remedy
    assert fault.line == FIRST + line - 1


def test_nothing_else_is_found(found: Found) -> None:
    assert set(found) == {file_of(number) for number in range(len(CASES))}
