# SPDX-License-Identifier: Apache-2.0
"""Tokens are rotated: two keys for a while, then one."""

from __future__ import annotations

import asyncio

import pytest

from corral.model.errors import NotFound, Refused, Unauthenticated
from corral.model.ids import TokenId
from corral.model.views import NewToken, RotateToken
from corral.wire import close
from corral.wire.messages import FinishedAck, HeldJob, HeldState, RefusedCode, Welcome
from corral.wire.messages import Refused as RefusedHello
from tests.control.rig import Puppet, Rig, token_of, virtual


async def _away(rig: Rig, puppet: Puppet) -> None:
    puppet.wire.cut()
    await rig.clock.sleep(0.1)


async def _refused(rig: Rig, token: str, boot: str = "") -> str:
    puppet = rig.connect(token, boot=boot)
    await puppet.hello()
    return (await puppet.expect(RefusedHello)).code


def test_both_keys_work_in_the_grace_and_a_standing_session_outlives_it() -> None:
    async def scenario(rig: Rig) -> None:
        old = await rig.token("x", name="build-1")
        first = await rig.online(old)
        await rig.run()
        offer = await first.take()
        new = await rig.coordinator.rotate_token(token_of(old), RotateToken(grace=60), by="tok_admin")
        assert new.token.partition(".")[0] == first.agent_id
        assert new.token != old.token
        assert (new.view.created_by, new.view.name, new.view.agent_id) == ("tok_admin", "build-1", first.agent_id)
        listed = {view.id: view for view in await rig.coordinator.tokens()}
        assert listed[old.view.id].replaced_by == new.view.id
        assert listed[old.view.id].expires_at is not None
        await rig.clock.sleep(120)
        await first.finish(offer)
        await first.expect(FinishedAck, timeout=90)
        await _away(rig, first)
        assert await _refused(rig, old.token) == RefusedCode.REVOKED
        second = await rig.online(new)
        assert (await rig.agent(second.agent_id)).labels == (
            "corral:arch:x86_64",
            "corral:host:rig",
            "corral:os:linux",
            "x",
        )

    virtual(scenario, heartbeat_interval=20.0, agent_dead_after=600.0)


def test_the_old_key_still_registers_in_its_grace_and_ends_with_the_first_use_of_the_new_one() -> None:
    async def scenario(rig: Rig) -> None:
        old = await rig.token()
        new = await rig.coordinator.rotate_token(token_of(old), RotateToken(grace=3600))
        await _away(rig, await rig.online(old))
        await _away(rig, await rig.online(new))
        assert await _refused(rig, old.token) == RefusedCode.REVOKED
        await rig.online(new)

    virtual(scenario)


def test_an_agent_refused_for_its_old_key_takes_its_job_with_it_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        old = await rig.token()
        puppet = await rig.online(old, boot="same")
        run = await rig.run()
        offer = await puppet.take()
        await rig.coordinator.rotate_token(token_of(old), RotateToken(grace=0))
        await _away(rig, puppet)
        again = rig.connect(old, boot="same")
        await again.hello(HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1))
        assert (await again.expect(RefusedHello)).code == RefusedCode.REVOKED
        view = await rig.job(run)
        assert (view.state, view.reason) == ("failed", "agent_lost")
        assert "replaced" in view.detail

    virtual(scenario)


def test_revoking_the_key_that_was_replaced_leaves_the_agent_its_new_one() -> None:
    async def scenario(rig: Rig) -> None:
        old = await rig.token()
        puppet = await rig.online(old)
        new = await rig.coordinator.rotate_token(token_of(old), RotateToken(grace=3600))
        run = await rig.run()
        await puppet.take()
        # It is the one in use: its session and its job end.
        await rig.coordinator.revoke_token(token_of(old))
        assert await puppet.closed() == close.REFUSED
        assert await rig.state(run) == "failed"
        second = await rig.online(new)
        third = await rig.coordinator.rotate_token(token_of(new), RotateToken(grace=3600))
        await _away(rig, second)
        fourth = await rig.online(third)
        # This one is not: nobody notices.
        await rig.coordinator.revoke_token(token_of(new))
        await fourth.silent(1.0)
        await rig.coordinator.revoke_token(token_of(third))
        assert await fourth.closed() == close.REFUSED
        assert not [each for each in await rig.coordinator.agents() if each.state != "ended"]

    virtual(scenario)


def test_a_token_is_rotated_once_and_never_after_its_end() -> None:
    async def scenario(rig: Rig) -> None:
        old = await rig.token()
        new = await rig.coordinator.rotate_token(token_of(old), RotateToken())
        with pytest.raises(Refused, match=new.view.id):
            await rig.coordinator.rotate_token(token_of(old), RotateToken())
        await rig.coordinator.revoke_token(token_of(new))
        with pytest.raises(Refused, match="revoked"):
            await rig.coordinator.rotate_token(token_of(new), RotateToken())
        with pytest.raises(NotFound):
            await rig.coordinator.rotate_token(TokenId("tok_none"), RotateToken())

    virtual(scenario)


def test_an_api_token_works_in_its_grace_and_not_after_it() -> None:
    async def scenario(rig: Rig) -> None:
        old = await rig.coordinator.create_token(NewToken(name="admin", role="admin"), by="tok_x")
        new = await rig.coordinator.rotate_token(token_of(old), RotateToken(grace=10))
        assert (await rig.coordinator.authenticate(old.token)).role == "admin"
        assert (await rig.coordinator.authenticate(new.token)).name == "admin"
        # What is about to end is no reason to revoke the one that stays.
        with pytest.raises(Refused, match="last admin"):
            await rig.coordinator.revoke_token(token_of(new))
        await asyncio.sleep(11)
        with pytest.raises(Unauthenticated):
            await rig.coordinator.authenticate(old.token)
        assert (await rig.coordinator.authenticate(new.token)).role == "admin"

    virtual(scenario)


def test_48_a_refused_agent_is_told_for_good_and_its_connection_is_closed() -> None:
    """The code says that dialling again is in vain, so that no instance stays alive behind a refused agent."""

    async def scenario(rig: Rig) -> None:
        puppet = rig.connect("agent_nobody.key_none")
        await puppet.hello()
        assert (await puppet.expect(RefusedHello)).code == RefusedCode.UNKNOWN
        assert close.next_of(await puppet.closed()) is close.Next.STOP

    virtual(scenario)


def test_47_a_fleet_that_comes_at_once_is_let_in_by_every_limiter() -> None:
    async def scenario(rig: Rig) -> None:
        tokens = [await rig.token(name=f"a{n}") for n in range(200)]
        puppets = [rig.connect(token, peer="10.0.0.7:1") for token in tokens]
        for puppet in puppets:
            await puppet.hello()
        for puppet in puppets:
            await puppet.expect(Welcome)
        # Wrong ones from the same address are limited, right ones still come in.
        answers = [await _refused(rig, "agent_nobody.key_none") for _ in range(40)]
        assert answers[0] == RefusedCode.UNKNOWN
        assert answers[-1] == RefusedCode.TOO_MANY
        late = await rig.token(name="late")
        await rig.online(late, peer="10.0.0.1:2")

    virtual(scenario)
