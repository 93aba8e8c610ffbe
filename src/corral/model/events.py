# SPDX-License-Identifier: Apache-2.0
"""What is said to a user's own provisioner, where to, and what it may answer: CloudEvents 1.0.

One provisioner serves a pool (``docs/adr/0015-one-provisioner-per-pool.md``). The event's ``id`` is the delivery's,
``subject`` the agent id; ``data`` is one of :class:`ScaleUp`, :class:`ScaleDown`, :class:`Inventory`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from corral.model.ids import AgentId, ClusterId

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/cloudevents+json"


class EventKind(StrEnum):
    """The ``type`` of the CloudEvent."""

    SCALE_UP = "corral.scaler.scale-up.v1"
    SCALE_DOWN = "corral.scaler.scale-down.v1"
    INVENTORY = "corral.scaler.inventory.v1"


# --- where it goes -----------------------------------------------------------------------------------------


class Webhook(Struct, frozen=True, kw_only=True, tag="webhook", tag_field="kind"):
    """POST to ``url``. ``secret``: name of the file below the state directory's ``secrets/`` (or, with a leading
    ``$``, of the environment variable) that holds the Standard Webhooks secret (``whsec_…``); the secret itself is
    never stored in the database. ``timeout``: seconds for one delivery."""

    url: str
    secret: str
    timeout: float = 30.0


class Exec(Struct, frozen=True, kw_only=True, tag="exec", tag_field="kind"):
    """Run ``command`` (argv, no shell) with the event on standard input, in ``directory`` (empty: the state
    directory). ``env``: names of the coordinator's variables it sees besides PATH, HOME, LANG and TZ. ``timeout``:
    seconds until it is killed."""

    command: tuple[str, ...]
    directory: str = ""
    env: tuple[str, ...] = ()
    timeout: float = 600.0


class WorkflowTarget(Struct, frozen=True, kw_only=True, tag="workflow", tag_field="kind"):
    """Run the registered workflow of this name. ``timeout``: seconds that one of its runs may take."""

    workflow: str
    timeout: float = 1800.0


Target = Webhook | Exec | WorkflowTarget


def target_key(target: Target) -> str:
    """Which provisioner this is: two targets of one key share a fence. Stable over edits that do not move it."""
    match target:
        case Webhook():
            return f"webhook:{target.url}"
        case Exec():
            return "exec:" + "\x1f".join((*target.command, target.directory))
        case WorkflowTarget():
            return f"workflow:{target.workflow}"


# --- what it says ------------------------------------------------------------------------------------------


class Resources(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cores and bytes that the instance should have; absent: the provisioner's choice."""

    cpu: float | None = None
    memory: int | None = None


class ScaleUp(Struct, frozen=True, kw_only=True):
    """Make one instance and start an agent on it with ``claim_code``. ``epoch`` (``generation.counter``) is stamped at
    each sending, all else is fixed when the event is committed. Views show ``claim_code`` as ``[redacted]``."""

    cluster_id: ClusterId
    agent_id: AgentId
    sequence: int
    epoch: str
    pool: str
    labels: tuple[str, ...]
    mandatory_labels: tuple[str, ...]
    resources: Resources
    coordinator_urls: tuple[str, ...]
    claim_code: str
    job_id: str | None = None
    run_id: str | None = None


class ScaleDown(Struct, frozen=True, kw_only=True):
    """Destroy the instance of ``agent_id``, whatever its state; that it does not exist is success. ``evidence``: what
    the decision rests on, as facts by name."""

    cluster_id: ClusterId
    agent_id: AgentId
    sequence: int
    epoch: str
    pool: str
    reason: str
    evidence: dict[str, str]
    provider_id: str = ""


class Inventory(Struct, frozen=True, kw_only=True):
    """List every instance of ``cluster_id``: in the answer's body as :class:`Listing`, by the API later, or
    ``{"unsupported": true}``."""

    cluster_id: ClusterId
    epoch: str
    request: str
    """To be repeated in a listing that comes later."""


class CloudEvent(Struct, frozen=True, kw_only=True):
    """The envelope. ``time``: RFC 3339, of the commit. ``source``: ``/corral/CLUSTER_ID``."""

    specversion: str
    id: str
    source: str
    type: str
    time: str
    subject: str
    datacontenttype: str
    data: ScaleUp | ScaleDown | Inventory | dict[str, object]


# --- what it answers ---------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What one delivery came to, whatever the kind of target."""

    DONE = "done"
    """2xx but 202; exit 0; the run succeeded."""
    ACCEPTED = "accepted"
    """202: it will be done; a report or a listing tells when."""
    ALREADY = "already"
    """409: it was done before."""
    ABSENT = "absent"
    """404 or 410: there is nothing of it, and for a scale-up there never will be."""
    REFUSED = "refused"
    """Answered, and not done: other 4xx, other exit codes, the run failed."""
    LATER = "later"
    """429 or 5xx, exit 75: ask again."""
    STALE = "stale"
    """412, exit 77: our epoch is below one that it has seen."""
    UNANSWERED = "unanswered"
    """No connection, a cut one, or nothing within the timeout: it may have happened."""


class Answer(Struct, frozen=True, kw_only=True):
    """``detail``: one sentence with the status or exit code and the first line of what it said (at most 1 KiB, secrets
    masked). ``provider_id``: any id it reported, also in an error. ``body``: at most 4 MiB, for a listing.
    ``retry_after``: seconds it asked for."""

    verdict: Verdict
    detail: str = ""
    provider_id: str = ""
    body: bytes = b""
    retry_after: float | None = None


class ListedInstance(Struct, frozen=True, kw_only=True):
    """One instance that carries our cluster id. ``hourly``: what it costs, where the provisioner knows."""

    agent_id: str
    cluster_id: str
    provider_id: str = ""
    pool: str = ""
    hourly: float | None = None


class Listing(Struct, frozen=True, kw_only=True):
    """The answer to :class:`Inventory`. ``complete``: False where it is one part of several under the same
    ``request``; absence counts only from complete listings."""

    instances: tuple[ListedInstance, ...] | None = None
    request: str = ""
    complete: bool = True
    unsupported: bool = False

    def __post_init__(self) -> None:
        """``{"ok": true}`` is not the news that every instance is gone."""
        if self.instances is None and not self.unsupported:
            raise ValueError("a listing names its instances, or says that it is unsupported")


class ProvisionReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provisioner says by itself, ``POST /api/v1/provisions/AGENT_ID/report``. ``state``: ``accepted``,
    ``failed`` or ``gone``."""

    state: str
    provider_id: str = ""
    reason: str = ""
    retryable: bool = False
