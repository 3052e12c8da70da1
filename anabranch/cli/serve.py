"""`anabranch serve` starts a node; `anabranch demo` tells a story on one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import click

from anabranch.cli.beside import Beside
from anabranch.cli.shell import Failure, Shell, options
from anabranch.config import Settings


@click.command()
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 takes a free one. [default: 7447]")
@click.option("--store", metavar="URL", help="Keep the log in PostgreSQL: postgresql://… [default: SQLite in --data]")
@click.option("--private/--public", default=None, help="Only authenticated authors read and write, each their own.")
@click.option("--lake", metavar="DIR", help="Keep tables of the log there, by a pipeline beside the node.")
@options()
def serve(
    shell: Shell, host: str | None, port: int | None, store: str | None, private: bool | None, lake: str | None
) -> None:
    """Start a node and serve until SIGTERM or Ctrl-C.

    It is ready when GET /readyz answers 200. SIGTERM finishes what is under way and exits 0. SIGHUP reads the links of
    the settings file again; where there is none it ends the node, as closing a terminal does.
    """
    hung_up = _note_hangups() if shell.config_file is not None else lambda: False
    from anabranch.node.main import serve as serve_node  # takes a while

    def read() -> Settings:
        return shell.settings(host=host, port=port, store=store, private=private)

    settings = read()
    reload = read if shell.config_file is not None else None
    if lake is None:
        sys.exit(serve_node(settings, reload, as_json=shell.json, hung_up=hung_up))
    pipeline = Beside(settings.data, settings.store, lake, shell.config_file)
    try:
        code = serve_node(settings, reload, pipeline.remarks, pipeline.start, shell.json, hung_up)
    finally:
        pipeline.stop()
    sys.exit(code)


def _note_hangups() -> Callable[[], bool]:
    """Whether there has been a SIGHUP from now on: until the node has started, it is kept for it."""
    noted: list[int] = []
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
        signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    return lambda: bool(noted)


@click.command()
@click.option("--pace", type=click.FloatRange(0, 60), default=0.6, show_default=True, help="Seconds between steps.")
@click.option("--fast", is_flag=True, help="No pauses.")
@click.option("--debug", is_flag=True, help="Show a traceback where something fails.")
def demo(pace: float, fast: bool, debug: bool) -> None:
    """Tell a story on a real node: two devices part, and their histories join again.

    Starts a node of its own in a temporary folder and removes it afterwards. Every claim of the story is checked while
    it is told.
    """

    def tell() -> None:
        from anabranch.demo import Untrue, tell_story

        try:
            tell_story(0 if fast else pace)
        except Untrue as untrue:
            raise Failure(f"the story does not hold: {untrue}") from untrue

    Shell(None, None, False, debug).run(tell)
