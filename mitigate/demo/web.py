"""A document from a web address: fetched once and plainly, from the public internet alone, then read as an upload is.

An address may lead into the network of whoever runs the page. So each host is resolved here, refused where one of its
addresses is not public, and asked at the address that was checked; a redirect is a new address. Nothing is run, and no
cookie, key or proxy of the environment is used.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import PurePosixPath
from time import perf_counter

import httpx

from mitigate.demo.limits import DOCUMENTS, Limits, Refusal, detail, read_document, work_folder
from mitigate.report.totals import one_line

SECONDS, REDIRECTS = 20.0, 5
KINDS = {
    "text/html": ".html", "application/xhtml+xml": ".html", "application/pdf": ".pdf", "text/plain": ".txt",
    "text/markdown": ".md", "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
}  # fmt: skip
UNNAMED = ("", "application/octet-stream", "binary/octet-stream")  # here the ending of the address says what it is
CHARSETS = re.compile(r"iso-8859|windows-|latin|koi8|gb|big5|shift_jis|euc-|utf-16", re.I)  # others are read as UTF-8
META = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)", re.I)
HEADERS = {"Accept": ", ".join(KINDS), "Accept-Encoding": "identity", "User-Agent": "hallucination-toolkit"}
INSTEAD = "Or download it yourself and add the file."


def read_address(
    address: str, limits: Limits, *, seconds: float = SECONDS, allowed: Collection[str] = ()
) -> str:  # fmt: skip
    """The text of the document at a web address.

    ``seconds`` is how long a server may be silent, and all of it may take. ``allowed`` are IP addresses that are asked
    although they are not public. Refusal where it may not or can't be had, is too large or of another kind.
    """
    end = perf_counter() + seconds
    here = address.strip()
    client = httpx.Client(trust_env=False, timeout=seconds)
    watch = threading.Timer(seconds, client.close)  # httpx's own limit is one on each read
    watch.daemon = True
    watch.start()
    try:
        with client:
            url = httpx.URL(here)
            for _ in range(REDIRECTS + 1):
                here = one_line(str(url), 100)
                asked = url.copy_with(host=_checked(url, here, allowed))
                host = url.raw_host.decode()
                headers = {**HEADERS, "Host": url.netloc.decode()}
                with client.stream("GET", asked, headers=headers, extensions={"sni_hostname": host}) as response:
                    if not response.has_redirect_location:
                        kind = _kind(response, url, here)
                        body = _body(response, here, limits.file_bytes, end)
                        break
                    url = url.join(response.headers["location"])
            else:
                raise Refusal(f"{one_line(address, 100)} redirects more than {REDIRECTS} times. {INSTEAD}")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Refusal(f"{one_line(here, 100)} is no web address: {detail(error)}. Give one like https://…") from error
    except (httpx.HTTPError, OSError, RuntimeError) as error:  # the last two where the client was closed
        if isinstance(error, httpx.TimeoutException) or perf_counter() > end:
            raise Refusal(f"{here} did not answer within {seconds:g} seconds. Try again. {INSTEAD}") from error
        raise Refusal(f"{here} can't be fetched: {detail(error)}. Check the address. {INSTEAD}") from error
    finally:
        watch.cancel()
    charset = response.charset_encoding or ""
    if not charset and kind == ".html" and (named := META.search(body[:2048])):
        charset = named[1].decode()
    if kind not in (".pdf", ".docx") and CHARSETS.match(charset):
        with suppress(LookupError):
            body = body.decode(charset, "replace").encode()
    path = work_folder() / f"document{kind}"
    path.write_bytes(body)
    try:
        return read_document(path, limits)
    finally:
        path.unlink()


def _checked(url: httpx.URL, here: str, allowed: Collection[str]) -> str:
    """The first IP address of the host; Refusal unless all are public, or none is known."""
    if url.scheme not in ("http", "https") or not url.host:
        raise Refusal(f"{here} can't be fetched: give an address that begins with http:// or https://. {INSTEAD}")
    try:
        found = socket.getaddrinfo(url.raw_host.decode(), url.port or url.scheme, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refusal(f"{url.host} is not found from here: {detail(error)}. Check the address. {INSTEAD}") from error
    addresses = [str(one[4][0]) for one in found]
    for one in addresses:
        if one not in allowed and not _public(ip_address(one)):
            raise Refusal(f"{here} is inside a private network ({one}), of which this page fetches nothing. {INSTEAD}")
    return addresses[0]


def _public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):  # which may stand for another one: mapped, 6to4, NAT64
        in_nat64 = address in ip_network("64:ff9b::/96")
        inside = address.ipv4_mapped or address.sixtofour or (IPv4Address(address.packed[-4:]) if in_nat64 else None)
        if inside:
            return _public(inside)
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _kind(response: httpx.Response, url: httpx.URL, here: str) -> str:
    """The ending that a file of this content has; Refusal where there is none, or no content."""
    if response.status_code != 200:
        said = f"{response.status_code} {response.reason_phrase}".strip()
        raise Refusal(f"{here} answered {said}: is the address right, and open to everybody? {INSTEAD}")
    said = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    ending = PurePosixPath(url.path).suffix.lower()
    if kind := KINDS.get(said) or (ending if said in UNNAMED and ending in DOCUMENTS else ""):
        return kind
    raise Refusal(f"{here} is {said or 'of no stated kind'}; give a web page, PDF, Word file or plain text.")


def _body(response: httpx.Response, here: str, most: int, end: float) -> bytes:
    """What the server sends, as long as it is not too much and does not take too long."""
    if response.headers.get("content-encoding", "identity") != "identity":  # a small one may unpack to a huge one
        raise Refusal(f"{here} is sent packed, though it was asked not to be. {INSTEAD}")
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > most:
            raise Refusal(f"{here} has more than the {most:,} bytes that this page takes. Give a shorter document.")
        if perf_counter() > end:
            raise httpx.ReadTimeout("it sends too slowly")
    return bytes(body)
