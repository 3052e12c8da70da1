"""NIP-11: what a relay says about itself before anybody connects."""

from __future__ import annotations

from typing import Any

from anabranch import __version__
from anabranch.config import Settings
from anabranch.core.retention import Policy
from anabranch.core.revisions import STRATEGY
from anabranch.core.token import Log

SUPPORTED_NIPS: list[int | str] = [1, 9, 11, 40, 42, 45, 59, 62, 77, "CF", "NEG-REV"]


def information(settings: Settings, log: Log, policy: Policy, oldest_mtime: int | None, now: int) -> dict[str, Any]:
    """The information document. Real clients refuse it when one of the sync keys is missing.

    `oldest_mtime` is the smallest mtime of a revision whose payload is retained.
    """
    limits = settings.limits
    document: dict[str, Any] = {
        "name": settings.name,
        "description": settings.description,
        "software": "anabranch",
        "version": __version__,
        "supported_nips": SUPPORTED_NIPS,
        "limitation": {
            "max_message_length": limits.message_bytes,
            "max_subscriptions": limits.subscriptions,
            "max_filters": limits.filters,
            "max_limit": limits.query_limit,
            "default_limit": limits.query_limit,
            "max_subid_length": limits.subscription_id_characters,
            "max_event_tags": limits.tags,
            "max_content_length": limits.content_characters,
            "max_event_bytes": limits.event_bytes,
            "max_filter_values": limits.filter_values,
            "auth_required": settings.private,
            "payment_required": False,
            "restricted_writes": settings.private or settings.kinds == "sync",
        },
        "changes_feed": {
            "min_seq": log.floor if log.tip else 0,
            "max_seq": log.tip,
            "stream_id": log.stream,
            "epoch": log.epoch,
            "log": True,
            "tokens": True,
        },
        "snapshot_sync": {
            "changes_feed": True,
            "author_scoped": True,
            "retention": {
                "snapshot_retention": {
                    "mode": policy.mode,
                    "recent_count": policy.recent_count,
                    "min_created_at": policy.cutoff(now),
                }
            },
        },
        "revision_sync": {
            "strategy": STRATEGY,
            "current_head_negentropy": True,
            "changes_feed": True,
            "recipient_scoped": True,
            "batch_fetch": True,
            "retention": {"min_payload_mtime": oldest_mtime},
        },
    }
    if limits.created_at_ahead_seconds is not None:
        document["limitation"]["created_at_upper_limit"] = limits.created_at_ahead_seconds
    if limits.created_at_behind_seconds is not None:
        document["limitation"]["created_at_lower_limit"] = limits.created_at_behind_seconds
    for key in ("contact", "pubkey"):
        if (value := getattr(settings, key)) is not None:
            document[key] = value
    return document
