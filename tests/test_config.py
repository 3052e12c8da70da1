"""Settings: flags over environment over file over defaults, and an error that says what would be right."""

from pathlib import Path

import msgspec
import pytest

from anabranch import config
from anabranch.config import ConfigError, Settings, load, settings_table
from anabranch.core.nostr import Limits
from anabranch.core.operation import KindPolicy
from anabranch.core.retention import Mode, Policy, ReplayWindow

TABLE = settings_table()


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "anabranch.toml"
        file.write_text(text)
        return file

    return write


def get(settings: Settings, path: tuple[str, ...]):
    value = settings
    for name in path:
        value = getattr(value, name)
    return value


# --- precedence ----------------------------------------------------------------------------------------------------


def test_without_anything_the_defaults_rule():
    assert load(environment={}) == Settings()
    for setting in TABLE:
        assert get(Settings(), setting.path) == setting.default, setting.key


def test_flags_rule_over_environment_over_file_over_defaults(write):
    file = write("port = 1\nname = 'file'\nhost = 'file'\n[retention]\nrecent_count = 5\ninterval_seconds = 7\n")
    environment = {
        "ANABRANCH_NAME": "environment",
        "ANABRANCH_HOST": "environment",
        "ANABRANCH_RETENTION_RECENT_COUNT": "6",
    }
    settings = load(file, environment, {"host": "flag", "port": None})
    assert (settings.port, settings.name, settings.host) == (1, "environment", "flag")
    assert (settings.retention.recent_count, settings.retention.interval_seconds) == (6, 7)
    assert settings.description == Settings().description


def test_a_flag_may_name_a_setting_of_a_section():
    assert load(environment={}, flags={"limits.tags": 7}).limits.tags == 7


def test_variables_of_others_are_not_looked_at():
    assert load(environment={"PATH": "x", "ANABRANCHES": "x", "anabranch_port": "x"}) == Settings()


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.key)
def test_every_setting_says_what_it_is_for(setting):
    assert len(setting.description) > 8
    assert setting.description == setting.description.strip()


def test_every_setting_has_a_name_and_a_variable_of_its_own():
    assert len({setting.key for setting in TABLE}) == len({setting.variable for setting in TABLE}) == len(TABLE)
    assert {"ANABRANCH_PRIVATE", "ANABRANCH_RETENTION_MODE", "ANABRANCH_LIMITS_EVENT_BYTES"} <= {
        setting.variable for setting in TABLE
    }


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.key)
def test_every_setting_can_be_set_from_the_environment_and_the_file_to_what_it_is(setting, write):
    """Its default, spelled as text and as TOML, is read back as itself."""
    value = setting.default
    if value is None:
        return
    plain = msgspec.to_builtins(value)
    text = (
        ",".join(map(str, plain))
        if isinstance(plain, tuple | list)
        else str(plain).lower()
        if isinstance(plain, bool)
        else str(plain)
    )
    assert get(load(environment={setting.variable: text}), setting.path) == value
    toml = msgspec.json.encode(plain).decode()
    section = f"[{'.'.join(setting.path[:-1])}]\n" if setting.path[1:] else ""
    assert get(load(write(f"{section}{setting.path[-1]} = {toml}\n"), {}), setting.path) == value


# --- the environment -------------------------------------------------------------------------------------------------


def test_text_becomes_the_settings_type():
    settings = load(
        environment={
            "ANABRANCH_PRIVATE": "true",
            "ANABRANCH_PORT": "0",
            "ANABRANCH_ADMIN_TOKEN": "123",
            "ANABRANCH_COMPANION_KINDS": "1, 7,30023",
            "ANABRANCH_PASS_THROUGH_KINDS": "",
            "ANABRANCH_RETENTION_MODE": "current_only",
            "ANABRANCH_RETENTION_PAYLOAD_DAYS": "30",
        }
    )
    assert (settings.private, settings.port, settings.admin_token) == (True, 0, "123")
    assert (settings.companion_kinds, settings.pass_through_kinds) == ((1, 7, 30_023), ())
    assert (settings.retention.mode, settings.retention.payload_days) == (Mode.CURRENT_ONLY, 30)


@pytest.mark.parametrize("text, value", [("true", True), ("1", True), ("false", False), ("0", False)])
def test_yes_and_no_are_read(text, value):
    assert load(environment={"ANABRANCH_PRIVATE": text}).private is value


OPTIONAL_KEYS = [
    "contact", "pubkey", "relay_url", "admin_token", "verify_workers", "retention.payload_days",
    "retention.deleted_documents", "retention.replay_count", "retention.replay_age_seconds", "retention.replay_bytes",
    "limits.created_at_ahead_seconds", "limits.created_at_behind_seconds",
]  # fmt: skip


@pytest.mark.parametrize("key", OPTIONAL_KEYS)
def test_an_empty_variable_is_unset_where_that_is_possible(key, write):
    setting = next(setting for setting in TABLE if setting.key == key)
    settings = load(environment={setting.variable: ""})
    assert get(settings, setting.path) is None


def test_settings_with_a_default_of_none_can_all_be_unset():
    assert {setting.key for setting in TABLE if setting.default is None} <= set(OPTIONAL_KEYS)


WRONG_VARIABLES = {
    "ANABRANCH_PORT": ["", "x", "-1", "65536", "1.5", "0x10"],
    "ANABRANCH_PRIVATE": ["", "maybe", "2"],
    "ANABRANCH_KINDS": ["", "some", "ALL"],
    "ANABRANCH_LOG_LEVEL": ["trace"],
    "ANABRANCH_DURABILITY": ["off"],
    "ANABRANCH_COMPANION_KINDS": ["x", "1;2", "65536", "-1", "1.0"],
    "ANABRANCH_RETENTION_MODE": ["", "keep_all"],
    "ANABRANCH_RETENTION_RECENT_COUNT": ["0", "", "many"],
    "ANABRANCH_RETENTION_PAYLOAD_DAYS": ["-1", "x", "1.5"],
    "ANABRANCH_LIMITS_TAGS": ["0", "-5"],
}


@pytest.mark.parametrize("variable, text", [(name, text) for name, texts in WRONG_VARIABLES.items() for text in texts])
def test_a_variable_that_cannot_be_read_is_named(variable, text):
    with pytest.raises(ConfigError) as refusal:
        load(environment={variable: text})
    setting = next(setting for setting in TABLE if setting.variable == variable)
    assert variable in str(refusal.value) or setting.key in str(refusal.value)


@pytest.mark.parametrize(
    "variable, nearest",
    [
        ("ANABRANCH_PROT", "ANABRANCH_PORT"),
        ("ANABRANCH_RETENTION_PAYLOAD_DAY", "ANABRANCH_RETENTION_PAYLOAD_DAYS"),
        ("ANABRANCH_LIMIT_TAGS", "ANABRANCH_LIMITS_TAGS"),
        ("ANABRANCH_port", "ANABRANCH_PORT"),
    ],
)
def test_an_unknown_variable_names_the_nearest_known_one(variable, nearest):
    with pytest.raises(ConfigError, match=f"unknown variable {variable}; did you mean `{nearest}`"):
        load(environment={variable: "1"})


@pytest.mark.parametrize(
    "variable, text, allowed",
    [
        ("ANABRANCH_RETENTION_MODE", "curent_only", "current_only, nondominated_plus_recent_history or full_retention"),
        ("ANABRANCH_KINDS", "1,2", "all or sync"),
        ("ANABRANCH_LOG_LEVEL", "trace", "debug, info, warning or error"),
        ("ANABRANCH_PRIVATE", "maybe", "true or false"),
        ("ANABRANCH_PUBKEY", "npub1", "64 hexadecimal digits, lower-case"),
    ],
)
def test_a_value_that_is_not_allowed_is_told_with_those_that_are(write, variable, text, allowed):
    with pytest.raises(ConfigError) as refused:
        load(environment={variable: text})
    assert str(refused.value) == f"{variable}={text!r}: must be {allowed}"


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, key, nearest",
    [
        ("prot = 1", "prot", "port"),
        ("[retention]\npayload_day = 1", "retention.payload_day", "retention.payload_days"),
        ("[retentions]\nmode = 'x'", "retentions.mode", "retention.mode"),
        ("[limits]\nevents_bytes = 1", "limits.events_bytes", "limits.event_bytes"),
        ("mode = 'current_only'", "mode", None),
        ("retention = 5", "retention", None),
        ("[[retention]]\nmode = 'x'", "retention", None),
        ("[port]\nx = 1", "port.x", "port"),
        ("zzzzzzzzzzzz = 1", "zzzzzzzzzzzz", None),
        ("[[links]]\npear = 'wss://relay.example'", "links.pear", "peer"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(write, text, key, nearest):
    with pytest.raises(ConfigError, match=f"unknown key `{key}`") as refusal:
        load(write(text), {})
    if nearest is not None:
        assert f"did you mean `{nearest}`" in str(refusal.value)


@pytest.mark.parametrize("text", ["[links]\n", "[links]\npeer = 'ws://example.org'\n", "[links.one]\n"])
def test_links_with_one_pair_of_brackets_are_told_of_the_other(write, text):
    with pytest.raises(ConfigError, match=r"each link is a table `\[\[links\]\]`, with two"):
        load(write(text), {})


def test_an_unknown_table_without_a_key_is_named_too(write):
    with pytest.raises(ConfigError, match=r"unknown table `\[retentoin\]` in .*; did you mean `retention`\?"):
        load(write("[retentoin]\n"), {})
    assert load(write("[retention]\n[limits]\n"), {}) == config.Settings()


@pytest.mark.parametrize(
    "text, key",
    [
        ("port = 'x'", "port"),
        ("port = true", "port"),
        ("port = 65536", "port"),
        ("private = 1", "private"),
        ("private = 'yes'", "private"),
        ("companion_kinds = [1, 'x']", "companion_kinds"),
        ("companion_kinds = 1", "companion_kinds"),
        ("[retention]\nrecent_count = 0", "retention.recent_count"),
        ("[retention]\npayload_days = -1", "retention.payload_days"),
        ("[retention]\nmode = 'none'", "retention.mode"),
        ("[limits]\ntags = 0", "limits.tags"),
        ("[limits]\nfilter_values = 10_001", "limits.filter_values"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_key(write, text, key):
    with pytest.raises(ConfigError, match=f"`{key}"):
        load(write(text), {})


def test_a_file_that_cannot_be_read_is_named(tmp_path, write):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.toml"):
        load(tmp_path / "nowhere.toml", {})
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path, {})
    for text in ("port = ", "port 1", "a = 1\na = 2"):
        with pytest.raises(ConfigError, match="is not valid TOML"):
            load(write(text), {})
    (tmp_path / "latin").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(tmp_path / "latin", {})


def test_an_unknown_flag_is_an_error():
    with pytest.raises(ConfigError):
        load(environment={}, flags={"prot": 1})
    with pytest.raises(ConfigError):
        load(environment={}, flags={"retention.days": 1})


@pytest.mark.parametrize(
    "flags, named",
    [
        ({"host": ""}, "host is empty; leave it out for 127.0.0.1"),
        ({"data": " "}, "data is empty"),
        ({"relay_url": "relay.example"}, "write wss://relay.example"),
        ({"relay_url": "wss://"}, "write wss://relay.example"),
        ({"relay_url": "https://relay.example"}, "write wss://relay.example"),
        ({"pubkey": "npub1"}, "pubkey"),
    ],
)
def test_an_address_that_is_none_is_refused_with_what_would_be_right(flags, named):
    with pytest.raises(ConfigError) as refusal:
        load(environment={}, flags=flags)
    assert named in str(refusal.value)


def test_an_empty_host_in_the_environment_does_not_open_the_node_to_the_network():
    with pytest.raises(ConfigError, match="host is empty"):
        load(environment={"ANABRANCH_HOST": ""})


# --- settings that do not go together --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, named",
    [
        ({"companion_kinds": (1, 7), "pass_through_kinds": (7,)}, "kind 7 "),
        ({"snapshot_kinds": (42_061, 1)}, "[1]"),
        ({"companion_kinds": (1, 20_000)}, "companion_kinds [20000] are ephemeral"),
        ({"pass_through_kinds": (22_242, 29_999, 7)}, "pass_through_kinds [22242, 29999] are ephemeral"),
        ({"limits.event_bytes": 300_000}, "limits.message_bytes"),
        ({"limits.message_bytes": 1_000}, "limits.event_bytes"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags, named):
    with pytest.raises(ConfigError) as refusal:
        load(environment={}, flags=flags)
    assert named in str(refusal.value)


def test_a_kind_is_a_snapshot_or_a_companion_and_not_both():
    for other in ("companion_kinds", "pass_through_kinds"):
        with pytest.raises(ConfigError):
            load(environment={}, flags={"snapshot_kinds": (42_061,), other: (42_061,)})


# --- what the layers below get ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["schlüssel-des-betreibers", "one\nline-and-another", " a-space-before", "behind\n"])
def test_a_token_that_no_request_can_carry_is_refused_and_not_shown(token):
    with pytest.raises(ConfigError, match="admin_token is none that a request can carry") as refused:
        load(environment={"ANABRANCH_ADMIN_TOKEN": token})
    assert token.strip() not in str(refused.value)
    assert load(environment={"ANABRANCH_ADMIN_TOKEN": "correct horse battery staple"}).admin_token


def test_the_defaults_are_those_of_the_rules():
    settings = Settings()
    assert settings.event_limits() == Limits()
    assert settings.kind_policy() == KindPolicy()
    assert settings.retention.policy() == Policy()
    assert settings.retention.window() == ReplayWindow()


def test_current_only_without_days_means_at_once():
    policy = load(environment={"ANABRANCH_RETENTION_MODE": "current_only"}).retention.policy()
    assert policy == Policy(Mode.CURRENT_ONLY, payload_days=0) and policy.compacts
    with_days = load(environment={}, flags={"retention.mode": "current_only", "retention.payload_days": 3})
    assert with_days.retention.policy().payload_days == 3


def test_a_sync_node_takes_only_what_it_is_told_of():
    settings = load(environment={"ANABRANCH_KINDS": "sync", "ANABRANCH_COMPANION_KINDS": "1"})
    assert settings.kind_policy() == KindPolicy(True, frozenset({1}))


def test_the_window_carries_every_bound():
    retention = load(
        environment={},
        flags={"retention.replay_count": 1, "retention.replay_age_seconds": 2, "retention.replay_bytes": 3},
    ).retention
    assert retention.window() == ReplayWindow(1, 2, 3)


def test_an_event_is_as_large_and_as_old_as_the_settings_let_it_be():
    flags = {"event_bytes": 1, "tags": 2, "content_characters": 3}
    times = {"created_at_ahead_seconds": 4, "created_at_behind_seconds": 5}
    settings = load(environment={}, flags={f"limits.{name}": value for name, value in (flags | times).items()})
    assert settings.event_limits() == Limits(1, 2, 3, 4, 5)


def test_retention_is_as_the_settings_say():
    values = {"mode": "full_retention", "recent_count": 1, "payload_days": 2, "deleted_documents": 3}
    flags = {f"retention.{name}": value for name, value in (values | {"deleted_age_seconds": 4}).items()}
    assert load(environment={}, flags=flags).retention.policy() == Policy(Mode.FULL, 1, 2, 3, 4)


def test_the_prefix_is_one_word():
    assert config.PREFIX == "ANABRANCH_"


def test_all_that_is_wrong_is_told_at_once(write):
    file = write("prot = 1\nprivate = 'maybe'\n[retention]\nrecent_count = 0\n")
    found = config.problems(file, {"ANABRANCH_PORT": "x", "ANABRANCH_NAM": "y", "ANABRANCH_HOST": "fine"})
    assert len(found) == len(set(found)) == 5
    for named in ("`prot`", "`private`", "`retention.recent_count`", "ANABRANCH_PORT", "ANABRANCH_NAM"):
        assert sum(named in text for text in found) == 1, named
    assert config.problems(write("port = 1"), {}) == []
    assert config.in_file(write("port = 1\n[retention]\nmode = 'x'\n")) == {"port", "retention.mode"}


def test_the_file_can_say_none_where_a_default_can_be_unset(tmp_path: Path):
    file = tmp_path / "anabranch.toml"
    file.write_text('[retention]\ndeleted_documents = "none"\n')
    assert load(file, environment={}).retention.deleted_documents is None
