"""`tracegrad serve`: serve an exported site on this computer."""

from __future__ import annotations

import functools
import http.server
import os
import sys
import urllib.parse
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracegrad.errors import InputError

TYPES = {".js": "text/javascript", ".safetensors": "application/octet-stream", ".json": "application/json"}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of one folder, uncached, with the media types that browsers require (Windows can have others).

    - A request must name this server as `localhost`, `127.0.0.1` or `[::1]`. Another website could point its own name
      to 127.0.0.1, and then the browser would let scripts of that website read the files.
    - Links that leave the folder, special files, and lists of folders give 404.
    """

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, **TYPES}  # noqa: RUF012
    timeout = 30  # seconds until an idle connection is closed

    def send_head(self) -> Any:
        """Send the head of the response, and return its file; None after an error."""
        assert isinstance(self.server, http.server.HTTPServer)
        if not is_local([str(h) for h in self.headers.get_all("Host", [])], self.server.server_port):
            self.send_error(421, "Misdirected Request", "this server answers to localhost only")
            return None
        if not self._is_served():
            self.send_error(404, "File not found")
            return None
        return super().send_head()

    def _is_served(self) -> bool:
        """Return whether the request is for a file or folder of the site."""
        path = Path(self.translate_path(self.path))
        try:
            if path.is_dir() and urllib.parse.urlsplit(self.path).path.endswith("/"):
                path /= "index.html"
            return (path.is_dir() or path.is_file()) and inside(path, Path(self.directory))
        except OSError:  # a name too long for the file system
            return False

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        """Send 404 instead of a list."""
        self.send_error(404, "File not found")

    def end_headers(self) -> None:
        """Add the headers that every response has."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""


class Server(http.server.ThreadingHTTPServer):
    """Prints no traceback when a browser leaves before it has all of a file, as on every reload."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report all errors except those of a lost or slow connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def is_local(hosts: Sequence[str], port: int) -> bool:
    """Return whether a request has exactly one Host header, and this header names the server at this port."""
    names = ("localhost", "127.0.0.1", "[::1]")
    known = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set[str]())
    return len(hosts) == 1 and hosts[0].strip().lower() in known


def inside(path: Path, folder: Path) -> bool:
    """Return whether `path` is inside `folder` after following links."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links in a circle; a zero byte in a name
        return False


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """Open a server of `folder` for this computer. InputError if it has no page; OSError if the port is taken."""
    if not (folder / "index.html").is_file():
        raise InputError(f"serve: {folder} has no index.html; train.export(path) or `tracegrad demo` writes one")
    return Server(("127.0.0.1", port), functools.partial(Handler, directory=str(folder)))


def serve(folder: Path, port: int = 0, *, browse: bool = True) -> int:
    """Serve `folder` until Ctrl+C, and open it in the browser. Returns the exit code."""
    with server(folder, port) as running:
        url = f"http://localhost:{running.server_port}/"
        print(f"{folder} is at {url} (Ctrl+C stops the server)", flush=True)
        if browse:
            webbrowser.open(url)
        running.serve_forever()
    return 0
