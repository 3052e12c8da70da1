"""`anabranch pipeline retention`: what policies would keep and drop, and handing a plan to a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from anabranch.cli.shell import Exit, Failure, Shell, options, rows, size
from anabranch.cli.spark import failures, spark_options, start_spark, watched
from anabranch.cli.status import describe_policy
from anabranch.cli.units import Time
from anabranch.core.retention import Policy
from anabranch.node import now

if TYPE_CHECKING:
    from anabranch.pipeline.jobs.retention import Applied, Summary

OF_THE_SETTINGS = "settings"


@click.command("retention")
@click.option("--lake", "folder", required=True, metavar="DIR", help="Folder of the tables.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="As current_only or nondominated_plus_recent_history:4,payload_days=30; may be given again. [the settings']",
)
@click.option("--at", type=Time(), metavar="TIME", help="As it would be then. [now]")
@click.option("--top", type=click.IntRange(0), default=10, help="So many documents and authors that lose most. [10]")
@click.option("--apply", "node", metavar="URL", help="Hand the plan to this node, which checks all of it again.")
@click.option("--token", metavar="TOKEN", help="The node's admin token. [ANABRANCH_ADMIN_TOKEN]")
@spark_options
@options()
def retention_command(
    shell: Shell,
    folder: str,
    policies: tuple[str, ...],
    at: int | None,
    top: int,
    node: str | None,
    token: str | None,
    master: str | None,
    conf: tuple[str, ...],
    wait: float,
) -> None:
    """Say what a policy would keep and drop: operations and bytes, by reason, age, author and document.

    Nothing goes but with --apply: then the node drops of the plan what its own policy lets go at that moment.
    """
    settings = shell.settings()
    with failures(shell), shell.progress("Retention") as show:
        show(0, None, "starting Spark")
        from anabranch.pipeline.jobs import retention
        from anabranch.pipeline.lake import Lake
        from anabranch.pipeline.node_admin import NodeAdmin

        try:
            asked = {text: retention.policy(text) for text in policies}
        except retention.BadPolicy as error:
            raise Failure(str(error), Exit.USAGE) from error
        asked = asked or {OF_THE_SETTINGS: settings.retention.policy()}
        if node is not None and len(asked) > 1:
            raise Failure("one plan at a time: name one --policy to --apply", Exit.USAGE)
        admin = None if node is None else NodeAdmin(node, token or settings.admin_token)
        log = None if admin is None else admin.log()  # before Spark starts: whether it lets us
        lake, moment = Lake(folder), now.seconds() if at is None else at
        applied = None
        with start_spark(master, conf) as spark:
            started = now.monotonic()
            with watched(spark, show):
                lake.on(spark)
                known = None if log is None else retention.of_log(lake, log)
                where = retention.standing_of(lake, moment) if known is None else retention.standing(*known, moment)
                standing = where.persist()
                found = {
                    text: retention.summarise(retention.plan(standing, policy, moment), moment, top)
                    for text, policy in asked.items()
                }
            if admin is not None and log is not None and known is not None:
                (policy,) = asked.values()
                applied = retention.apply(
                    known[0],
                    retention.plan(standing, policy, moment),
                    admin,
                    log,
                    lambda done, dropped: show(done, None, f"{dropped:,} of {done:,} dropped"),
                )
            taken = now.monotonic() - started
    answer: dict[str, Any] = {
        "at": moment,
        "policies": {
            text: {"policy": msgspec.to_builtins(policy), **msgspec.to_builtins(found[text])}
            for text, policy in asked.items()
        },
        "applied": msgspec.to_builtins(applied),
        "seconds": round(taken, 3),
    }
    shell.result(answer, "\n\n".join(_text(text, policy, found[text]) for text, policy in asked.items()))
    for text, policy in asked.items():
        if not policy.compacts:
            shell.note(f"{text}: no payload goes by age")
    if applied is not None:
        _tell(shell, applied, node or "")
    shell.note(f"{taken:.1f} s")


def _text(name: str, policy: Policy, found: Summary) -> str:
    total = found.total
    pairs = [
        ("policy", name),
        ("means", describe_policy(policy)),
        ("stays", f"{total.keep:,} operations, {size(total.keep_bytes)}"),
        ("goes", f"{total.drop:,} operations, {size(total.drop_bytes)}"),
        *((f"  {reason}", f"{count:,}") for reason, count in found.reasons.items()),
    ]
    for title, shares in (("by age", found.ages), ("by author", found.authors), ("by document", found.documents)):
        for share in shares:
            if share.drop:
                gone = f"{share.drop:,} of {share.drop + share.keep:,}, {size(share.drop_bytes)}"
                pairs.append((f"{title}: {share.name[:16]}", gone))
    return rows(pairs)


def _tell(shell: Shell, applied: Applied, node: str) -> None:
    """What the node has made of the plan."""
    refused = ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in sorted(applied.refused.items()))
    shell.note(
        f"{node} dropped {applied.dropped:,} of {applied.candidates:,} payloads, {size(applied.bytes)}"
        + (f"; the rest stays: {refused}" if refused else "")
    )
    if applied.candidates and applied.refused.get("kept", 0) == applied.candidates:
        shell.note("The node keeps all of it by its own policy: set that first, with PATCH /admin/retention.")
