# SPDX-License-Identifier: Apache-2.0
"""Commits fetched by the agent: real repositories over git's own HTTP server, ssh (its program replaced) and files."""

from __future__ import annotations

import asyncio
import base64
import http.server
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from corral.agent import workdir
from corral.agent.gitfetch import GitFetch
from corral.agent.source import SourceUnavailable
from corral.agent.stopping import Stop, in_thread
from corral.model.gitsource import git_faults
from corral.model.spec import GitSource, Reason, Result
from tests.agent.coordinator import in_loop, order, running
from tests.agent.gitserver import GitServer, Repository, git, serving

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
TOKEN = "s3cr3t-credential-4711"
ALL = ("https", "ssh", "http", "file")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("git") / "repository")


def fetch(
    tmp_path: Path,
    source: GitSource,
    credential: str = "",
    *,
    protocols: tuple[str, ...] = ALL,
    timeout: float = 60.0,
    path: str = "",
) -> Path:
    directories = workdir.create(tmp_path / "jobs", "j")
    env = {"PATH": path or os.environ["PATH"]}
    host = GitFetch(protocols=protocols, env=env, patience=0.0, timeout=timeout)
    host.check_out(source, credential, directories.work, directories.root / "git", Stop())
    assert not (directories.root / "git").exists(), "what held the credential is gone"
    return directories.work


def fails(tmp_path: Path, source: GitSource, credential: str = "", **how: object) -> str:
    with pytest.raises(SourceUnavailable) as failed:
        fetch(tmp_path, source, credential, **how)  # type: ignore[arg-type]
    assert not (tmp_path / "jobs" / "j" / "git").exists()
    assert TOKEN not in str(failed.value)
    return str(failed.value)


def test_exactly_the_commit_is_there_shallow_and_without_remotes(tmp_path: Path, repository: Repository) -> None:
    work = fetch(tmp_path, GitSource(url=repository.url, commit=repository.second))
    assert (work / "file").read_text() == "two\n"
    assert (work / "run.sh").stat().st_mode & stat.S_IXUSR
    assert git(work, "rev-parse", "HEAD") == repository.second
    assert git(work, "for-each-ref") == "", "no branch, no tag"
    assert git(work, "rev-list", "HEAD", "--count") == "1"
    assert git(work, "remote") == "" and git(work, "status", "--porcelain") == ""
    assert not (work / ".git" / "hooks").exists()
    assert not (work / ".git" / "FETCH_HEAD").exists()


def test_a_credential_is_given_by_http_and_is_nowhere_afterwards(tmp_path: Path, repository: Repository) -> None:
    with serving(repository.path.parent) as server:
        server.password = TOKEN
        source = GitSource(url=server.url(), commit=repository.first, credential="CRED")
        work = fetch(tmp_path, source, f"somebody:{TOKEN}")
        assert (work / "file").read_text() == "one\n"
        assert server.given, "it was asked for"
        left = [
            file for file in (tmp_path / "jobs").rglob("*") if file.is_file() and TOKEN.encode() in file.read_bytes()
        ]
        assert left == []
        shutil.rmtree(tmp_path / "jobs")
        assert (fetch(tmp_path, source, TOKEN) / "file").exists(), "a token alone, without a user"


@pytest.mark.parametrize("credential", ["", "somebody:wrong"])
def test_access_that_is_refused_says_so(tmp_path: Path, repository: Repository, credential: str) -> None:
    with serving(repository.path.parent) as server:
        server.password = TOKEN
        said = fails(tmp_path, GitSource(url=server.url(), commit=repository.first, credential="CRED"), credential)
    assert "access was refused (credential: CRED)" in said


def test_a_redirect_to_another_host_does_not_get_the_credential(tmp_path: Path, repository: Repository) -> None:
    """Neither when the first host asked for it before it redirects, nor when the second one asks."""
    with serving(repository.path.parent) as first, serving(repository.path.parent) as second:
        first.redirect = f"http://localhost:{second.server_port}"
        source = GitSource(url=first.url(), commit=repository.first, credential="CRED")
        assert (fetch(tmp_path, source, TOKEN) / "file").exists(), "redirects are followed"
        for asks in (first, second):
            shutil.rmtree(tmp_path / "jobs")
            first.password = TOKEN if asks is first else ""
            second.password = TOKEN
            assert "access was refused" in fails(tmp_path, source, TOKEN)
        assert second.given == []


def test_a_redirect_to_a_protocol_that_is_not_allowed_is_refused(tmp_path: Path, repository: Repository) -> None:
    with serving(repository.path.parent) as server:
        server.redirect = f"file://{repository.path}?"
        assert fails(tmp_path, GitSource(url=server.url(), commit=repository.first), protocols=("http",))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/r", "file:///r"])
def test_only_https_and_ssh_unless_the_agent_says_otherwise(tmp_path: Path, url: str) -> None:
    said = fails(tmp_path, GitSource(url=url, commit="0" * 40), protocols=("https", "ssh"))
    assert "by https, ssh only" in said and "git_protocols" in said


def test_a_commit_or_a_repository_that_is_not_there(tmp_path: Path, repository: Repository) -> None:
    with serving(repository.path.parent) as server:
        said = fails(tmp_path, GitSource(url=server.url(), commit="ab" * 20))
        assert "commit abababababab is not there" in said
        shutil.rmtree(tmp_path / "jobs")
        said = fails(tmp_path, GitSource(url=server.url(name="other"), commit=repository.first))
        assert "no such repository" in said


def test_a_host_that_cannot_be_reached(tmp_path: Path) -> None:
    said = fails(tmp_path, GitSource(url="http://127.0.0.1:1/r.git", commit="0" * 40))
    assert "cannot be reached" in said and "http://127.0.0.1:1/r.git" in said


def test_a_host_that_does_not_answer_runs_into_the_timeout(tmp_path: Path, repository: Repository) -> None:
    with serving(repository.path.parent) as server:
        server.silent = threading.Event()
        said = fails(tmp_path, GitSource(url=server.url(), commit=repository.first), timeout=0.5)
        assert "not fetched in time" in said


def test_a_stopped_fetch_leaves_no_process(tmp_path: Path, repository: Repository) -> None:
    directories = workdir.create(tmp_path / "jobs", "j")
    host = GitFetch(protocols=ALL, env={"PATH": os.environ["PATH"]})
    stop = Stop()
    with serving(repository.path.parent) as server:
        server.silent = threading.Event()
        source = GitSource(url=server.url(), commit=repository.first)

        async def scenario() -> float:
            work = in_thread(lambda: host.check_out(source, "", directories.work, directories.root / "git", stop), stop)
            fetching = asyncio.create_task(work)
            await asyncio.to_thread(server.asked.wait, 20)
            asked = asyncio.get_running_loop().time()
            stop.set()
            with pytest.raises(SourceUnavailable):
                await fetching
            return asyncio.get_running_loop().time() - asked

        assert asyncio.run(scenario()) < 0.9, "before it would be abandoned"
        marker = server.url().encode()
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert marker not in entry.read_bytes()
            except OSError:
                continue


SSH = """#!/bin/sh
# Stands in for ssh: notes what it was given, then runs the command that a server would.
printf '%s\\n' "$@" > {note}
for word in "$@"; do
  case "$word" in */key) stat -c %a "$word" >> {note}; cat "$word" > {note}.key;; esac
  last="$word"
done
exec sh -c "$last"
"""


def test_ssh_gets_the_key_from_a_private_file_and_knows_its_hosts(tmp_path: Path, repository: Repository) -> None:
    (tmp_path / "bin").mkdir()
    note = tmp_path / "note"
    (tmp_path / "bin" / "ssh").write_text(SSH.format(note=note))
    (tmp_path / "bin" / "ssh").chmod(0o755)
    source = GitSource(url=f"ssh://git@host.example{repository.path}", commit=repository.first, credential="KEY")
    work = fetch(tmp_path, source, "-----KEY-----\nabc", path=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert (work / "file").read_text() == "one\n"
    said = note.read_text().splitlines()
    assert {"-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oIdentitiesOnly=yes", "600"} <= set(said)
    assert (tmp_path / "note.key").read_text() == "-----KEY-----\nabc\n"


def test_no_hook_filter_or_helper_of_host_or_repository_runs(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trap = tmp_path / "trap"
    home = tmp_path / "home"
    home.mkdir()
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {trap}\n")
    (hooks / "post-checkout").chmod(0o755)
    (home / ".gitconfig").write_text(
        f'[core]\n hooksPath = {hooks}\n[filter "evil"]\n smudge = touch {trap}\n required = true\n'
        f'[credential]\n helper = "!touch {trap}"\n'
    )
    repository = Repository(tmp_path_factory.mktemp("hostile") / "repository")
    commit = repository.commit({".gitattributes": "* filter=evil\n"})
    directories = workdir.create(tmp_path / "jobs", "j")
    hostile = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_COUNT": "0"}
    host = GitFetch(protocols=ALL, env=hostile, patience=0.0)
    host.check_out(GitSource(url=repository.url, commit=commit), "", directories.work, directories.root / "git", Stop())
    assert (directories.work / "file").read_text() == "two\n"
    assert not trap.exists()


def test_submodules_are_left_alone(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("modules")
    inner = Repository(root / "inner")
    outer = Repository(root / "outer")
    git(outer.path, "submodule", "--quiet", "add", inner.url, "sub")
    commit = outer.commit({})
    work = fetch(tmp_path, GitSource(url=outer.url, commit=commit))
    assert list((work / "sub").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "commit", "says"),
    [
        ("https://user:pass@host/r", "0" * 40, "git.url: holds a user or password"),
        ("https://token@host/r", "0" * 40, "git.url: holds a user or password"),
        ("git@host:path", "0" * 40, "ssh://git@HOST/PATH"),
        ("ext::sh -c touch% /tmp/x", "0" * 40, "git.url"),
        ("ssh://-oProxyCommand=evil/r", "0" * 40, "git.url"),
        ("https://host/a b", "0" * 40, "white space"),
        ("https://host/a\nb", "0" * 40, "git.url"),
        ("https:///r", "0" * 40, "names no host"),
        ("https://[x/r", "0" * 40, "no URL"),
        ("https://host/r", "main", "full hash"),
        ("https://host/r", "--upload-pack=evil", "full hash"),
        ("https://host/r", "0" * 41, "full hash"),
    ],
)
def test_what_a_git_source_may_not_say(tmp_path: Path, url: str, commit: str, says: str) -> None:
    source = GitSource(url=url, commit=commit)
    told = "\n".join(map(str, git_faults(source)))
    assert says in told and "pass@" not in told and "token@" not in told
    with pytest.raises(SourceUnavailable):
        fetch(tmp_path, source)


def test_what_a_git_source_may_say() -> None:
    for url in ("https://host/r.git", "https://host:8443/a/b%20c", "ssh://git@host:22/r", "file:///r"):
        assert git_faults(GitSource(url=url, commit="0" * 64)) == ()


# --- through a whole agent ---------------------------------------------------------------------------------

LOOK = """
git rev-parse HEAD; cat file
env | grep -c CRED || true
env | grep -o {token} || true
grep -r {token} . "$HOME" "$TMPDIR" || true
"""


def test_a_job_runs_on_a_commit_and_never_sees_the_credential(tmp_path: Path, repository: Repository) -> None:
    async def work(server: GitServer) -> None:
        source = GitSource(url=server.url(), commit=repository.first, credential="CRED")
        # The token's letters are put together in the script, so that looking for it does not find the script.
        script = LOOK.replace("{token}", "$(printf s3cr3t-)credential-4711")
        async with running(tmp_path, single_use=False, git_protocols=("http",)) as (coordinator, _):
            end = await coordinator.run(order(script, git=source), {"CRED": f"user:{TOKEN}"})
            assert (end.result, end.detail) == (Result.SUCCEEDED, "")
            await coordinator.until(lambda: b"0\n" in coordinator.log("job_1"))
            assert coordinator.log("job_1").decode() == f"{repository.first}\none\n0\n"
            wanted = order('echo "$CRED"', git=source, secrets=("CRED",), job_id="job_2")
            assert (await coordinator.run(wanted, {"CRED": f"user:{TOKEN}"})).result is Result.SUCCEEDED
            await coordinator.until(lambda: coordinator.log("job_2") == b"***\n")

    with serving(repository.path.parent) as server:
        server.password = TOKEN
        in_loop(lambda: work(server))


class Echo(http.server.BaseHTTPRequestHandler):
    """A git server that refuses everybody, repeating the credential it was given."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        secret = base64.b64decode(given.split()[1]).decode().rpartition(":")[2] if given else ""
        packets = [b"# service=git-upload-pack\n", None, f"ERR not for {secret}".encode()]
        body = b"".join(b"0000" if p is None else b"%04x" % (len(p) + 4) + p for p in packets)
        self.send_response(200 if given else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_echoing_server_cannot_put_the_credential_into_the_reason(tmp_path: Path, repository: Repository) -> None:
    """What git repeats of a server's words is masked like a log."""
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    async def work() -> None:
        source = GitSource(
            url=f"http://127.0.0.1:{served.server_port}/r.git", commit=repository.first, credential="CRED"
        )
        async with running(tmp_path, git_protocols=("http",)) as (coordinator, _):
            end = await coordinator.run(order("true", git=source), {"CRED": TOKEN})
            assert (end.result, end.reason) == (Result.FAILED, Reason.SOURCE_UNAVAILABLE)
            assert "not for ***" in end.detail
            assert TOKEN not in end.detail

    try:
        in_loop(work)
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
