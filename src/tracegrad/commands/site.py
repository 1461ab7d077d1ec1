"""`tracegrad serve`: an exported site on a local server."""

from __future__ import annotations

import functools
import http.server
import webbrowser
from pathlib import Path

from tracegrad.errors import InputError

TYPES = {".js": "text/javascript", ".safetensors": "application/octet-stream", ".json": "application/json"}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of one folder, never from a cache, with the types that browsers insist on (Windows may say otherwise)."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, **TYPES}  # noqa: RUF012

    def end_headers(self) -> None:
        """Add what every answer has."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


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
