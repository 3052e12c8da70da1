"""`anabranch sim`: worlds in which everything goes wrong, and what must hold all the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from anabranch.cli.shell import Exit, Shell, options, rows

if TYPE_CHECKING:
    from anabranch import sim

BREACHES_SHOWN = 3


@click.command("sim")
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="How many worlds.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="The first one.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Only this one.")
@click.option("--plain", is_flag=True, help="Worlds in which one relay knows nothing but NIP-01, and perhaps NIP-77.")
@click.option("--trace", is_flag=True, help="With --seed: every line of what happened.")
@options()
def sim_command(shell: Shell, seeds: int, first_seed: int, seed: int | None, plain: bool, trace: bool) -> None:
    """Run nodes, links and people in virtual time, with crashes, partitions, lost writes and lying peers.

    Each seed is a world of its own, the same one every time. When its faults are over, all nodes must come to agree.
    Exit 3 when something that must hold was breached.
    """
    if seed is not None:
        _one(shell, seed, plain, trace)
        return
    if trace:
        raise click.UsageError("--trace goes with --seed: one world at a time")
    from anabranch import sim  # here, and not above: no other command is to wait for it

    done = 0

    with shell.progress("Simulating") as show:

        def told(outcome: sim.Outcome) -> None:
            nonlocal done
            done += 1
            show(done, seeds, f"seed {outcome.seed}")

        summary = sim.simulate(range(first_seed, first_seed + seeds), told, plain=plain)
    answer = {
        "seeds": summary.seeds,
        "operations": summary.operations,
        "seconds": round(summary.seconds, 3),
        "divergences": summary.divergences,
        "faults": summary.faults,
        "marks": summary.marks,
        "failed": [{"seed": one.seed, "breaches": one.breaches} for one in summary.failed],
    }
    shell.result(answer, _text(summary, plain))
    if summary.divergences:
        sys.exit(Exit.FOUND_WRONG)


def _one(shell: Shell, seed: int, plain: bool, trace: bool) -> None:
    from anabranch import sim

    outcome = sim.run(seed, keep_trace=trace, plain=plain)
    answer = {
        "seed": seed,
        "operations": outcome.operations,
        "virtual_seconds": round(outcome.seconds, 3),
        "breaches": outcome.breaches,
        "faults": outcome.faults,
        "marks": outcome.marks,
        "hash": outcome.hash,
        **({"trace": outcome.trace} if trace else {}),
    }
    fired = ", ".join(f"{name} {count}" for name, count in outcome.faults.items() if count) or "none"
    verdict = "\n".join(["breached:", *(f"  {one}" for one in outcome.breaches)]) if outcome.breaches else "all held"
    shell.result(
        answer,
        "".join(outcome.trace)
        + rows([("operations", f"{outcome.operations:,}"), ("faults", fired), ("trace hash", outcome.hash)])
        + f"\n{verdict}",
    )
    if outcome.breaches:
        sys.exit(Exit.FOUND_WRONG)


def _text(summary: sim.Summary, plain: bool) -> str:
    lines = [
        rows(
            [
                ("worlds", f"{summary.seeds:,}"),
                ("operations", f"{summary.operations:,} ({summary.operations / summary.seconds:,.0f}/s)"),
                ("faults", f"{sum(summary.faults.values()):,}"),
                ("divergences", f"{summary.divergences:,}"),
            ]
        )
    ]
    if not plain and summary.never_fired and summary.seeds >= 100:
        lines.append(f"never fired: {', '.join(summary.never_fired)}")
    for one in summary.failed[:10]:
        lines.append(f"seed {one.seed}: look closer with `anabranch sim --seed {one.seed}{' --plain' * plain} --trace`")
        lines += [f"  {breach}" for breach in one.breaches[:BREACHES_SHOWN]]
    return "\n".join(lines)
