"""Token credit beside ways that re-tokenise: tokens that they give to another sentence, and their time.

    python -m benchmarks.token_credit --data ../shared/data

Real answers of models in English and Chinese, joined to completions of about 512 tokens; three tokenizers trained here
on other answers. "Sampled" ids are another way to write the same text (BPE dropout 0.1), as a model that samples may
choose. The one pass is what the others are compared with: that it gives every token to its sentence is shown against
the vocabularies' bytes by tests/mitigate/rl/test_credit.py. CPU seconds of one thread, the ways taking turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from annotators.text.sentences import split_sentences
from benchmarks.common import Row, parser, real_answers, row, save
from mitigate.rl.credit import anchors, owners, token_spans

COMPLETIONS, TOKENS, VOCABULARY, ROUNDS = 16, 512, 4000, 3
Cuts = list[tuple[int, int]]
Case = tuple[list[int], str, Cuts]  # ids, their text, its sentences


def one_pass(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
    """Ours."""
    decoded, spans_T2 = token_spans(core, ids)
    return owners(anchors(decoded, spans_T2), cuts).tolist()


def by_sentences(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
    """Tokenises each sentence by itself and gives it that many tokens in turn (as Mask-DPO's masks are made)."""
    out = [j for j, (a, b) in enumerate(cuts) for _ in core.encode(text[a:b], add_special_tokens=False).ids]
    return (out + [-1] * len(ids))[: len(ids)]


def by_prefixes(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
    """Tokenises the text up to each sentence's end and counts (as FineGrainedRLHF places its rewards)."""
    out: list[int] = []
    for j, (_, end) in enumerate(cuts):
        out += [j] * (len(core.encode(text[:end], add_special_tokens=False).ids) - len(out))
    return (out + [-1] * len(ids))[: len(ids)]


def by_decoding(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
    """Decodes every prefix of the ids: exact but for cut characters, and quadratic."""
    ends = [len(core.decode(ids[: t + 1])) for t in range(len(ids))]
    return [next((j for j, (s, e) in enumerate(cuts) if s <= end - 1 < e), -1) for end in ends]


WAYS: dict[str, Callable[[Any, list[int], str, Cuts], list[int]]] = {
    "one pass (ours)": one_pass,
    "sentences re-tokenised": by_sentences,
    "prefixes re-tokenised": by_prefixes,
    "prefixes decoded": by_decoding,
}


def tokenizers(corpus: list[str]) -> dict[str, Any]:
    """Byte-level BPE, Unigram with Metaspace, and WordPiece, trained on texts."""
    shared: dict[str, Any] = {"vocab_size": VOCABULARY, "show_progress": False}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(corpus, trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<eos>"], **shared))
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(special_tokens=["<eos>", "<unk>"], unk_token="<unk>", **shared)
    unigram.train_from_iterator(corpus, trainer)
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer, pieces.decoder = (pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False))
    pieces.train_from_iterator(corpus, trainers.WordPieceTrainer(special_tokens=["<eos>", "[UNK]"], **shared))
    return {"byte-level BPE": bpe, "Unigram": unigram, "WordPiece": pieces}


def completions(core: Any, answers: list[str], sampled: bool) -> list[Case]:
    """Answers joined by spaces or new lines until TOKENS tokens; the last one is cut there, as generation is."""
    if sampled:
        core.model.dropout = 0.1
    cases: list[Case] = []
    rng, rest = random.Random(0), list(answers)
    while len(cases) < COMPLETIONS and rest:
        text, ids = "", []
        while len(ids) < TOKENS and rest:
            text += rest.pop() + rng.choice([" ", "\n", "\n\n"])
            ids = core.encode(text, add_special_tokens=False).ids
        decoded = core.decode(ids[:TOKENS])
        cases.append((ids[:TOKENS], decoded, split_sentences(decoded)))
    if sampled:
        core.model.dropout = None
    return cases


def measure(what: str, core: Any, cases: list[Case]) -> list[Row]:
    """For each way the share of tokens of sentences that it gives elsewhere, and its time as a multiple of ours."""
    truth = [one_pass(core, *case) for case in cases]
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            start = process_time()
            for case in cases:
                way(core, *case)
            seconds[name].append(process_time() - start)
    rows = []
    for name, way in list(WAYS.items())[1:]:
        both = [(way(core, *case), want) for case, want in zip(cases, truth, strict=True)]
        pairs = [(g, w) for got, want in both for g, w in zip(got, want, strict=True) if w >= 0]
        wrong = sum(g != w for g, w in pairs)
        rows.append(row(f"{what}, {name}: tokens of another sentence", len(pairs), 100 * wrong / len(pairs), unit="%"))
        times = median(seconds[name]) / median(seconds["one pass (ours)"])
        rows.append(row(f"{what}, {name}: times as long", len(cases), times))
    return rows


def main() -> None:
    """Measure and write the page."""
    args = parser(__doc__).parse_args()
    rows = []
    for language, texts in real_answers(args.data).items():
        for name, core in tokenizers(texts[::2][:500]).items():
            for sampled in (False, True) if "BPE" in name else (False,):
                cases = completions(core, texts[1::2], sampled)
                rows += measure(f"{language}, {name}, {'sampled' if sampled else 'canonical'} ids", core, cases)
                print(rows[-1], flush=True)
    shown = [one for one in rows if "byte-level" in one["what"] and "re-tokenised: tokens" in one["what"]]
    save("rewards", "token_credit", shown, tables={"all": rows}, packages=["tokenizers"])


if __name__ == "__main__":
    main()
