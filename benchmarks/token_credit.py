"""Token credit beside ways that re-tokenise: tokens that they give to another sentence, and their time; and the toys.

    python -m benchmarks.token_credit --data ../shared/data
    python -m benchmarks.token_credit --toys

Real answers of models in English and Chinese, joined to completions of about 512 tokens; byte-level tokenizers trained
here on other answers. "Sampled" ids are another way to write the same text (BPE dropout 0.1), as a sampling model may
choose. The one pass is what the others are compared with: that it gives every token to its sentence is shown against
the vocabularies' bytes by tests/mitigate/rl/test_credit.py. CPU seconds of one thread, the ways taking turns.

The toys: a table of logits learns what to write next, by policy gradient with the
package's own aspects and advantages. A sentence is one token: a careful claim, a bold one, small talk, or the end.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from statistics import median
from typing import Any

import numpy as np

from annotators.text.sentences import split_sentences
from benchmarks.common import Row, in_turns, parser, real_answers, row, save
from examples.pocket import lm
from mitigate.rewards.aspects import DEFAULT_LABEL_REWARDS as REWARDS
from mitigate.rewards.aspects import DEFAULT_WEIGHTS, Judged, aspect_values, relevance_reward, sentence_reward, total
from mitigate.rewards.segments import Segment
from mitigate.rl.credit import (
    Credit,
    anchors,
    owners,
    row_advantages,
    sequence_advantages,
    standardised,
    step_advantages,
    token_spans,
)

COMPLETIONS, TOKENS, VOCABULARY, ROUNDS = 16, 512, 4000, 3
Cuts = list[tuple[int, int]]
Case = tuple[list[int], str, Cuts]  # ids, their text, its sentences


def one_pass(core: Any, ids: list[int], text: str, cuts: Cuts) -> list[int]:
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


WAYS: dict[str, Callable[[Any, list[int], str, Cuts], list[int]]] = {
    "one pass (ours)": one_pass,
    "sentences re-tokenised": by_sentences,
    "prefixes re-tokenised": by_prefixes,
}


def completions(core: Any, answers: list[str], sampled: bool) -> list[Case]:
    """Answers joined by spaces or new lines until TOKENS tokens; the last one is cut there, as generation is."""
    core.model.dropout = 0.1 if sampled else None
    cases: list[Case] = []
    rng, rest = random.Random(0), list(answers)
    while len(cases) < COMPLETIONS and rest:
        text, ids = "", []
        while len(ids) < TOKENS and rest:
            text += rest.pop() + rng.choice([" ", "\n", "\n\n"])
            ids = core.encode(text, add_special_tokens=False).ids
        decoded = core.decode(ids[:TOKENS])
        cases.append((ids[:TOKENS], decoded, split_sentences(decoded)))
    core.model.dropout = None
    return cases


def measure(what: str, core: Any, cases: list[Case]) -> list[Row]:
    """For each way the share of tokens of sentences that it gives elsewhere, and its time as a multiple of ours."""
    ways = {name: lambda way=way: [way(core, *case) for case in cases] for name, way in WAYS.items()}
    found = {name: [*chain.from_iterable(way())] for name, way in ways.items()}
    taken = {name: median(seconds) for name, seconds in in_turns(ways, ROUNDS).items()}
    ours = "one pass (ours)"
    rows = []
    for name in [other for other in ways if other != ours]:
        wrong = [got != want for got, want in zip(found[name], found[ours], strict=True) if want >= 0]
        share = 100 * sum(wrong) / len(wrong)
        rows.append(row(f"{what}, {name}: tokens of another sentence", len(wrong), share, unit="%"))
        rows.append(row(f"{what}, {name}: times as long", len(cases), taken[name] / taken[ours]))
    return rows


# --- the toys --------------------------------------------------------------------------------------------------------

ACTIONS = ("careful", "bold", "talk", "end")
SEEDS, STEPS, PROMPTS, GROUP, PLACES, RATE = 3, 60, 2, 8, 8, 1.0
FACTS = {"factuality": 1.0}
Odds = Callable[[int, bool], tuple[float, float]]
TOYS: dict[str, tuple[str, dict[str, float], Odds]] = {
    # name → where a plan comes first; aspects; by place and plan, how often a careful and a bold claim are right
    "hard questions": ("", DEFAULT_WEIGHTS, lambda place, good: (0.35, 0.15)),
    "late sentences harder": ("", DEFAULT_WEIGHTS, lambda place, good: (0.95 - 0.05 * place, 0.3)),
    "a plan thought first": ("thought", DEFAULT_WEIGHTS, lambda place, good: (0.9, 0.5) if good else (0.4, 0.2)),
    "a plan said first, facts only": ("said", FACTS, lambda place, good: (0.9, 0.5) if good else (0.4, 0.2)),
}
DEFAULT, STOCK, ROLLED = "… and a fifth shared", "one number (stock)", "values by one continuation"
OLD = Credit(0.0, 0.0, eos="none", thinking="none", baseline="group", clip=None)
NEW = Credit(0.0, 0.0)
CREDITS = {
    "before": OLD, "… and eos": replace(OLD, eos="sequence"), "… and place, thinking": NEW,
    DEFAULT: replace(NEW, sequence_share=0.2), "… and half shared": replace(NEW, sequence_share=0.5),
    "… and γ = 1": replace(NEW, gamma=1.0),
    STOCK: replace(OLD, sequence_share=1.0), ROLLED: replace(NEW, rollouts=1),
}  # fmt: skip


def rewarded(said: list[Judged], aspects: dict[str, float], floor: bool) -> tuple[float, dict[str, list[float | None]]]:
    """The score of an answer and the rewards of its segments, by aspect, as ``SentenceReward`` has them."""
    share = min(1.0, sum(s.credit for s in said) / 4)
    values = aspect_values(said, REWARDS, share, target_sentences=4, max_words=10**6) or {}
    facts = [sentence_reward(s, REWARDS) for s in said]
    if floor and said and all(reward is None for reward in facts):
        facts = [values["factuality"]]
    parts = {name: [values[name]] * bool(said) for name in aspects} | {"factuality": facts}
    if "relevance" in aspects:
        parts["relevance"] = [relevance_reward(s) for s in said]
    return total(values, aspects), parts


Step = tuple[tuple[int, bool], int, np.ndarray, int, bool]
"""Place and plan, what was chosen, the odds of all; how many sentences there are then, and what the plan is."""


def written(
    toy: str, rng: np.random.Generator, logits: Mapping[tuple[int, bool], np.ndarray], begun: list[Judged], place: int,
    good: bool,
) -> tuple[list[Step], list[Judged]]:  # fmt: skip
    """How an answer goes on from a place on, and all its sentences."""
    plan, _, right = TOYS[toy]
    path: list[Step] = []
    said = list(begun)
    for at in range(place, PLACES):
        state = at, good
        odds = np.exp(logits[state] - logits[state].max())
        odds[2:] *= at >= 0  # a plan is one of two
        action = int((rng.random() * odds.sum() >= odds.cumsum()).sum())
        if at < 0:
            good = action == 0
            said += [Judged("no_fact", 5)] * (plan == "said")
        elif action < 3:
            true = rng.random() < right(at, good)[min(action, 1)]
            said.append(Judged("no_fact" if action == 2 else "supported" if true else "contradictory", 5))
        path.append((state, action, odds / odds.sum(), len(said), good))
        if at >= 0 and action == 3:
            break
    return path, said


def learn(toy: str, credit: Credit, seed: int) -> dict[str, float]:
    """What a policy writes in the last tenth of its training."""
    plan, aspects, _ = TOYS[toy]
    rng, logits = np.random.default_rng(seed), defaultdict(lambda: np.zeros(len(ACTIONS)))
    kept: list[tuple[float, int, bool]] = []  # score, claims, plan
    for _ in range(STEPS):
        paths, scored, texts = [], [], []
        for _ in range(PROMPTS * GROUP):
            path, said = written(toy, rng, logits, [], -bool(plan), True)
            paths.append(path)
            scored.append(rewarded(said, aspects, credit is not OLD))
            texts.append(("?" * (plan == "thought"), "." * len(said), said))
            kept.append((scored[-1][0], sum(s.label != "no_fact" for s in said), path[0][4]))
        if credit.rollouts:
            assert credit.rollouts == 1  # one continuation is drawn
            values: list[list[float]] = []
            for path, (_, _, said) in zip(paths, texts, strict=True):
                ends = (written(toy, rng, logits, said[:n], at + 1, good)[1] for (at, _), _, _, n, good in path[:-1])
                values.append([rewarded(end, aspects, True)[0] for end in ends])
            steps = step_advantages(np.array([score for score, _ in scored]), values, GROUP)
            for path, own in zip(paths, steps, strict=True):
                climb(logits, path, own.clip(-(credit.clip or np.inf), credit.clip), len(paths))
            continue
        whole_B = sequence_advantages(np.array([[score] for score, _ in scored]), np.ones(1), GROUP)
        tables = {a: standardised([p[a] for _, p in scored], GROUP, baseline=credit.baseline)[0] for a in aspects}
        for b, (path, (lead, text, _)) in enumerate(zip(paths, texts, strict=True)):
            parts = []
            for a, weight in aspects.items():
                n = len(scored[b][1][a])
                cuts = [(0, len(text))] if n == 1 else [(j, j + 1) for j in range(n)]
                own = [Segment(len(lead) + i, len(lead) + j) for i, j in cuts]
                parts.append((own, weight / sum(aspects.values()), tables[a][b]))
            ends = path[-1][1] == 3
            places_T = np.array([*range(len(lead + text)), *[-1] * ends])
            alike = (0.0, whole_B[b], whole_B[b])
            found = row_advantages(lead + text, places_T, lead + text, parts, alike, ends, credit)
            climb(logits, path, found[0] if found else np.zeros(0), len(paths))
    scores, claims, plans = zip(*kept[-len(kept) // 10 :], strict=True)
    return {
        "score": float(np.mean(scores)), "claims": float(np.mean(claims)),
        "silent, share": float(np.mean([not n for n in claims])), "good plan, share": float(np.mean(plans)),
    }  # fmt: skip


def climb(logits: Any, path: Sequence[Step], advantages: np.ndarray, paths: int) -> None:
    """One step of the policy gradient for one of so many paths."""
    for (state, action, odds, _, _), advantage in zip(path, advantages, strict=True):
        logits[state] += RATE / paths * advantage * (np.eye(len(ACTIONS))[action] - odds)


def toys() -> list[Row]:
    """Mean over the seeds of what each credit learns on each toy."""
    rows = []
    for (toy, (plan, *_)), (name, credit) in product(TOYS.items(), CREDITS.items()):
        found = [learn(toy, credit, seed) for seed in range(SEEDS)]
        for what in ("score", "good plan, share") if plan else ("score", "claims", "silent, share"):
            rows.append(row(f"toy “{toy}”, {name}: {what}", SEEDS, float(np.mean([one[what] for one in found]))))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--toys", action="store_true", help="only the toys")
    args = made.parse_args()
    if args.toys:
        found = toys()
        got = {one["what"]: one["value"] for one in found}
        gaps = {toy: got[f"toy “{toy}”, {STOCK}: score"] - got[f"toy “{toy}”, {DEFAULT}: score"] for toy in TOYS}
        shown = [row(f"toy “{toy}”: score, one number (stock) − default", SEEDS, gap) for toy, gap in gaps.items()]
        save("rewards", "token_credit", shown, tables={"all": found}, part="toys")
        return
    rows = []
    for language, texts in real_answers(args.data).items():
        core = lm.build_tokenizer(texts[::2][:500], VOCABULARY).backend_tokenizer
        for sampled in (False, True):
            cases = completions(core, texts[1::2], sampled)
            rows += measure(f"{language}, byte-level BPE, {'sampled' if sampled else 'canonical'} ids", core, cases)
            print(rows[-1], flush=True)
    shown = [one for one in rows if "re-tokenised: tokens" in one["what"]]
    save("rewards", "token_credit", shown, tables={"all": rows}, packages=["tokenizers"])


if __name__ == "__main__":
    main()
