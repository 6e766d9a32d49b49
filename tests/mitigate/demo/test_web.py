"""Documents from web addresses: what is read, and what is refused, above all the insides of a network."""

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("httpx", reason="skipped: httpx is not installed (the demo extra)")

from mitigate.demo.limits import Limits, Refusal
from mitigate.demo.web import read_address

HERE = {"127.0.0.1"}  # the test's own server
LIMITS = Limits(characters=10, reference=1000, records=1)  # files of at most 16,000 bytes
HTML, WORD = "text/html; charset=utf-8", "application/octet-stream"
PAGES = {  # path → status, headers, body
    "/page": (200, {"Content-Type": HTML}, "<p>The café opened <b>in 1901</b>.<script>no()</script>".encode()),
    "/latin": (200, {"Content-Type": "text/plain; charset=iso-8859-1"}, "The café opened.".encode("latin-1")),
    "/meta": (200, {"Content-Type": "text/html"}, "<meta charset='gb2312'><p>桥很旧。".encode("gb2312")),
    "/misnamed": (200, {"Content-Type": "text/html"}, b"<meta charset=utf-16><p>Plain."),  # it can't be true
    "/wide": (200, {"Content-Type": "text/plain; charset=utf-16"}, "桥很旧。".encode("utf-16")),
    "/odd": (200, {"Content-Type": "text/plain; charset=punycode"}, b"Plain."),
    "/a.txt": (200, {"Content-Type": WORD}, b"By its ending."),
    "/to-page": (302, {"Location": "/page"}, b""),
    "/loop": (302, {"Location": "/loop"}, b""),
    "/to-metadata": (302, {"Location": "http://169.254.169.254/latest"}, b""),
    "/to-v6": (302, {"Location": "http://[::1]:1/"}, b""),
    "/to-file": (302, {"Location": "file:///etc/passwd"}, b""),
    "/image": (200, {"Content-Type": "image/png"}, b"x"),
    "/a.bin": (200, {"Content-Type": WORD}, b"x"),
    "/packed": (200, {"Content-Type": HTML, "Content-Encoding": "gzip"}, gzip.compress(b"x" * 9000)),
    "/broken.pdf": (200, {"Content-Type": "application/pdf"}, b"no pdf"),
    "/empty": (200, {"Content-Type": HTML}, b"<p> "),
    "/long": (200, {"Content-Type": "text/plain"}, b"x" * 1001),
}


class Site(BaseHTTPRequestHandler):
    hosts: list[str] = []  # noqa: RUF012
    asleep = threading.Event()

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.hosts.append(self.headers["Host"])
        if self.path == "/silent":
            self.asleep.wait(60)
            return
        if self.path == "/slow-headers":
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while not self.asleep.wait(0.05):
                    self.wfile.write(b"x")
            return
        status, headers, body = PAGES.get(self.path, (404, {}, b""))
        endless = self.path in ("/huge", "/slow")
        self.send_response(200 if endless else status)
        for name, value in ({"Content-Type": "text/plain"} if endless else headers).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
            while endless and not self.asleep.is_set():  # until the reader has had enough
                self.wfile.write(b"x" * 1000 if self.path == "/huge" else b"x")
                time.sleep(0 if self.path == "/huge" else 0.05)
        except OSError:
            pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Site.asleep.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_web_documents_become_text(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # which would see inside, so none is asked
    monkeypatch.delenv("NO_PROXY", raising=False)
    for path, text in (
        ("/page", "The café opened in 1901."), ("/latin", "The café opened."), ("/odd", "Plain."),
        ("/misnamed", "Plain."),
        ("/meta", "桥很旧。"), ("/wide", "桥很旧。"), ("/a.txt", "By its ending."),
        ("/to-page", "The café opened in 1901."),
    ):  # fmt: skip
        assert read_address(f" {site}{path}\n", LIMITS, allowed=HERE) == text


INSIDE = """127.0.0.1 169.254.169.254/latest/meta-data [::1]:8000 localhost 0.0.0.0 10.0.0.1 192.168.1.1 172.16.0.1
100.64.0.1 127.1 2130706433 [::ffff:127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] [fe80::1] [fd00::1] 224.0.0.1 [fec0::1]
192.0.0.192 168.63.129.16"""


@pytest.mark.parametrize("address", INSIDE.split())
def test_addresses_inside_are_refused(address: str) -> None:
    with pytest.raises(Refusal, match=r"is inside a private network \(.*\), of which.*download it yourself and add"):
        read_address(f"http://{address}", LIMITS, seconds=1)


def test_redirects_inside_and_unfit_documents_are_refused(site: str) -> None:
    for path, message in (
        ("/to-metadata", r"^http://169\.254\.169\.254/latest is inside a private network"),
        ("/to-v6", r"^http://\[::1\]:1/ is inside a private network \(::1\)"),
        ("/to-file", "^file:/etc/passwd can't be fetched: give an address that begins with http"),
        ("/loop", "redirects more than 5 times"),
        ("/image", "is image/png; give a web page, PDF, Word file or plain text"),
        ("/a.bin", "is application/octet-stream; give a web page"),
        ("/none", "answered 404 Not Found: is the address right, and open to everybody"),
        ("/packed", "is sent packed"),
        ("/huge", "has more than the 16,000 bytes that this page takes. Give a shorter"),
        ("/broken.pdf", "document.pdf can't be read"),
        ("/empty", "document.html holds no text"),
        ("/long", "The reference has 1,001 characters"),
    ):
        with pytest.raises(Refusal, match=message):
            read_address(site + path, LIMITS, allowed=HERE)
    for address, message in (
        ("file:///etc/passwd", "give an address that begins with http"), ("ftp://a.example/", "begins with http"),
        ("mill.html", "begins with http"), ("http://", "begins with http"), ("http://a:b/", "is no web address"),
        ("http://xn--/", "is no web address"), ("http://8.8.8.8:65536/", "is no web address: its port is 65536"),
        ("http://no-such-host.invalid/", "no-such-host.invalid is not found from here"),
    ):  # fmt: skip
        with pytest.raises(Refusal, match=message):
            read_address(address, LIMITS, seconds=5)


def test_name_is_asked_where_it_was_checked(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looked_up = socket.getaddrinfo, []
    answers = ["127.0.0.1", "10.0.0.1"]  # a name that leads elsewhere when it is looked up again

    def lookup(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "docs.example":
            return real(host, port, *more, **options)
        looked_up.append((host, port))
        return real(answers[len(looked_up) - 1], port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    named = site.replace("127.0.0.1", "docs.example")
    assert read_address(f"{named}/page", LIMITS, allowed=HERE) == "The café opened in 1901."
    assert looked_up == [("docs.example", None)]  # a port by its name is looked up in a file that not all machines have
    assert f"http://{Site.hosts[-1]}" == named  # the server still hears its name
    both = [*real("93.184.216.34", 80), *real("10.0.0.1", 80)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(Refusal, match=r"inside a private network \(10\.0\.0\.1\)"):  # one of its two addresses
        read_address("http://docs.example/", LIMITS)


def test_silent_and_slow_servers_are_left(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = socket.getaddrinfo, threading.Event()
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: left.wait(20) if host == "b" else real(host, *a, **k)
    )
    for address in (f"{site}/silent", f"{site}/slow", f"{site}/slow-headers", "http://b"):  # b: its name server is slow
        start = time.perf_counter()
        with pytest.raises(Refusal, match=r"did not answer within 0\.5 seconds\. Try again\. Or download it yourself"):
            read_address(address, LIMITS, seconds=0.5, allowed=HERE)
        assert time.perf_counter() - start < 10
    left.set()
