"""`rlpipe view`: the pages of runs, served to this machine alone and kept up to date.

Only what the pages are made of is served, never a file by its path. A request under another host's
name is refused: a web page elsewhere cannot read runs by having its name point here.
"""

import argparse
import gzip
import sys
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from rlpipe.errors import ConfigError, RunError
from rlpipe.report.compare import Runs
from rlpipe.report.data import RunData, body
from rlpipe.report.figures import figures, index
from rlpipe.report.page import render, to_json
from rlpipe.report.spec import run_before
from rlpipe.report.tokens import pieces, tokenizer_file
from rlpipe.store import find_runs, read_row

ADDRESS = "127.0.0.1"
PORT = 8765
Query = Mapping[str, str]


class Missing(Exception):
    """There is nothing under that address."""


class Pages:
    """What is served, by path. A run is read when it is first asked for, and then goes on."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self._open: dict[Path, RunData] = {}
        self._lock = Lock()

    def find(self, path: str) -> tuple[Path | None, str]:
        """The run that a path is about, if any, and what is asked of it.

        Raises:
            Missing: there is no such run.
        """
        if not path.startswith("/run/"):
            return None, path.removeprefix("/")
        name, _, what = path.removeprefix("/run/").rpartition("/")
        run = self.runs.folders().get(unquote(name))
        if run is None:
            raise Missing(path)
        return run, what

    def asked(self, run: Path | None, query: Query) -> dict[str, Callable[[], Any]]:
        """The data that a page may ask for, by name."""
        if run is None:
            return {"runs.json": self.table}
        return {
            "figures.json": lambda: self.figures(run, query),
            "index.json": lambda: self.index(run),
            "trajectory.json": lambda: self.trajectory(run, query),
            "tokens.json": lambda: self.tokens(run, query),
        }

    def html(self, run: Path | None) -> str:
        kind, title = ("run", run.name) if run else ("runs", f"Runs in {self.runs.root}")
        return "".join(render(kind, title))

    def table(self) -> Any:
        with self._lock:
            return self.runs.table()

    def figures(self, run: Path, query: Query) -> Any:
        beside = [other.name for other in find_runs(run.parent, depth=1) if other != run]
        named = query.get("against")
        against = run.parent / named if named in beside and named else run_before(run)
        with self._lock:
            return figures(self._data(run), against=against) | {"beside": beside}

    def index(self, run: Path) -> Any:
        with self._lock:
            items = self._data(run).trajectories
            return index(items, [(-1, item.place) for item in items])

    def trajectory(self, run: Path, query: Query) -> Any:
        """One trajectory.

        Raises:
            Missing: there is none.
        """
        files = {file.stem: file for file in (run / "trajectories").glob("*.jsonl")}
        file, at = files.get(query.get("file", "")), query.get("at", "")
        row = read_row(file, int(at)) if file and at.isdecimal() else None
        if row is None:
            raise Missing(f"{query}")
        return body(row)

    def tokens(self, run: Path, query: Query) -> Any:
        turns = self.trajectory(run, query)["turns"]
        ids = {id for turn in turns for id in (*turn.get("given", ()), *turn.get("sampled", ()))}
        with self._lock:
            file = tokenizer_file(run, self._data(run).spec)
        return pieces(file, sorted(ids)) if file else {}

    def _data(self, run: Path) -> RunData:
        data = self._open.setdefault(run, RunData(run))
        data.refresh()
        return data


class Handler(BaseHTTPRequestHandler):
    """Answers for one server's pages."""

    server: "Server"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (ADDRESS, "localhost"):
            return self._send(403, "text/plain", "this server answers to localhost alone\n")
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            run, what = self.server.pages.find(url.path)
            if what == "":
                return self._send(200, "text/html", self.server.pages.html(run))
            self._data(run, what, query)
        except (Missing, FileNotFoundError):  # a run may be removed while it is looked at
            self._send(404, "text/plain", "there is no such thing\n")

    def _data(self, run: Path | None, what: str, query: Query) -> None:
        """Send data, unless the page has it and nothing was written since."""
        asked = self.server.pages.asked(run, query).get(what)
        if asked is None:
            raise Missing(what)
        tag = f'"{RunData(run).stamp}"' if run else ""
        if tag and tag == self.headers.get("If-None-Match"):
            return self._send(304, "application/json", "", tag)
        return self._send(200, "application/json", to_json(asked()), tag)

    def _send(self, status: int, kind: str, text: str, tag: str = "") -> None:
        data = gzip.compress(text.encode(), 1, mtime=0) if text else b""
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Encoding": "gzip",
            "Content-Length": str(len(data)),
            "ETag": tag,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "frame-ancestors 'none'",
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line."""


class Server(ThreadingHTTPServer):
    """Serves the runs of one folder."""

    daemon_threads = True

    def __init__(self, runs: Runs, port: int) -> None:
        super().__init__((ADDRESS, port), Handler)
        self.pages = Pages(runs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of a bug; a page that was closed while it was answered is none."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def open_server(path: Path, port: int | None = None) -> tuple[Server, str]:
    """A server of a run, or of the runs below a folder; and the address to open.

    Args:
        port: null takes the usual one, or any that is free.

    Raises:
        RunError: there is no run.
        ConfigError: the port is taken.
    """
    path = path.absolute()
    found = find_runs(path)
    if not found:
        raise RunError(f"{path} holds no run, and no folder below it does")
    alone = found == [path]
    runs = Runs(path.parent, depth=1) if alone else Runs(path)
    server = _bind(runs, port)
    # What takes a while to read is read before anyone waits for the page.
    if alone:
        server.pages.figures(path, {})
    else:
        server.pages.table()
    page = f"run/{quote(path.name)}/" if alone else ""
    return server, f"http://{ADDRESS}:{server.server_address[1]}/{page}"


def _bind(runs: Runs, port: int | None) -> Server:
    try:
        return Server(runs, PORT if port is None else port)
    except OSError as error:
        if port is None:
            return Server(runs, 0)
        raise ConfigError(f"view: port {port} cannot be used: {error.strerror}") from None


def main(args: Sequence[str]) -> None:
    """Serve what the arguments name until interrupted.

    Raises:
        RunError: there is no run.
        ConfigError: the port is taken.
    """
    parser = argparse.ArgumentParser(
        prog="rlpipe view",
        description="Show a run, or the runs below a folder, in a browser on this machine.",
    )
    parser.add_argument("path", metavar="RUN|FOLDER", type=Path, help="as in outputs/")
    parser.add_argument("--port", type=int, help=f"{PORT}, or a free one where that is taken")
    options = parser.parse_args(args)
    server, address = open_server(options.path, options.port)
    print(f"{address}  (Ctrl-C ends it)", flush=True)
    with server:
        server.serve_forever()
