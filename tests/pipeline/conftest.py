"""One Spark session for all tests of the pipeline, and logs to feed it with."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from logs import START, make_store
from pyspark.sql import SparkSession

from anabranch.cli import main
from anabranch.pipeline.generate import Plan, generate
from anabranch.pipeline.jobs.audit import EVERYTHING, Audit, audit
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.replicas import Reading, Replica, Scope, opened
from anabranch.pipeline.session import session
from anabranch.store.sqlite import SqliteStore

READING = Reading()
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # The tests are many small queries: compile quickly, not well, and no code for each.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]", SMALL)
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ANABRANCH_"):
            monkeypatch.delenv(name)


@pytest.fixture
def new_lake(spark: SparkSession, tmp_path: Path) -> Callable[[], Lake]:
    made: list[Lake] = []

    def make() -> Lake:
        made.append(Lake(tmp_path / f"lake-{len(made)}", spark, create=True))
        return made[-1]

    return make


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of both families, as a dump."""
    file = tmp_path_factory.mktemp("generated") / "history.jsonl"
    generate(Plan(operations=1_500, documents=150, seed=11, content_bytes=100), file)
    return file


@pytest.fixture(scope="session")
def generated_store(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same history in a node's store."""
    folder = tmp_path_factory.mktemp("store") / "data"
    make_store(folder, generated.read_bytes().splitlines())
    SqliteStore.inspect(folder)
    return folder


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A command as a terminal gives it, but on the Spark of the tests, which goes on."""
    monkeypatch.setattr("anabranch.pipeline.session.session", lambda master=None, conf=None: spark)
    monkeypatch.setattr("anabranch.pipeline.session.end", lambda: None)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(main, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def look(spark: SparkSession, tmp_path: Path) -> Callable[..., tuple[Audit, list[Replica]]]:
    """An audit of replicas by their names, and the replicas as it has read them."""

    def at(*names: str, scope: Scope = EVERYTHING, reading: Reading = READING) -> tuple[Audit, list[Replica]]:
        replicas = opened(spark, names, tmp_path / f"scratch-{len(list(tmp_path.iterdir()))}", reading)
        return audit(replicas, START + 1_000_000, scope), replicas

    return at
