# SPDX-License-Identifier: Apache-2.0
"""D1 on a server: transactions that really run at the same time."""

from __future__ import annotations

import asyncio

from corral.control import admission
from corral.control.admission import Request, Term
from corral.model.ids import AgentId, CoordinatorId
from corral.model.pools import Caps
from corral.model.secret import Secret
from corral.store.postgres import PostgresDatabase, PostgresLimits
from corral.store.repo import lease as lease_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.lease import LEASE
from tests.control.leading import creation, pool
from tests.control.worlds import COORDINATOR
from tests.postgres import server

AT_ONCE = 8


def test_d1_a_cap_holds_for_admissions_at_the_same_time() -> None:
    """Each transaction counts after it has the lease's row, so it sees what the one before it committed."""

    async def run() -> tuple[int, int]:
        database = PostgresDatabase.open(server().database(), PostgresLimits(connections=AT_ONCE, wait=30.0))
        try:
            epoch = await database.write(lambda c: lease_rows.take(c, LEASE, COORDINATOR))
            term = Term(holder=CoordinatorId(COORDINATOR), epoch=epoch)
            answers = await asyncio.gather(
                *(_admit(database, term, f"agent_{number}") for number in range(AT_ONCE * 3))
            )
            live = await database.read(provisions_rows.count_live)
            return sum(answer is None for answer in answers), live
        finally:
            await database.close()

    assert asyncio.run(run()) == (3, 3)


async def _admit(database: PostgresDatabase, term: Term, name: str) -> object:
    request = Request(
        creation=creation(), pool=pool(most=3), identity=AgentId(name), claim=Secret(f"code-{name}"), sealed=b"s"
    )
    (answer,) = await database.write(lambda c: admission.admit(c, term, [request], Caps()))
    return answer
