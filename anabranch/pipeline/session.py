"""A Spark session that starts anywhere and says nothing.

`session()` is Spark on all cores of this machine; `session("spark://…")` is a cluster. On one machine it listens on the
loopback address only. Java is found or brought along, the workers run this very Python, and the terminal stays the
user's: errors are raised, not printed. Where its Java has ended, killed perhaps for its memory, the next call starts
another.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from anabranch.pipeline.java import java_home

MASTER = "local[*,4]"
"""All cores, and a task that fails is tried up to four times: plain `local[*]` tries once."""

END_SECONDS = 15.0

CONF = Path(__file__).parent / "conf"

DEFAULTS = {
    "spark.app.name": "anabranch",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "32",  # joined again to fewer where there is little
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "32m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
    "spark.sql.parquet.compression.codec": "zstd",
    # Arrow's own allocator gives memory back to the system all the time, and takes it anew, page by page.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.sql.maxConcurrentOutputFileWriters": "40",  # what is split into a few folders is not sorted for it
    # Grouping keeps so many groups in memory before it sorts instead. The default of 128 sorts always.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
}


def is_local(master: str) -> bool:
    return master.startswith("local") or "://127.0.0.1" in master or "://localhost" in master


def session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process: the one that is there, or a new one. `conf` rules over our defaults."""
    _forget_the_dead()
    master = master or os.environ.get("SPARK_MASTER") or MASTER
    active = SparkSession.getActiveSession()
    if active is None:
        _prepare(master)
    settings = {**DEFAULTS, **(_loopback() if is_local(master) else {}), **(conf or {})}
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        if active is None or name in (conf or {}):
            builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return builder.getOrCreate()


def drop() -> None:
    """Have Spark drop what it is doing; where it has not started yet, it does not."""
    context = SparkContext._active_spark_context
    if context is None:
        end()
        return
    try:
        context.cancelAllJobs()
    except Exception:  # its Java has ended before
        pass


def end() -> None:
    """Stop Spark, and wait until its Java has ended: nothing is left behind."""
    stopping = threading.Thread(target=_stop, daemon=True)  # a connection that was torn away answers nobody
    stopping.start()
    stopping.join(END_SECONDS)
    for process in _java:
        if SparkContext._gateway is None:  # it was just being started
            process.kill()
        process.stdin.close()  # that tells it to end
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _forget_the_dead()


def _stop() -> None:
    context = SparkContext._active_spark_context
    try:
        if context is not None:
            context.stop()
    except Exception:  # its Java has ended before
        pass


_java: list[Any] = []
"""The process that Java runs in. PySpark tells it only once it has answered."""


def _start_java(*arguments: Any, **more: Any) -> Any:
    # What ends all our processes at once is for us: we tell Java when we have no more use for it.
    _java[:] = [subprocess.Popen(*arguments, process_group=0, **more)]
    return _java[0]


java_gateway.Popen = _start_java


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """Py4J writes what it raises into the root log too, with a traceback, onto the user's terminal."""
    return record.module != "java_gateway"


logging.getLogger().addFilter(_is_not_py4js)
logging.getLogger("py4j").setLevel(logging.CRITICAL)


def last_words(error: Exception) -> str:
    """What went wrong in one line, out of all that Spark says about it: the last thing that was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (raised or lines or [type(error).__name__])[-1]


def _forget_the_dead() -> None:
    """PySpark goes on asking a Java that has ended; make it start another."""
    if _java and _java[0].poll() is not None:
        _java.clear()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


def _loopback() -> dict[str, str]:
    return {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _prepare(master: str) -> None:
    """What has to stand in the environment before Java starts."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("SPARK_CONF_DIR", str(CONF))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).parents[2])
    if not (Path(root) / "pyspark").exists():  # we are not installed beside Spark: the workers have to be told where
        others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *others])
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
