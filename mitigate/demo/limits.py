"""What the page takes: sizes, uploaded files, and the words in which it refuses; and the files that it hands out.

Every refusal is a :class:`Refusal`: the page shows it as a notice, the endpoints as an error message.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import zipfile
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mitigate.io import Line, Problem, UsageError, check_annotation_input, csv_rows, dump_line, read_lines


class Refusal(Exception):
    """Input that the page does not take; the message says what to change."""


def detail(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


@dataclass(frozen=True)
class Limits:
    """Sizes above which input is refused."""

    characters: int = 50_000  # of one question or answer
    reference: int = 500_000  # characters of a reference
    records: int = 1_000  # of one uploaded file

    @property
    def file_bytes(self) -> int:
        """Bytes that an uploaded file may have: four a character, three texts a record, and never over 64 MiB."""
        return min(max(12 * self.characters * self.records, 16 * self.reference), 64 * 2**20)

    @property
    def request_bytes(self) -> int:
        """Bytes that a request other than a file may have: a few texts whose characters are all escaped."""
        return max(120 * self.characters, 12 * self.reference, 2**20)

    def problems(self, **texts: Any) -> list[Problem]:
        """Which of the texts are too long or hold half a character; what is no text is no matter of this."""
        found = []
        for name, text in texts.items():
            most = self.reference if name == "reference" else self.characters
            if isinstance(text, str) and len(text) > most:
                found.append(Problem(name, f"{len(text):,} characters", f"at most {most:,} characters"))
            elif isinstance(text, str) and (half := re.search("[\ud800-\udfff]", text)):
                got = f"half a character (a lone surrogate) at place {half.start() + 1:,}"
                found.append(Problem(name, got, "whole characters"))
        return found

    def check(self, **texts: str | None) -> None:
        """Refuse such texts, naming the first."""
        for found in self.problems(**texts):
            option = "--max-reference" if found.field == "reference" else "--max-characters"
            advice = f"Shorten it, or start the page with a larger {option}." if "most" in found.expected else ""
            raise Refusal(f"The {found.field} has {found.value}; this page takes {found.expected}. {advice}".strip())

    def check_record(self, record: dict[str, Any]) -> list[Problem]:
        texts = {name: record.get(name) for name in ("question", "reference", "answer")}
        return [*check_annotation_input(record), *self.problems(**texts)]


DOCUMENTS = (".pdf", ".docx", ".html", ".htm", ".txt", ".md")


def read_document(path: Path, limits: Limits) -> str:
    """The text of a document; nothing in it is run, fetched or followed.

    Refusal where it is too large, of another kind, broken, or holds no text (a scan).
    """
    kind = path.suffix.lower()
    if kind not in DOCUMENTS:
        raise Refusal(f"{path.name}: expected a document of {', '.join(DOCUMENTS)}, got {kind or 'no ending'}.")
    if (size := path.stat().st_size) > limits.file_bytes:
        raise Refusal(f"{path.name} has {size:,} bytes; this page takes {limits.file_bytes:,}.")
    try:
        text = _READERS.get(kind, _read_text)(path, limits.reference)
    except ImportError as error:
        raise Refusal(f"{kind} files need more: pip install 'hallucination-toolkit[demo]' ({error}).") from error
    except Exception as error:  # whatever a broken or hostile file makes of its reader
        raise Refusal(f"{path.name} can't be read: {detail(error)}.") from error
    text = text.replace("\0", "").encode("utf-8", "replace").decode().strip()
    if not text:
        raise Refusal(f"{path.name} holds no text; a scanned document has to go through text recognition first.")
    limits.check(reference=text)
    return text


def decoded(body: bytes, charset: str) -> str:
    """The text of a file that names its charset, as browsers read it; UTF-8 where it names none that pages use."""
    marked = body.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    charset = "utf-16" if marked else _WIDER.get(charset.lower(), charset)
    with suppress(LookupError):
        if _CHARSETS.match(charset):
            return body.decode(charset, "replace")
    return body.decode("utf-8-sig", "replace")


def _read_text(path: Path, most: int) -> str:
    body = path.read_bytes()
    with suppress(UnicodeDecodeError):
        return body.decode("utf-8-sig")
    named = _META.search(body[:2048])  # of an older page
    return decoded(body, named[1].decode() if named else "")


def _read_pdf(path: Path, most: int) -> str:
    from pypdf import PdfReader

    pages, length = list[str](), 0
    for page in PdfReader(path).pages:
        pages.append(page.extract_text())
        length += len(pages[-1])
        if length > most:
            break  # it will be refused; a file of few bytes can hold very many pages
    return "\n\n".join(pages)


def _read_docx(path: Path, most: int) -> str:
    from docx import Document
    from docx.text.paragraph import Paragraph

    with zipfile.ZipFile(path) as archive:
        if (size := sum(part.file_size for part in archive.infolist())) > max(40 * most, 2**26):
            raise ValueError(f"it unpacks to {size:,} bytes")
    lines = list[str]()
    for part in Document(str(path)).iter_inner_content():
        if isinstance(part, Paragraph):
            lines.append(part.text)
        else:
            lines += [" | ".join(cell.text for cell in row.cells) for row in part.rows]
    return "\n".join(lines)


_CHARSETS = re.compile(r"iso-8859|windows-|latin|koi8|gb|big5|shift_jis|euc-|utf-16", re.I)
_WIDER = {"gb2312": "gb18030", "gbk": "gb18030", "iso-8859-1": "windows-1252"}  # what pages of these hold
_META = re.compile(rb"<meta[^>]+charset=[\"']?(?!utf-16)([\w-]+)", re.I)  # readable ASCII is no UTF-16
_UNSEEN = frozenset("script style title template noscript".split())  # no head: its end may be left out
_INLINE = frozenset("a abbr b bdi bdo cite code em i kbd mark q s small span strong sub sup u var wbr".split())


class _Text:
    """What lxml tells of a page, which it reads much faster than Python's own parser where that is hostile: the text
    that a reader sees, a line for each block."""

    def __init__(self) -> None:
        self.parts, self.hidden = list[str](), 0

    def start(self, tag: str, _: Any) -> None:
        self.hidden += tag in _UNSEEN
        self.parts += [] if tag in _INLINE else ["\n"]

    def end(self, tag: str) -> None:
        self.hidden -= tag in _UNSEEN and self.hidden > 0
        self.parts += [] if tag in _INLINE else ["\n"]

    def data(self, text: str) -> None:
        self.parts += [] if self.hidden else [text]

    def close(self) -> str:
        return "".join(self.parts)


def _read_html(path: Path, most: int) -> str:
    from lxml import etree

    page = _read_text(path, most).encode(errors="replace").replace(b"\0", b"")
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, target=_Text())
    text: str = etree.fromstring(page, parser) if page else ""
    return "\n".join(line for line in (" ".join(line.split()) for line in text.splitlines()) if line)


_READERS = {".pdf": _read_pdf, ".docx": _read_docx, ".html": _read_html, ".htm": _read_html}


def read_uploaded(path: Path, limits: Limits) -> tuple[list[dict[str, Any]], list[Line]]:
    """The good records and the bad lines of a file of JSON Lines or of CSV with a line of names.

    Refusal where it is too large, can't be read, or has no good record.
    """
    instead = "Use `mitigate annotate --input FILE --output FILE`, which takes any"
    if (size := path.stat().st_size) > limits.file_bytes:
        raise Refusal(f"The file has {size:,} bytes; this page takes {limits.file_bytes:,}. {instead} size.")
    records: list[dict[str, Any]] = []
    bad: list[Line] = []
    lines = path
    try:
        if path.suffix.lower() == ".csv":
            lines = work_folder() / "rows.jsonl"
            rows = csv_rows(path, ("reference", "answer"))
            lines.write_bytes(b"\n" + b"".join(map(dump_line, rows)))  # numbers are those of a spreadsheet: names are 1
        for line in read_lines(lines, limits.check_record):
            if line.record is None:
                bad.append(line)
            elif len(records) == limits.records:
                raise Refusal(f"The file has more records than the {limits.records:,} of this page. {instead} number.")
            else:
                records.append(line.record)
    except UnicodeDecodeError as error:
        raise Refusal(f"{path.name} is not UTF-8: save it as UTF-8 (“CSV UTF-8” in a spreadsheet).") from error
    except (UsageError, ValueError) as error:
        raise Refusal(str(error)) from error
    if not records:
        first = f" The first bad line: {problems_of(bad[0])}." if bad else ""
        raise Refusal(f"The file has no good record.{first}")
    return records, bad


def problems_of(line: Line) -> str:
    return f"line {line.number}: {'; '.join(map(str, line.problems))}"


@lru_cache(maxsize=1)
def private_folder() -> Path:
    """A folder that only this user can read, removed at the end of the process; Gradio keeps uploads in it too."""
    folder = Path(tempfile.mkdtemp(prefix="mitigate-demo-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder / "gradio")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def work_folder() -> Path:
    """A new folder for the files of one call."""
    return Path(tempfile.mkdtemp(dir=private_folder()))
