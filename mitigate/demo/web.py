"""A document from a web address: fetched once and plainly, from the public internet alone, then read as an upload is.

An address may lead into the network of whoever runs the page. So each host is resolved here, refused where one of its
addresses is not public, and asked at the address that was checked; a redirect is a new address. Nothing is run, and no
cookie, key or proxy of the environment is used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import httpx

from mitigate.demo.limits import DOCUMENTS, Limits, Refusal, decoded, detail, private_folder, read_document
from mitigate.report.totals import one_line

SECONDS, REDIRECTS = 20.0, 5
KINDS = {
    "text/html": ".html", "application/xhtml+xml": ".html", "application/pdf": ".pdf", "text/plain": ".txt",
    "text/markdown": ".md", "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
}  # fmt: skip
UNNAMED = ("", "application/octet-stream", "binary/octet-stream")  # here the ending of the address says what it is
CLOSED = [ip_network(one) for one in ("192.0.0.0/24", "168.63.129.16/32", "fec0::/10")]  # of clouds, Azure; old private
NAT64 = ip_network("64:ff9b::/96")
HEADERS = {"Accept": ", ".join(KINDS), "Accept-Encoding": "identity", "User-Agent": "hallucination-toolkit"}
INSTEAD = "Or download it yourself and add the file."


def read_address(
    address: str, limits: Limits, *, seconds: float = SECONDS, allowed: Collection[str] = ()
) -> str:  # fmt: skip
    """The text of the document at a web address.

    ``seconds`` is how long all of it may take. ``allowed`` are IP addresses that are asked although they are not
    public. Refusal where it may not or can't be had, is too large or of another kind.
    """
    here = one_line(address.strip(), 100)
    try:
        fetched = _fetched(httpx.URL(address.strip()), limits.file_bytes, allowed)
        with closing(asyncio.new_event_loop()) as loop:  # asyncio.run would wait for a name that is being looked up
            kind, charset, body = loop.run_until_complete(asyncio.wait_for(fetched, seconds))
    except TimeoutError as error:
        raise Refusal(f"{here} did not answer within {seconds:g} seconds. Try again. {INSTEAD}") from error
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Refusal(f"{here} is no web address: {detail(error)}. Give one like https://…") from error
    except (httpx.HTTPError, OSError) as error:
        raise Refusal(f"{here} can't be fetched: {detail(error)}. Check the address. {INSTEAD}") from error
    if charset and kind not in (".pdf", ".docx"):
        body = decoded(body, charset).encode()
    with TemporaryDirectory(dir=private_folder()) as folder:
        path = Path(folder, f"document{kind}")
        path.write_bytes(body)
        return read_document(path, limits)


async def _fetched(url: httpx.URL, most: int, allowed: Collection[str]) -> tuple[str, str, bytes]:
    """The ending that a file of such content has, the charset that the server names or "", and the content."""
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        for _ in range(REDIRECTS + 1):
            here = one_line(str(url), 100)
            asked = url.copy_with(host=await _checked(url, here, allowed))
            headers = {**HEADERS, "Host": url.netloc.decode()}
            name = {"sni_hostname": url.raw_host.decode()}
            async with client.stream("GET", asked, headers=headers, extensions=name) as response:
                if not response.has_redirect_location:
                    kind = _kind(response, url, here)
                    return kind, response.charset_encoding or "", await _body(response, here, most)
                url = url.join(response.headers["location"])
    raise Refusal(f"{here} redirects more than {REDIRECTS} times. {INSTEAD}")


async def _checked(url: httpx.URL, here: str, allowed: Collection[str]) -> str:
    """The first IP address of the host; Refusal unless all are public, or none is known."""
    if url.scheme not in ("http", "https") or not url.host:
        raise Refusal(f"{here} can't be fetched: give an address that begins with http:// or https://. {INSTEAD}")
    if (url.port or 0) > 65535:
        raise httpx.InvalidURL(f"its port is {url.port}, above 65535")
    try:
        look_up = asyncio.get_running_loop().getaddrinfo
        found = await look_up(url.raw_host.decode(), None, type=socket.SOCK_STREAM)  # a port by name needs a file
    except (OSError, UnicodeError) as error:
        raise Refusal(f"{url.host} is not found from here: {detail(error)}. Check the address. {INSTEAD}") from error
    addresses = [str(one[4][0]) for one in found]
    for one in addresses:
        if one not in allowed and not _public(ip_address(one)):
            raise Refusal(f"{here} is inside a private network ({one}), of which this page fetches nothing. {INSTEAD}")
    return addresses[0]


def _public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):  # which may stand for another one: mapped, 6to4, NAT64
        nat64 = IPv4Address(address.packed[-4:]) if address in NAT64 else None
        inside = address.ipv4_mapped or address.sixtofour or nat64
        if inside:
            return _public(inside)
    closed = address.is_multicast or address.is_reserved or any(address in network for network in CLOSED)
    return address.is_global and not closed


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


async def _body(response: httpx.Response, here: str, most: int) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":  # a small one may unpack to a huge one
        raise Refusal(f"{here} is sent packed, though it was asked not to be. {INSTEAD}")
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > most:
            raise Refusal(f"{here} has more than the {most:,} bytes that this page takes. Give a shorter document.")
    return bytes(body)
