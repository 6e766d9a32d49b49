"""Prompts of the generative annotator: our own wordings, templates of users, and how the inputs are put in.

A template file is YAML, as docs/annotators.md shows and ``en.yaml`` and ``zh.yaml`` beside this file are. With
``verbatim: true`` blanks at the ends of a turn stay, as models know a published wording. The protocol ``object`` (one
turn, the key `prompt`) is for several sentences at once, numbered, whose reply is JSON.
``{inputs}`` stands for document, question and sentence with marks around each, in one of two orders. "reference-first"
puts the document before everything that differs from sentence to sentence, so that an engine with prefix caching reads
it once per answer. "question-first" puts it behind the question, with three turns into the second turn: sentences
without facts never pay for it. Inputs go in as data: they hold no angle brackets (``tagged.py: neutral``), so they can
end no mark and forge no tag, and what looks like a field in them stays text.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from annotators.generative.tagged import neutral
from annotators.text.words import is_chinese

Protocol = Literal["tagged", "three-turn"]
Order = Literal["reference-first", "question-first"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
ORDERS: tuple[Order, ...] = get_args(Order)
LANGUAGES = ("en", "zh")
TURNS = {"tagged": ("prompt",), "three-turn": ("facts", "points", "type"), "object": ("prompt",)}
FIELDS = ("inputs", "reference", "question", "sentence", "points", "name")
MARKS = {
    "en": {"reference": "document", "question": "question", "sentence": "sentence"},
    "zh": {"reference": "文档", "question": "问题", "sentence": "句子"},
}
"""The marks around each of ``{inputs}``."""
_FIELD = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Template:
    """One wording: the texts of its turns, one or three, with fields in braces."""

    name: str
    protocol: str  # a key of TURNS
    language: str
    turns: tuple[str, ...]
    system: str = ""
    verbatim: bool = False  # whether blanks at the ends of its turns, and empty lines, stay

    def chat(self, order: Order, inputs: Mapping[str, str]) -> list[tuple[str, str]]:
        """The messages of the first turn as (role, content)."""
        before = [("system", self.system.strip())] if self.system else []
        return [*before, ("user", self.fill(0, order, inputs))]

    def fill(self, turn: int, order: Order, inputs: Mapping[str, str]) -> str:
        """The text of a turn, counted from 0; ``inputs`` are by the names of ``FIELDS``, ``points`` joined by <SEP>."""
        shown = {name: neutral(text) for name, text in inputs.items()}
        shown["points"] = shown.get("points", "").replace(neutral("<SEP>"), "<SEP>")
        shown["inputs"] = self._blocks(turn, order, shown)
        text = _FIELD.sub(lambda match: shown.get(match.group(1), ""), self.turns[turn])
        if self.verbatim:
            return text
        return (text if shown["inputs"] else re.sub(r"\n{3,}", "\n\n", text)).strip()

    def _blocks(self, turn: int, order: Order, shown: Mapping[str, str]) -> str:
        first = order == "reference-first"
        names = ["reference", "question", "sentence"] if first else ["question", "reference", "sentence"]
        if self.protocol == "three-turn":
            early = names if first else ["question", "sentence"]
            names = (early, [name for name in names if name not in early], [])[turn]
        marks = MARKS[self.language]
        return "\n".join(f"<{marks[n]}>\n{shown[n].strip()}\n</{marks[n]}>" for n in names if shown.get(n, "").strip())


def load_templates(path: str | Path) -> list[Template]:
    """The templates of a file; ValueError where it can't be read, or a key or field is missing or unknown."""
    try:
        rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"templates {path}: expected a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"templates {path}: expected a list of templates (`- name: …`), got {type(rows).__name__}")
    found = [_template(row, f"templates {path}, number {number}") for number, row in enumerate(rows, 1)]
    keys = [(t.name, t.protocol, t.language) for t in found]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"templates {path}: {' '.join(twice[0])} is there twice; give each its own name")
    return found


def _template(row: object, where: str) -> Template:
    if not isinstance(row, Mapping):
        raise ValueError(f"{where}: expected keys and values, got {type(row).__name__}")
    protocol = row.get("protocol")
    if not isinstance(protocol, str) or protocol not in TURNS:
        raise ValueError(f"{where}: expected protocol to be one of {', '.join(TURNS)}, got {protocol!r}")
    keys = ("name", "protocol", "language", *TURNS[protocol])
    for key in row:
        if key not in (*keys, "system", "verbatim"):
            raise ValueError(f"{where}: unknown key {key!r}; expected {', '.join(keys)}, system or verbatim")
    for key in (*keys, *(["system"] if "system" in row else [])):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise ValueError(
                f"{where}: expected {key} to be a text, got {row.get(key)!r}; a {protocol} template has the keys "
                f"{', '.join(keys)}"
            )
    if not isinstance(verbatim := row.get("verbatim", False), bool):
        raise ValueError(f"{where}: expected verbatim to be true or false, got {verbatim!r}")
    if row["language"] not in LANGUAGES:
        raise ValueError(f"{where}: expected language to be en or zh, got {row['language']!r}")
    if "/" in row["name"] or row["name"] == "random":
        raise ValueError(f"{where}: {row['name']!r} can't be a name; leave out '/', and 'random' is taken")
    turns = tuple(row[key] for key in TURNS[protocol])
    _check_fields(turns, protocol, where)
    return Template(row["name"], protocol, row["language"], turns, row.get("system", ""), verbatim)


def _check_fields(turns: Sequence[str], protocol: str, where: str) -> None:
    used = [set(_FIELD.findall(turn)) for turn in turns]
    if unknown := sorted(set().union(*used) - {*FIELDS}):
        near = difflib.get_close_matches(unknown[0], FIELDS, n=1)
        hint = f"did you mean {{{near[0]}}}?" if near else f"known are {', '.join(FIELDS)}"
        raise ValueError(f"{where}: unknown field {{{unknown[0]}}}; {hint}")
    early, both = set().union(*used[:2]), protocol == "three-turn"
    if "points" in early:
        raise ValueError(f"{where}: {{points}} is known in the turn 'type' only, what the turn 'points' brought")
    needed = () if "inputs" in early and (not both or "inputs" in used[0] & used[1]) else FIELDS[1:4]
    missing = [name for name in needed if name not in early]
    if missing or not {"inputs", "sentence"} & used[0]:
        missing = missing or ["sentence"]
        fields = f"field{'s' * (len(missing) > 1)} " + ", ".join(f"{{{name}}}" for name in missing)
        place, all_of = ("turns facts and points", "in both") if both else ("prompt", "")
        raise ValueError(f"{where}: the {fields} must be in the {place}; or use {{inputs}} {all_of}".rstrip())


_PUBLISHED = {"annotation": "sentence", "answer": "sentence", "document": "reference", **{f: f for f in FIELDS}}
"""Names of fields in published prompts → ours."""


def read_published(source: Path) -> list[dict[str, Any]]:
    """Templates, named "anah-v2" and "anah-v1", out of a user's copy of published prompts: a file or a folder of files.

    A Python file is parsed, never run: its functions named after fact, reference and hallucination hold the three turns
    as strings, in one or two languages. A .txt or .md file is a prompt of one turn, with its fields in braces;
    system.txt holds the system message of all. ValueError where a turn or a field is missing or unknown.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    system: dict[str, str] = {}
    for file in sorted(source.iterdir()) if source.is_dir() else [source]:
        if file.suffix not in (".py", ".txt", ".md"):
            continue
        try:
            text = file.read_text(encoding="utf-8")
            turns = [("prompt", text)] if file.suffix != ".py" else list(_of_python(ast.parse(text)))
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{file}: expected prompts in UTF-8, as text or Python: {error}") from error
        if file.name == "system.txt":
            system, turns = {"system": text}, []
        for turn, wording in turns:
            language, v1 = "zh" if is_chinese(_FIELD.sub("", wording)) else "en", turn == "prompt"
            base = {"name": "anah-v1" if v1 else "anah-v2", "protocol": "tagged" if v1 else "three-turn"}
            row = found.setdefault((base["name"], language), {**base, "language": language, "verbatim": True})
            fields = _PUBLISHED | ({"reference": "points"} if turn == "type" else {})
            pieces = enumerate(_FIELD.split(wording))  # every second one is a field's name
            row[turn] = "".join(f"{{{fields.get(piece, piece)}}}" if n % 2 else piece for n, piece in pieces)
    if not found:
        raise ValueError(f"{source}: expected .py, .txt or .md files with prompts, found none")
    for key, row in found.items():
        row |= system
        _template(row, f"{source}: {' '.join(key)}")
    return list(found.values())


def _of_python(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Turn and text of every string that is assigned in a function named after a turn."""
    turns = {"fact": "facts", "reference": "points", "hallucination": "type"}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        turn = next((turn for word, turn in turns.items() if word in function.name.lower()), "")
        for value in (node.value for node in ast.walk(function) if isinstance(node, ast.Assign)):
            if turn and isinstance(value, ast.JoinedStr | ast.Constant):
                parts = value.values if isinstance(value, ast.JoinedStr) else [value]
                texts = (
                    p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(getattr(p, 'value', p))}}}"
                    for p in parts
                )
                yield turn, "".join(map(str, texts))


@lru_cache(maxsize=1)
def built_in() -> tuple[Template, ...]:
    """Our own wordings."""
    return tuple(t for language in LANGUAGES for t in load_templates(Path(__file__).with_name(f"{language}.yaml")))


def names_of(protocol: str, language: str) -> list[str]:
    """The names of our wordings for a protocol and a language, in order."""
    return [t.name for t in built_in() if (t.protocol, t.language) == (protocol, language)]


class Chooser:
    """Which wording and order a sentence gets: NAME, NAME/ORDER (else "reference-first"), or "random", which draws both
    by ``seed``, reference and question: the sentences of one answer share them. ValueError for unknown ones.
    """

    def __init__(
        self, protocol: str, prompt: str = "plain", templates: Sequence[Template] | None = None, seed: int = 0
    ) -> None:
        of_protocol = [t for t in (built_in() if templates is None else templates) if t.protocol == protocol]
        self.seed, self.random = seed, prompt == "random"
        name, slash, order = prompt.partition("/")
        if not of_protocol:
            raise ValueError(f"prompt: the templates hold none for the protocol {protocol}")
        if not self.random and not any(t.name == name for t in of_protocol):
            names = ", ".join(dict.fromkeys(t.name for t in of_protocol))
            raise ValueError(f"prompt {prompt!r}: no such wording; expected {names}, or random")
        if slash and (order not in ORDERS or self.random):
            raise ValueError(f"prompt {prompt!r}: expected NAME/{' or NAME/'.join(ORDERS)}")
        self.order: Order = "question-first" if order == "question-first" else "reference-first"
        chosen = [t for t in of_protocol if self.random or t.name == name]
        self.by_language = {lang: [t for t in chosen if t.language == lang] for lang in LANGUAGES}

    @property
    def languages(self) -> frozenset[str]:
        """Languages for which there is a template."""
        return frozenset(language for language, templates in self.by_language.items() if templates)

    def __call__(self, language: str, reference: str, question: str) -> tuple[Template, Order]:
        """The template and order for an answer's sentences; ``language`` is one of ``languages``."""
        templates = self.by_language[language]
        if not self.random:
            return templates[0], self.order
        data = "\0".join((str(self.seed), question, reference)).encode("utf-8", "surrogatepass")
        number = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        return templates[number // 2 % len(templates)], ORDERS[number % 2]

    @property
    def identity(self) -> list[Any]:
        """What the prompts depend on, for a fingerprint."""
        return [
            self.seed if self.random else None,
            self.order,
            [[t.name, t.language, t.system, *t.turns, *([True] if t.verbatim else [])]
             for group in self.by_language.values() for t in group],
        ]  # fmt: skip
