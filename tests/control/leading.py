# SPDX-License-Identifier: Apache-2.0
"""One coordinator's scaler on a world's database, and its passes by hand."""

from __future__ import annotations

from sqlalchemy import Connection

from corral.control import admission, queries
from corral.control.admission import Request
from corral.control.bell import Bell
from corral.control.scaler import Scaler, ScalerSettings, Term
from corral.decide.scaling import Creation, Refusal
from corral.model.events import EventKind, Webhook
from corral.model.ids import AgentId, CoordinatorId, JobId
from corral.model.pools import Caps, Pool
from corral.model.records import Provision
from corral.model.secret import Secret
from corral.model.states import DeliveryState, ProvisionState
from corral.runtime.sealing import Sealer
from corral.store.repo import deliveries
from corral.store.repo import lease as lease_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.lease import LEASE
from corral.store.tables import deliveries as deliveries_table
from tests.control.worlds import COORDINATOR, SECOND, World

TARGET = Webhook(url="https://provisioner.example/events", secret="p")


def pool(name: str = "p", labels: str = "linux", most: int = 2, **more: object) -> Pool:
    values = {"backend": "process", **more}
    return Pool(name=name, labels=frozenset(labels.split()), max_agents=most, **values)  # type: ignore[arg-type]


def event_pool(name: str = "p", labels: str = "linux", most: int = 2, **more: object) -> Pool:
    return pool(name, labels, most, backend="event", target=TARGET, **more)


def creation(job: str | None = None, pool: str = "p", **more: object) -> Creation:
    """Of a warm instance, or for a job."""
    made = None if job is None else JobId(job)
    return Creation(pool=pool, job_id=made, labels=frozenset({"linux"}), **more)  # type: ignore[arg-type]


class Leader:
    def __init__(self, world: World, *pools: Pool, caps: Caps | None = None, unroutable_after: float = 120.0) -> None:
        self.world = world
        self.pools = pools or (pool(),)
        self.caps = caps or Caps()
        self.unroutable_after = unroutable_after
        self.sealer = Sealer(b"k" * 32, world.chance)
        self.begin()

    def begin(self) -> None:
        """A new term: what a restarted coordinator has, nothing but the database."""
        epoch = self.world.write(lease_rows.take, LEASE, COORDINATOR)
        self.term = Term(holder=CoordinatorId(COORDINATOR), epoch=epoch)
        self.bell = Bell()
        self.scaler = Scaler(
            self.world.clock,
            self.world.chance,
            self.world.database,
            self.sealer,
            self.bell,
            self.term,
            ScalerSettings(pools=lambda: self.pools, caps=lambda: self.caps, unroutable_after=self.unroutable_after),
        )

    def run(self) -> None:
        self.world.runner.run(self.scaler.run_once())

    def live(self, state: ProvisionState | None = None) -> list[Provision]:
        rows = self.world.read(provisions_rows.live)
        return [row for row in rows if state is None or row.state is state]

    def request(self, creation: Creation, name: str) -> Request:
        wanted = next(pool for pool in self.pools if pool.name == creation.pool)
        claim = Secret(f"code-{name}")
        return Request(creation=creation, pool=wanted, identity=AgentId(name), claim=claim, sealed=b"sealed")

    def admit(self, creation: Creation, name: str) -> Refusal | None:
        (answer,) = self.world.write(admission.admit, self.term, [self.request(creation, name)], self.caps)
        return answer

    def begun(self, seconds: float = 60.0) -> None:
        """Its host records the sending of what is requested, before it is made."""
        for row in self.live(ProvisionState.REQUESTED):
            if row.sent_at is None:
                moment = self.world.clock.now()
                deadline = moment + int(seconds * SECOND)
                self.world.write(provisions_rows.write, row, sent_at=moment, deadline_at=deadline)

    def why(self, job_id: JobId) -> list[str]:
        return list(self.world.read(queries.why, job_id, self.pools, self.scaler.reasons).sentences)

    def claim_of(self, agent_id: str) -> str:
        sealed = self.world.read(provisions_rows.sealed_claim, AgentId(agent_id))
        assert sealed is not None
        return self.sealer.open(sealed, AgentId(agent_id)).reveal()


def mark_sent(world: World, agent_id: str) -> None:
    def write(connection: Connection) -> None:
        table = deliveries_table
        connection.execute(
            table.update()
            .where(table.c.agent_id == agent_id, table.c.kind == EventKind.SCALE_UP)
            .values(first_sent_at=world.clock.now(), state=DeliveryState.SENDING)
        )

    world.write(write)
    assert not world.read(deliveries.unsent, AgentId(agent_id))
