# SPDX-License-Identifier: Apache-2.0
"""The API as typed calls. Every refusal comes back as the ``CorralError`` that the server raised."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from corral.client.events import Event, NotEvents, events
from corral.client.problems import NotCorral, Unreachable, error_from, error_of
from corral.model.errors import CorralError, NotFound, PermanentError, TemporaryError
from corral.model.events import Listing, ProvisionReport
from corral.model.ids import AgentId, JobId, RunId, SourceHash, TokenId
from corral.model.leaks import EpochView, LedgerView, ReportView
from corral.model.spec import SourceRef
from corral.model.views import (
    AgentView,
    CancelRun,
    Clean,
    Cleaned,
    CreatedToken,
    DiagnoseView,
    DrainAgent,
    JobView,
    LogEvent,
    NewRun,
    NewToken,
    Page,
    PoolView,
    Problem,
    ProvisionView,
    RegisterWorkflows,
    ReloadView,
    Rerun,
    RotateToken,
    RunView,
    ServerView,
    TokenView,
    WhyView,
    WorkflowView,
)

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to come up."""
ANSWER_TIMEOUT = 60.0
"""Seconds without a byte of an answer; a stream carries a sign of life every 15."""
RETRY_FIRST, RETRY_MAX = 0.2, 3.0
"""Seconds between two tries to resume a stream, doubling; a restarting server is back within a second."""
RETRIES = 20
"""Tries in a row to resume a stream: about a minute."""


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Bytes of one step's log. ``final``: nothing follows ``offset + len(data)``."""

    step: int
    offset: int
    data: bytes
    final: bool


class Client:
    """One server, one token. Use as an async context manager, or call :meth:`close`.

    :param transport: replaces the network, e.g. an :class:`~corral.client.transport.AppTransport`.
    :param retries: tries in a row to resume a stream before :class:`Unreachable`.
    """

    def __init__(
        self,
        base_url: str,
        token: str = "",
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        retries: int = RETRIES,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        self._http = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
            transport=transport,
            # A proxy has no business between us and this very machine.
            trust_env=transport is None and not _loopback(base_url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections. Idempotent."""
        await self._http.aclose()

    # --- the server ---

    async def server(self) -> ServerView:
        return await self._get("server", ServerView)

    async def diagnose(self, only: str = "") -> DiagnoseView:
        """Everything an operator would look at. ``only``: a check, the beginning of its name, or a group."""
        return await self._get("/diagnose", DiagnoseView, {"only": only} if only else None)

    async def agents(self) -> tuple[AgentView, ...]:
        return await self._get("agents", tuple[AgentView, ...])

    async def pools(self) -> tuple[PoolView, ...]:
        return await self._get("pools", tuple[PoolView, ...])

    async def tokens(self) -> tuple[TokenView, ...]:
        return await self._get("tokens", tuple[TokenView, ...])

    async def create_token(self, new: NewToken) -> CreatedToken:
        return await self._send("POST", "tokens", CreatedToken, new)

    async def rotate_token(self, token_id: TokenId, how: RotateToken | None = None) -> CreatedToken:
        return await self._send("POST", f"tokens/{_part(token_id)}/rotate", CreatedToken, how or RotateToken())

    async def provisions(self, *, state: str = "", pool: str = "") -> tuple[ProvisionView, ...]:
        asked = {"state": state, "pool": pool}
        wanted = {name: value for name, value in asked.items() if value}
        return await self._get("provisions", tuple[ProvisionView, ...], wanted)

    async def provision(self, agent_id: AgentId) -> ProvisionView:
        return await self._get(f"provisions/{_part(agent_id)}", ProvisionView)

    async def retry_provision(self, agent_id: AgentId) -> ProvisionView:
        return await self._send("POST", f"provisions/{_part(agent_id)}/retry", ProvisionView)

    async def forget_provision(self, agent_id: AgentId) -> ProvisionView:
        return await self._send("POST", f"provisions/{_part(agent_id)}/forget", ProvisionView)

    async def ledger(self) -> LedgerView:
        return await self._send("GET", "provisioner/ledger", LedgerView)

    async def inventory_now(self) -> LedgerView:
        return await self._send("POST", "provisioner/inventory", LedgerView)

    async def reload_config(self) -> ReloadView:
        return await self._send("POST", "config/reload", ReloadView)

    async def approve_strays(self) -> EpochView:
        return await self._send("POST", "provisioner/approve-strays", EpochView)

    async def raise_epoch(self) -> EpochView:
        return await self._send("POST", "cluster/raise-epoch", EpochView)

    async def report_provision(self, agent_id: AgentId, said: ProvisionReport) -> ReportView:
        return await self._send("POST", f"provisions/{_part(agent_id)}/report", ReportView, said)

    async def send_listing(self, listing: Listing) -> LedgerView:
        return await self._send("POST", "provisioner/listing", LedgerView, listing)

    async def cordon_agent(self, agent_id: AgentId) -> AgentView:
        return await self._send("POST", f"agents/{_part(agent_id)}/cordon", AgentView)

    async def uncordon_agent(self, agent_id: AgentId) -> AgentView:
        return await self._send("POST", f"agents/{_part(agent_id)}/uncordon", AgentView)

    async def drain_agent(self, agent_id: AgentId, how: DrainAgent | None = None) -> AgentView:
        return await self._send("POST", f"agents/{_part(agent_id)}/drain", AgentView, how or DrainAgent())

    async def revoke_token(self, token_id: TokenId) -> TokenView:
        return await self._send("DELETE", f"tokens/{_part(token_id)}", TokenView)

    # --- runs and jobs ---

    async def create_run(self, new: NewRun) -> RunView:
        return await self._send("POST", "runs", RunView, new)

    async def runs(
        self, *, project: str = "local", cursor: str = "", limit: int = 50, provisioning: bool = False
    ) -> Page[RunView]:
        """One page, newest first, without jobs. ``provisioning``: the runs that work for provisioners, instead of all
        others."""
        params = {"project": project, "limit": str(limit)} | ({"cursor": cursor} if cursor else {})
        params |= {"provisioning": "true"} if provisioning else {}
        return await self._get("runs", Page[RunView], params)

    async def all_runs(self, *, project: str = "local") -> AsyncIterator[RunView]:
        """Every run, newest first; pages are fetched as they are needed."""
        cursor = ""
        while True:
            page = await self.runs(project=project, cursor=cursor, limit=200)
            for run in page.items:
                yield run
            cursor = page.next
            if not cursor:
                return

    async def run(self, run_id: RunId) -> RunView:
        """With its jobs, without their steps."""
        return await self._get(f"runs/{_part(run_id)}", RunView)

    async def cancel_run(self, run_id: RunId, *, force: bool = False) -> RunView:
        return await self._send("POST", f"runs/{_part(run_id)}/cancel", RunView, CancelRun(force=force))

    async def rerun(self, run_id: RunId, how: Rerun | None = None) -> RunView:
        return await self._send("POST", f"runs/{_part(run_id)}/rerun", RunView, how or Rerun())

    async def clean(self, how: Clean) -> Cleaned:
        return await self._send("POST", "clean", Cleaned, how)

    async def job(self, job_id: JobId) -> JobView:
        """With steps and attempts."""
        return await self._get(f"jobs/{_part(job_id)}", JobView)

    async def why(self, job_id: JobId) -> WhyView:
        return await self._get(f"jobs/{_part(job_id)}/why", WhyView)

    async def watch_run(self, run_id: RunId) -> AsyncIterator[RunView]:
        """The run now and after each change, until it has ended; reconnects by itself.

        :raises Unreachable: the server stayed away.
        """
        async for event in self._follow(f"runs/{_part(run_id)}/events", {}):
            if event.name == "run":
                yield _decode(event.data, RunView, self.base_url)

    # --- registered workflows ---

    async def register_workflows(self, wanted: RegisterWorkflows) -> tuple[WorkflowView, ...]:
        return await self._send("POST", "workflows", tuple[WorkflowView, ...], wanted)

    async def workflows(self, *, project: str = "local") -> tuple[WorkflowView, ...]:
        return await self._get("workflows", tuple[WorkflowView, ...], {"project": project})

    async def workflow(self, name: str) -> WorkflowView:
        return await self._get(f"workflows/{_part(name)}", WorkflowView)

    async def remove_workflow(self, name: str) -> WorkflowView:
        return await self._send("DELETE", f"workflows/{_part(name)}", WorkflowView)

    # --- logs ---

    async def read_log(
        self, job_id: JobId, *, step: int, attempt: int | None = None, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Raw bytes ``start`` up to ``end`` (exclusive; None: what is stored now)."""
        if end is not None and end <= start:
            return
        headers = {"range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        path = f"jobs/{_part(job_id)}/steps/{step}/log"
        async with self._stream(path, _attempt(attempt), headers) as response:
            if response.status_code == 416:
                return
            async for chunk in _chunks(response, self.base_url):
                yield chunk

    async def follow_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int = 0, offset: int = 0
    ) -> AsyncIterator[LogChunk]:
        """All steps in order from (step, offset) on, as bytes arrive; goes on where it was after a lost connection."""
        params = {"from": f"{step}:{offset}"} | _attempt(attempt)
        async for event in self._follow(f"jobs/{_part(job_id)}/log/events", params):
            if event.name == "log":
                part = _decode(event.data, LogEvent, self.base_url)
                data = base64.b64decode(part.data)
                yield LogChunk(step=part.step, offset=part.offset, data=data, final=part.final)

    # --- sources ---

    async def source_size(self, hash: SourceHash) -> int | None:
        """Bytes of a source that the server holds, or None."""
        with contextlib.suppress(NotFound):
            response = await self._request("HEAD", f"sources/{_part(hash)}")
            return int(response.headers.get("corral-source-size", "0"))
        return None

    async def put_source(self, hash: SourceHash, chunks: AsyncIterator[bytes]) -> SourceRef:
        """Upload an archive. :raises Refused: its bytes do not have this hash. :raises TooLarge: above 1 GiB."""
        headers = {"content-type": "application/gzip"}
        response = await self._request("PUT", f"sources/{_part(hash)}", content=chunks, headers=headers)
        return _decode(response.content, SourceRef, self.base_url)

    # --- how ---

    async def _get(self, path: str, kind: type[T], params: dict[str, str] | None = None) -> T:
        response = await self._request("GET", path, params=params)
        return _decode(response.content, kind, self.base_url)

    async def _send(self, method: str, path: str, kind: type[T], body: msgspec.Struct | None = None) -> T:
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"} if content else {}
        response = await self._request(method, path, content=content, headers=headers)
        return _decode(response.content, kind, self.base_url)

    async def _request(self, method: str, path: str, **how: Any) -> httpx2.Response:
        with _translated(self.base_url):
            response = await self._http.request(method, f"{self.base_url}/api/v1/{path}", **how)
        if response.status_code >= 400:
            raise _refusal(response, self.base_url, method)
        return response

    @contextlib.asynccontextmanager
    async def _stream(
        self, path: str, params: dict[str, str], headers: dict[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        url = f"{self.base_url}/api/v1/{path}"
        request = self._http.build_request("GET", url, params=params, headers=headers)
        with _translated(self.base_url):
            response = await self._http.send(request, stream=True)
        try:
            if response.status_code >= 400 and response.status_code != 416:
                with _translated(self.base_url):
                    body = await response.aread()
                raise error_of(response.status_code, body, self.base_url)
            yield response
        finally:
            await response.aclose()

    async def _follow(self, path: str, params: dict[str, str]) -> AsyncIterator[Event]:
        """Events until ``end``; after a lost connection again from the last event that had an id."""
        last, tries = "", 0
        while True:
            try:
                headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
                async with self._stream(path, params, headers) as response:
                    async for event in events(_chunks(response, self.base_url)):
                        tries = 0
                        last = event.id or last
                        if event.name == "end":
                            return
                        if event.name == "problem":
                            raise error_from(_decode(event.data, Problem, self.base_url))
                        yield event
            except TemporaryError:
                if tries >= self.retries:
                    raise
            except NotEvents as error:
                raise NotCorral(f"{self.base_url}: {error}; check the URL") from None
            # Without an end event the stream was cut: by the network, or by a server that stops.
            if tries >= self.retries:
                raise Unreachable(f"{self.base_url} ended the stream {tries} times in a row")
            await asyncio.sleep(min(RETRY_FIRST * 2**tries, RETRY_MAX))
            tries += 1


def _attempt(attempt: int | None) -> dict[str, str]:
    return {} if attempt is None else {"attempt": str(attempt)}


def _part(value: str) -> str:
    return quote(value, safe="")


def _loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1") or host.startswith("127.")


async def _chunks(response: httpx2.Response, url: str) -> AsyncIterator[bytes]:
    with _translated(url):
        async for chunk in response.aiter_bytes():
            yield chunk


def _decode(raw: bytes, kind: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotCorral(f"{url} did not answer as a Corral server of this version; check the URL") from None


def _refusal(response: httpx2.Response, url: str, method: str) -> CorralError:
    code = response.headers.get("corral-problem", "")
    if method != "HEAD" or not code:
        return error_of(response.status_code, response.content, url)
    retry = response.headers.get("retry-after", "")
    problem = Problem(
        type="",
        title="",
        status=response.status_code,
        code=code,
        detail=f"{url} refused: {code}",
        retry_after=float(retry) if retry.isdigit() else None,
    )
    return error_from(problem)


@contextlib.contextmanager
def _translated(url: str) -> Any:
    try:
        yield
    except httpx2.TimeoutException:
        raise Unreachable(f"{url} does not answer in time; is the server overloaded or the network away?") from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
        raise PermanentError(f"{url!r} is no URL of a server; give http://HOST:PORT or https://HOST") from None
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        raise Unreachable(f"cannot reach {url}: {reason}; is the server running there?") from None
