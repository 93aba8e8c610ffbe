# SPDX-License-Identifier: Apache-2.0
"""``corral sim``: histories of the whole control plane in virtual time, one per seed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.options import AsJson
from corral.cli.output import write, write_json, write_json_line

if TYPE_CHECKING:
    from corral.sim.run import Outcome

app = typer.Typer(
    help="Try coordinator and agents in virtual time, with faults.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Minutes = Annotated[float, typer.Option("--minutes", min=0.1, help="Virtual minutes with faults.")]


@app.command()
def run(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many histories.")] = 50,
    first_seed: Annotated[int, typer.Option("--first-seed", help="The first seed; the others follow it.")] = 1,
    minutes: Minutes = 5.0,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Histories at the same time.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Play seeds and print each that violates an invariant, with the command that replays it; exit 1 if one does.

    A seed that met no fault or tore nothing down is not counted.
    """
    from corral.sim.run import run_seeds

    outcomes = []
    for outcome in run_seeds(range(first_seed, first_seed + seeds), minutes, processes=processes):
        outcomes.append(outcome)
        if as_json:
            write_json_line(outcome)
        elif outcome.violation:
            write(f"seed {outcome.seed}: {outcome.violation}: {outcome.message}")
            write(f"  corral sim replay {outcome.seed}{_minutes(minutes)}")
    if not as_json:
        write(_summary(outcomes))
    raise typer.Exit(1 if any(outcome.violation for outcome in outcomes) else 0)


@app.command()
def replay(
    seed: Annotated[int, typer.Argument(help="The seed.", metavar="SEED")],
    minutes: Minutes = 5.0,
    as_json: AsJson = False,
) -> None:
    """Play one seed and print its timeline: virtual time, actor, event. Exit 1 if an invariant is violated."""
    from corral.sim.run import run_seed

    outcome, entries = run_seed(seed, minutes, keep=True)
    if as_json:
        events = [{"at": entry.at, "actor": entry.actor, "text": entry.text} for entry in entries]
        write_json({"outcome": outcome, "events": events})
    else:
        sys.stdout.writelines(f"{entry}\n" for entry in entries)
        write(_summary([outcome]))
        if outcome.violation:
            write(f"{outcome.violation}: {outcome.message}")
    raise typer.Exit(1 if outcome.violation else 0)


def _minutes(minutes: float) -> str:
    return f" --minutes {minutes:g}" if minutes != 5.0 else ""


def _summary(outcomes: list[Outcome]) -> str:
    counted = [outcome for outcome in outcomes if outcome.counts]
    violated = sum(1 for outcome in outcomes if outcome.violation)
    faults: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.faults.items():
            faults[name] = faults.get(name, 0) + count
    virtual, cpu = sum(o.virtual for o in outcomes), sum(o.cpu for o in outcomes)
    lines = [
        f"{len(outcomes)} seeds, {len(counted)} with faults and teardowns, {violated} with a violation",
        f"{sum(o.runs for o in outcomes)} runs, {sum(o.jobs for o in outcomes)} jobs run,"
        f" {sum(o.teardowns for o in outcomes)} instances torn down",
        f"{virtual / 3600:.1f} virtual hours in {cpu:.1f} s of one core: {virtual / 3600 / max(cpu, 1e-9):.3f} h/s",
        "faults: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(faults.items())),
    ]
    return "\n".join(lines)
