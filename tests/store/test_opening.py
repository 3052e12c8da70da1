"""The store that the settings name is opened as they say."""

from pathlib import Path

import pytest

from anabranch.config import Settings
from anabranch.store.opening import open_store


@pytest.mark.parametrize(("durability", "synchronous"), [(Settings().durability, 2), ("normal", 1)])
def test_what_is_acknowledged_is_on_disk_unless_the_settings_say_otherwise(
    tmp_path: Path, durability: str, synchronous: int
):
    store = open_store(tmp_path, durability=durability)
    assert store.writer._db.pragma("synchronous") == synchronous
    store.close()
