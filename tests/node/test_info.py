"""NIP-11 says what the settings say: nothing in it is a number of its own."""

import msgspec
import pytest

from anabranch.config import LimitSettings, Settings, load
from anabranch.core.retention import DAY, Policy
from anabranch.core.token import Log, Position
from anabranch.node.info import information

NOW = 1_790_000_000
LOG = Log("stream", "epoch", Position(1), Position(9))


def told(settings: Settings, policy: Policy | None = None) -> dict:
    return information(settings, LOG, policy or settings.retention.policy(), None, NOW)


def test_every_limit_that_is_told_is_the_one_that_is_set() -> None:
    limits = LimitSettings(
        message_bytes=20_001,
        event_bytes=20_002,
        tags=3,
        content_characters=4,
        created_at_ahead_seconds=5,
        created_at_behind_seconds=6,
        subscriptions=7,
        subscription_id_characters=8,
        filters=9,
        filter_values=10,
        query_limit=11,
    )
    assert told(Settings(limits=limits))["limitation"] == {
        "max_message_length": 20_001,
        "max_event_bytes": 20_002,
        "max_event_tags": 3,
        "max_content_length": 4,
        "created_at_upper_limit": 5,
        "created_at_lower_limit": 6,
        "max_subscriptions": 7,
        "max_subid_length": 8,
        "max_filters": 9,
        "max_filter_values": 10,
        "max_limit": 11,
        "default_limit": 11,
        "auth_required": False,
        "payment_required": False,
        "restricted_writes": False,
    }
    without = msgspec.structs.replace(limits, created_at_ahead_seconds=None, created_at_behind_seconds=None)
    assert not {name for name in told(Settings(limits=without))["limitation"] if name.startswith("created_at")}


@pytest.mark.parametrize(
    ("flags", "auth", "restricted"),
    [({}, False, False), ({"private": True}, True, True), ({"kinds": "sync"}, False, True)],
)
def test_a_node_that_does_not_take_everything_of_everybody_says_so(flags: dict, auth: bool, restricted: bool) -> None:
    limitation = told(load(environment={}, flags=flags))["limitation"]
    assert (limitation["auth_required"], limitation["restricted_writes"]) == (auth, restricted)


@pytest.mark.parametrize(("days", "since"), [(None, None), (0, NOW), (30, NOW - 30 * DAY)])
def test_the_retention_that_is_told_is_the_one_in_force(days: int | None, since: int | None) -> None:
    flags = {"retention.recent_count": 7, "retention.payload_days": 1}
    policy = msgspec.structs.replace(load(environment={}, flags=flags).retention.policy(), payload_days=days)
    retention = told(Settings(), policy)["snapshot_sync"]["retention"]["snapshot_retention"]
    assert retention == {"mode": "nondominated_plus_recent_history", "recent_count": 7, "min_created_at": since}
