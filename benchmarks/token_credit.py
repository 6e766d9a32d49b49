"""Token credit beside two ways of re-tokenising: share of tokens given to the wrong sentence, and speed.

    python -m benchmarks.token_credit --data ../shared/data

Real answers of models in English and Chinese, joined to completions of about 512 tokens; four tokenizers, three of
them trained here on other answers. Canonical ids are `encode(text)`; "sampled" ids are another way to write the same
text (BPE dropout 0.1), as a model that samples may. The true owner of a token is read from the bytes of its vocabulary
entry. CPU seconds of one thread, the ways taking turns, median of three rounds; only the ratios count. Writes
docs/results/token-credit.md.
"""

from __future__ import annotations

import argparse
import functools
import platform
import random
from collections.abc import Callable
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from annotators.text.sentences import split_sentences
from benchmarks.credit_suite import Kind, by_prefixes, by_retokenising, kinds
from benchmarks.sentences_speed import read_answers
from benchmarks.splits import DATA
from mitigate.rl.credit import anchors, owners, special_ids, token_spans

RESULT = Path(__file__).parent.parent / "docs" / "results" / "token-credit.md"
COMPLETIONS, TOKENS, VOCABULARY, ROUNDS = 16, 512, 4000, 3
Cuts = list[tuple[int, int]]
Case = tuple[list[int], str, Cuts]  # ids, their text, its sentences


def one_pass(core: Any, ids: list[int], text: str, cuts: Cuts, special: frozenset[int] | None = None) -> list[int]:
    decoded, spans_T2 = token_spans(core, ids, special)
    return owners(anchors(decoded, spans_T2), cuts).tolist()


def by_prefix_decoding(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
    """Decodes every prefix of the ids: exact but for cut characters, and quadratic."""
    ends = [len(core.decode(ids[: t + 1])) for t in range(len(ids))]
    return [next((j for j, (s, e) in enumerate(cuts) if s <= end - 1 < e), -1) for end in ends]


@functools.cache
def wrapped(core: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=core)


def by_prefixes_of_transformers(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
    """`by_prefixes` through the tokenizer class that training programs hold."""
    out: list[int] = []
    for j, (_, end) in enumerate(cuts):
        out += [j] * (len(wrapped(core)(text[:end], add_special_tokens=False)["input_ids"]) - len(out))
    return (out + [-1] * len(ids))[: len(ids)]


WAYS: dict[str, Callable[[Any, list[int], str, Cuts], list[int]]] = {
    "one pass (ours)": one_pass,
    "sentences re-tokenised": by_retokenising,
    "prefixes re-tokenised": by_prefixes,
    "prefixes re-tokenised, transformers": by_prefixes_of_transformers,
    "prefixes decoded": by_prefix_decoding,
}


def completions(kind: Kind, answers: list[str], sampled: bool) -> list[Case]:
    """Answers joined by spaces or new lines until TOKENS tokens; the last one is cut there, as generation is."""
    if sampled:
        kind.core.model.dropout = 0.1
    cases: list[Case] = []
    rng, rest = random.Random(0), list(answers)
    while len(cases) < COMPLETIONS and rest:
        text, ids = "", []
        while len(ids) < TOKENS and rest:
            text += rest.pop() + rng.choice([" ", "\n", "\n\n"])
            ids = kind.core.encode(text, add_special_tokens=False).ids
        decoded = kind.core.decode(ids[:TOKENS])
        cases.append((ids[:TOKENS], decoded, split_sentences(decoded)))
    if sampled:
        kind.core.model.dropout = None
    return cases


def measure(kind: Kind, cases: list[Case]) -> dict[str, tuple[int, int, float]]:
    """Way → (wrong tokens, tokens in sentences, CPU seconds of a round)."""
    result = {}
    truth = [kind.true_owners(*case) for case in cases]
    special = special_ids(kind.core)
    for name, way in WAYS.items():
        wrong = total = 0
        for (ids, text, cuts), want in zip(cases, truth, strict=True):
            got = way(kind.core, ids, text, cuts)
            inside = [(g, w) for g, w in zip(got, want, strict=True) if w >= 0 or name.startswith("one")]
            wrong += sum(g != w for g, w in inside)
            total += len(inside)
        result[name] = (wrong, total, 0.0)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            start = process_time()
            for ids, text, cuts in cases:
                one_pass(kind.core, ids, text, cuts, special) if way is one_pass else way(kind.core, ids, text, cuts)
            seconds[name].append(process_time() - start)
    return {name: (w, n, median(seconds[name])) for name, (w, n, _) in result.items()}


def interval(wrong: int, n: int) -> str:
    """Wilson 95 % interval of a share, in per cent."""
    z, p = 1.96, wrong / n
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return f"{100 * max(0, low):.2f}–{100 * high:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, default=DATA)
    data = parser.parse_args().data
    answers = read_answers(data)
    lines = []
    for language, texts in answers.items():
        trained = kinds(texts[::2][:500], VOCABULARY)
        for kind in trained:
            modes = (False, True) if "BPE" in kind.name else (False,)
            for sampled in modes:
                found = measure(kind, completions(kind, texts[1::2], sampled))
                own = found["one pass (ours)"][2]
                for name, (wrong, n, seconds) in found.items():
                    ids = "sampled" if sampled else "canonical"
                    share = f"{wrong} of {n} | {100 * wrong / n:.2f} | {interval(wrong, n)}"
                    lines.append(f"| {language} | {kind.name} | {ids} | {name} | {share} | {seconds / own:.1f} |")
                    print(lines[-1], flush=True)
    about = (__doc__ or "").split("\n\n")[2].rsplit("Writes", 1)[0].strip()
    page = f"""# Token credit

`python -m benchmarks.token_credit`

{about}

Python {platform.python_version()}, tokenizers {version("tokenizers")}, {platform.machine()}, one CPU thread, no GPU.
{COMPLETIONS} completions of {TOKENS} tokens, fewer where the answers ran out. "Wrong" counts tokens of sentences that
were given to another sentence or to none; for the one pass, also tokens between sentences that were given to one.
Intervals are Wilson's, 95 %; tokens of one completion are not independent, so they are too narrow. "Time" is CPU time
as a multiple of the one pass; all but the one that says so call the
Rust tokenizer without the wrapper of transformers. Re-tokenising whole
prefixes is right as long as the ids are the ones the tokenizer would choose and its cuts do not depend on what follows;
a model that samples need not choose those.

| language | tokenizer | ids | way | wrong tokens | % | 95 % | time |
|---|---|---|---|---:|---:|---:|---:|
""" + "\n".join(lines)
    RESULT.write_text(page + "\n", encoding="utf-8")
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
