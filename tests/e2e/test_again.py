# SPDX-License-Identifier: Apache-2.0
"""Runs run again: all of it or what failed, with the same source; and outputs of steps on their way."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

from bench.harness import Server, server

from corral.model.ids import RunId, SourceHash
from corral.model.spec import JobSpec, NeedSpec, RetrySpec, SourceRef, StepSpec
from corral.model.views import Rerun
from tests.e2e.support import config, job, run_of, states, until_over, whole_log


async def _uploaded(running: Server, text: bytes) -> SourceRef:
    """An archive of one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("file.txt")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    data = buffer.getvalue()

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    return await running.client.put_source(SourceHash(hashlib.sha256(data).hexdigest()), chunks())


def test_what_failed_runs_again_with_the_same_source_and_the_kept_outputs(tmp_path: Path) -> None:
    flag, counts = tmp_path / "flag", tmp_path / "counts"

    async def scenario() -> None:
        async with server(config()) as running:
            source = await _uploaded(running, b"the source\n")
            good = job(
                "good",
                f"echo x >> {counts}; cat file.txt; echo v=kept >> $CORRAL_OUTPUT",
                outputs={"v": "${{ steps.s0.outputs.v }}"},
                checkout=True,
            )
            bad = job("bad", f"test -e {flag}; cat file.txt", checkout=True)
            after = job(
                "after",
                'echo "got $V"',
                needs=(NeedSpec(job="good"), NeedSpec(job="bad")),
                env={"V": "${{ needs.good.outputs.v }}"},
            )
            first = await running.client.create_run(run_of(good, bad, after, source=source, event={"kind": "test"}))
            view = await until_over(running, first.id)
            assert states(view) == {"good": "succeeded", "bad": "failed", "after": "skipped"}
            flag.touch()
            again = await running.client.rerun(RunId(first.id), Rerun(failed_only=True))
            view = await until_over(running, again.id)
            assert states(view) == {"good": "succeeded", "bad": "succeeded", "after": "succeeded"}
            assert view.original == first.id
            assert counts.read_text() == "x\n", "what succeeded is not run again"
            by_name = {each.name: each for each in view.jobs}
            assert first.id in by_name["good"].detail
            assert await whole_log(running, by_name["bad"]) == b"the source\n"
            assert await whole_log(running, by_name["after"]) == b"got kept\n"
            whole = await running.client.rerun(RunId(first.id))
            view = await until_over(running, whole.id)
            assert states(view) == dict.fromkeys(("good", "bad", "after"), "succeeded")
            assert counts.read_text() == "x\nx\n"
            assert [each.original for each in (await running.client.runs()).items] == [first.id, first.id, ""]

    asyncio.run(scenario())


def test_outputs_of_steps_pass_to_steps_jobs_and_a_matrix_and_a_retried_step_gives_those_of_its_last_try(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"

    async def scenario() -> None:
        async with server(config()) as running:
            retried = StepSpec(
                name="retried",
                script=f"o() {{ echo n=$1 >> $CORRAL_OUTPUT; }}; o first; if mkdir {flag}; then exit 3; fi; o second",
                retry=RetrySpec(attempts=2, delay=0.05),
            )
            lines = StepSpec(
                name="lines",
                script="printf 'text<<END\\none\\ntwo\\nEND\\n' >> $CORRAL_OUTPUT; echo done=yes >> $CORRAL_OUTPUT",
            )
            reads = StepSpec(
                name="reads",
                script='echo "$N/$T"',
                env={"N": "${{ steps.retried.outputs.n }}", "T": "${{ steps.lines.outputs.text }}"},
            )
            maker = JobSpec(
                name="maker",
                steps=(retried, lines, reads),
                runs_on=("local",),
                checkout=False,
                outputs={"n": "${{ steps.retried.outputs.n }}", "text": "${{ steps.lines.outputs.text }}"},
            )
            user = job(
                "user",
                'echo "$X$M"',
                needs=(NeedSpec(job="maker"),),
                matrix=({"m": 1}, {"m": 2}),
                env={"X": "${{ needs.maker.outputs.n }}", "M": "${{ matrix.m }}"},
            )
            run = await running.client.create_run(run_of(maker, user))
            view = await until_over(running, run.id)
            assert view.state == "succeeded", view
            assert view.jobs[0].outputs == {"n": "second", "text": "one\ntwo"}
            assert await whole_log(running, view.jobs[0], 2) == b"second/one\ntwo\n"
            assert sorted([await whole_log(running, each) for each in view.jobs[1:]]) == [b"second1\n", b"second2\n"]

    asyncio.run(scenario())
