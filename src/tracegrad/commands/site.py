"""`tracegrad serve`: an exported site on a local server."""

from __future__ import annotations

import functools
import http.server
import os
import urllib.parse
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracegrad.errors import InputError

TYPES = {".js": "text/javascript", ".safetensors": "application/octet-stream", ".json": "application/json"}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of one folder, never from a cache, with the types that browsers insist on (Windows may say otherwise).

    - A request must name this server as `localhost`, `127.0.0.1` or `[::1]`. Another website can point its own name at
      127.0.0.1, and a browser would then let its scripts read what is served.
    - What a link leads to outside of the folder, what is no file, and lists of folders do not exist.
    """

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, **TYPES}  # noqa: RUF012
    timeout = 30  # seconds in which a connection must say something

    def send_head(self) -> Any:
        """The answer's head, and its file; None after an error."""
        assert isinstance(self.server, http.server.HTTPServer)
        if not is_local([str(h) for h in self.headers.get_all("Host", [])], self.server.server_port):
            self.send_error(421, "Misdirected Request", "this server answers to localhost only")
            return None
        path = Path(self.translate_path(self.path))
        if path.is_dir() and urllib.parse.urlsplit(self.path).path.endswith("/"):
            path /= "index.html"
        if not (path.is_dir() or path.is_file()) or not inside(path, Path(self.directory)):
            self.send_error(404, "File not found")
            return None
        return super().send_head()

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        """No lists."""
        self.send_error(404, "File not found")

    def end_headers(self) -> None:
        """Add what every answer has."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


def is_local(hosts: Sequence[str], port: int) -> bool:
    """Does a request with these Host headers, of which there must be one, mean the server at this port?"""
    names = ("localhost", "127.0.0.1", "[::1]")
    known = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set[str]())
    return len(hosts) == 1 and hosts[0].strip().lower() in known


def inside(path: Path, folder: Path) -> bool:
    """Does `path`, its links followed, lie in `folder`?"""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links in a circle; a zero byte in a name
        return False


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """A server of `folder` for this computer only. InputError if there is no page; OSError if the port is taken."""
    if not (folder / "index.html").is_file():
        raise InputError(f"serve: {folder} has no index.html; train.export(path) or `tracegrad demo` writes one")
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Handler, directory=str(folder)))


def serve(folder: Path, port: int = 0, *, browse: bool = True) -> int:
    """Serve `folder` until Ctrl+C, and open it in the browser. Returns the exit code."""
    with server(folder, port) as running:
        url = f"http://localhost:{running.server_port}/"
        print(f"{folder} is at {url} (Ctrl+C ends it)", flush=True)
        if browse:
            webbrowser.open(url)
        running.serve_forever()
    return 0
