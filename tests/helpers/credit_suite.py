"""Tokenizers of four kinds built on the spot, and texts of several sentences.

The true owner of a token is worked out without decoding anything: from the bytes or characters that its
vocabulary entry stands for (`Kind.true_owners`).
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from examples.pocket.lm import build_tokenizer

ENGLISH = [
    "The Loire is the longest river in France. It rises in the Massif Central.",
    "Dr. Ada Okafor wrote 3.5 books! Did she? Yes, in 1987.",
    "  Leading spaces stay.   Three spaces too.\n\nA new paragraph begins here.",
    "Prices rose by 4.2 % in May (see table 3). Café owners don't mind: it's \"fine\".",
]
CHINESE = [
    "北京是中国的首都。它有三千年的历史！你去过吗？",
    "黄河全长约5464公里。它流经九个省区，注入渤海。",
    "罕见字：龘、𠮷、彧。下一句在这里。",
]
MIXED = [
    "Great 😀! Families 👨‍👩‍👧 came. 很好👍。Flags 🇫🇷 too.",
    "naïve résumé — “quotes”. Ελλάδα είναι εδώ. 한국어도 있다.",
]


@dataclass
class Kind:
    name: str
    core: Any
    special: int

    def __post_init__(self) -> None:
        self.skipped = {i for i, t in self.core.get_added_tokens_decoder().items() if t.special}

    def touched(self, ids: Sequence[int], text: str) -> list[list[int]]:
        """Characters of `text` that each token holds at least one byte of, read from the vocabulary entries."""
        entries = [self.core.id_to_token(i) for i in ids]
        if self.name in ("byte-level BPE", "SentencePiece BPE"):
            table = {c: b for b, c in bytes_to_unicode().items()}

            def bytes_of(entry: str) -> bytes:
                if self.name == "byte-level BPE":
                    return bytes(table[c] for c in entry)
                return bytes([int(entry[3:5], 16)]) if entry.startswith("<0x") else entry.replace("▁", " ").encode()

            chunks = [b"" if i in self.skipped else bytes_of(e) for i, e in zip(ids, entries, strict=True)]
            whole = b"".join(chunks)
            skip = 1 if self.name == "SentencePiece BPE" and whole.startswith(b" ") else 0
            owner = _character_of_each_byte(whole[skip:], text)
            out, at = [], -skip
            for chunk in chunks:
                out.append(sorted({owner[k] for k in range(max(at, 0), at + len(chunk))}))
                at += len(chunk)
            return out
        out, at = [], 0
        opening = next((k for k, i in enumerate(ids) if i not in self.skipped), -1)  # its leading space is stripped
        for k, (i, entry) in enumerate(zip(ids, entries, strict=True)):
            entry = "" if i in self.skipped else entry
            if self.name == "WordPiece":
                first = not any(out)
                piece = entry[2:] if entry.startswith("##") else entry if first or not entry else " " + entry
            else:
                piece = entry.replace("▁", " ")
                piece = piece[1:] if k == opening and piece.startswith(" ") else piece
            if text[at : at + len(piece)] != piece:
                raise RuntimeError(f"the suite misreads {entry!r} at {at} of {text!r}")
            out.append(list(range(at, at + len(piece))))
            at += len(piece)
        return out

    def true_owners(self, ids: Sequence[int], text: str, cuts: Sequence[tuple[int, int]]) -> list[int]:
        """Sentence that holds the last character (other than white space, if any) the token touches; -1 for none.

        A token without text that is not special (a lone "▁" at the start) goes with the next token.
        """
        out: list[int] = []
        following = -1  # owner of the next token that is not special
        for i, places in reversed(list(zip(ids, self.touched(ids, text), strict=True))):
            if i in self.skipped:
                out.append(-1)
                continue
            if places:
                solid = [p for p in places if not text[p].isspace()] or places
                following = next((j for j, (s, e) in enumerate(cuts) if s <= solid[-1] < e), -1)
            out.append(following)
        return out[::-1]


def _character_of_each_byte(whole: bytes, text: str) -> list[int]:
    """Index into `text` for each byte; bytes that are no UTF-8 map to the replacement character they became."""
    bad: list[tuple[int, int]] = []

    def note(error: UnicodeError) -> tuple[str, int]:
        bad.append((error.start, error.end))  # type: ignore[attr-defined]
        return "�", error.end  # type: ignore[attr-defined]

    codecs.register_error("suite-note", note)
    if whole.decode("utf-8", errors="suite-note") != text:  # byte fallback: a run of bytes, each a "�" of its own
        head = text.index("�")  # the suite cuts at the end only
        return [i for i, c in enumerate(text[:head]) for _ in c.encode()] + list(range(head, len(text)))
    out, k = [], 0
    ends = dict(bad)
    for at, c in enumerate(text):
        size = ends[k] - k if k in ends else len(c.encode())
        out += [at] * size
        k += size
    return out


def kinds() -> list[Kind]:
    """Three tokenizers trained on these texts; the SentencePiece BPE is written by hand: few words, then bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    corpus = (ENGLISH + CHINESE + MIXED) * 2
    trained: dict[str, Any] = {"vocab_size": 330, "show_progress": False}
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    vocabulary = {t: i for i, t in enumerate(["<eos>", "<unk>", *fallback, "▁", *"abcdefghijklmnopqrstuvwxyz.!?"])}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "in"), ("e", "r"), ("▁", "i"), ("▁i", "s")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    sentencepiece = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    sentencepiece.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    sentencepiece.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    sentencepiece.add_special_tokens(["<eos>"])
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    pieces = trainers.UnigramTrainer(special_tokens=["<eos>", "<unk>"], unk_token="<unk>", **trained)
    unigram.train_from_iterator(corpus, pieces)
    wordpiece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.decoder = decoders.WordPiece(cleanup=False)
    wordpiece.train_from_iterator(corpus, trainers.WordPieceTrainer(special_tokens=["<eos>", "[UNK]"], **trained))
    byte_level = build_tokenizer(corpus, 330)
    cores = {"SentencePiece BPE": sentencepiece, "Unigram": unigram, "WordPiece": wordpiece}
    return [
        Kind("byte-level BPE", byte_level.backend_tokenizer, byte_level.eos_token_id),
        *(Kind(name, core, core.token_to_id("<eos>")) for name, core in cores.items()),
    ]
