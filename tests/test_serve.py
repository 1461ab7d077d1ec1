"""`tracegrad serve` shows the files of one folder to this computer's own browser, and nothing else to no one else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracegrad.commands import site

SECRET = b"secret"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    folder = tmp_path / "site"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "site-beside").mkdir()
    for path in (tmp_path / "outside.txt", tmp_path / "site-beside" / "x.txt"):
        path.write_bytes(SECRET)
    (folder / "index.html").write_text("<p>page")
    (folder / "worker.js").write_text("0")
    (folder / "sub/data.safetensors").write_bytes(b"12345")
    links = {"out.txt": "../outside.txt", "up": "..", "in.js": "worker.js", "loop": "loop", "beside": "../site-beside"}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    with site.server(folder) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()


def answer(port: int, target: str, *headers: str, method: str = "GET", version: str = "1.1") -> tuple[int, str, bytes]:
    """Status, head and body of the answer to a request as it is written."""
    host = () if any(h.lower().startswith("host:") for h in headers) else (f"Host: localhost:{port}",)
    lines = [f"{method} {target} HTTP/{version}", *host, *(h for h in headers if h != "Host:"), "Connection: close"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        data = b"".join(iter(lambda: s.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode("latin-1"), body


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_this_computer_gets_the_page(port: int, name: str) -> None:
    status, head, body = answer(port, "/", f"Host: {name}:{port}")
    assert (status, body) == (200, b"<p>page") and "text/html" in head
    for header in ("Cache-Control: no-store", "X-Content-Type-Options: nosniff", "Resource-Policy: same-origin"):
        assert header in head


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}", "evil.example", "localhost", "localhost:1", "127.0.0.1.evil.example:{port}", "",
        "localhost:{port}@evil.example", "evil.example:{port}, localhost:{port}", "0.0.0.0:{port}", "[::]:{port}",
    ],
)  # fmt: skip
def test_other_names_for_this_computer_get_nothing(port: int, host: str) -> None:
    status, _, body = answer(port, "/", f"Host: {host.format(port=port)}")
    assert status == 421 and b"page" not in body


def test_requests_without_a_host_or_with_two_get_nothing(port: int) -> None:
    assert answer(port, "/", "Host:", version="1.0")[0] == 421
    assert answer(port, "/", f"Host: localhost:{port}", "Host: evil.example")[0] == 421


@pytest.mark.parametrize(
    "target",
    [
        "/../outside.txt", "/%2e%2e/outside.txt", "/sub/../../outside.txt", "/..%2foutside.txt", "//etc/passwd",
        "/out.txt", "/up/outside.txt", "/up/", "/up", "/beside/x.txt", "/loop", "/pipe", "/sub/", "/none", "/%00",
        "/index.html/", "/..%5coutside.txt", "http://localhost/../outside.txt", "/sub/..%2f..%2f..%2fetc/passwd",
    ],
)  # fmt: skip
def test_nothing_outside_of_the_folder_and_no_lists(port: int, target: str) -> None:
    status, _, body = answer(port, target)
    assert status == 404 and SECRET not in body and b"data.safetensors" not in body and b"root:" not in body


def test_files_and_links_within_the_folder_are_served(port: int) -> None:
    assert answer(port, "/in.js")[2] == b"0" and answer(port, "/up/site/worker.js")[2] == b"0"
    status, head, body = answer(port, "/sub/data.safetensors?v=1")
    assert (status, body) == (200, b"12345") and "Content-Length: 5" in head and "application/octet-stream" in head
    status, head, _ = answer(port, "/sub")
    assert status == 301 and "/sub/" in head


def test_head_ranges_and_other_methods(port: int) -> None:
    status, head, body = answer(port, "/worker.js", method="HEAD")
    assert (status, body) == (200, b"") and "Content-Length: 1" in head
    assert answer(port, "/out.txt", method="HEAD")[0] == 404
    status, _, body = answer(port, "/sub/data.safetensors", "Range: bytes=1-2")
    assert (status, body) == (200, b"12345")  # which the standard allows
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert answer(port, "/worker.js", method=method)[0] == 501


def test_names_too_long_for_the_disk_are_not_found(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert answer(port, "/" + "a" * 5000)[0] == 404
    assert capfd.readouterr().err == ""


def test_a_browser_that_leaves_prints_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.html").write_bytes(b"x" * 20_000_000)
    with site.server(tmp_path) as running:
        running.daemon_threads = False  # so that the server waits for its threads
        threading.Thread(target=running.serve_forever, daemon=True).start()
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as s:
                s.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{running.server_port}\r\n\r\n".encode())
                assert s.recv(10)
        running.shutdown()
    assert capfd.readouterr().err == ""
