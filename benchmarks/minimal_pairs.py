"""Does an annotator see contradictions? Pairs of a true and a minimally different false sentence about one passage.

    python -m benchmarks.minimal_pairs --languages --no-fact --data ../shared/data

minimal_pairs.jsonl is written by hand, about the passages of examples/documents_*.jsonl: the true sentence is in other
words than its passage, the false one often made of other facts of it. Sentences of Wikipedia articles of 2024 (never
committed) are edited here by narrow rules that training does not share. smoke_languages.jsonl has short texts in six
languages, no_fact.jsonl sentences that state nothing, and look-alikes. No annotator is trained on any of it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, product
from operator import itemgetter
from pathlib import Path

import numpy as np

from annotators import Annotator, load_annotator
from annotators.evaluation.metrics import Floats, bootstrap, supported_score, two_way_statistics
from annotators.records import HALLUCINATED
from annotators.text.words import stem_set, words_of
from benchmarks.annotator import FAST, predictions
from benchmarks.common import ROOT, Row, mean_row, parser, row, save, sentences_of
from mitigate.io import read_rows

HERE = ROOT / "benchmarks"
HAND, PROGRAM = "hand-written", "Wikipedia, edited"

# --- edits of Wikipedia sentences: few and narrow, so that the edited sentence is false ---------------------------

GIVEN = set("""Adam Alan Albert Alex Alexander Alfred Alice Andrew Anna Anthony Arthur Ben Bill Bob Brian Bruce Carl
    Charles Chris Daniel David Donald Edward Elizabeth Eric Francis Frank George Harry Henry Jack James Jane Jason Jean
    Jeff Jim Joe John Jonathan Joseph Karl Kevin Larry Laura Louis Maria Mark Martin Mary Matthew Michael Mike Oliver
    Patrick Paul Peter Philip Richard Robert Roger Ronald Roy Ryan Sam Scott Simon Stephen Steve Thomas Tim Tom William
    """.split())  # fmt: skip
PERSON = r"[A-Z][a-zé]+ (?:[A-Z]\. )?[A-Z][a-zé]+\b(?! [A-Z]|-)"
NAME = r"(?!(?:He|She|It|They|In|At|On|The|Since|After|When|Republican)\b)[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*"
ONCE = re.compile(  # what happens once, so that another year makes a sentence false
    r"\b(born|died|founded|established|built|opened|married|graduated|demolished|completed|launched|formed|retired|"
    r"abolished|incorporated|dissolved|inaugurated|premiered|destroyed|constructed|debuted|listed|renamed)\b"
)
VERBS = r"(?:defeated|beat|succeeded|replaced|acquired|lost to|(?:was )?(?:succeeded|replaced|defeated|acquired) by)"
MOVES = r"(?:moved|relocated|transferred|sailed|emigrated|renamed|changed) from"
YEAR = r"(?<![\w–-])(1[5-9]\d\d|20[0-2]\d)(?![\w–-])"
NUMBER = r"(?<![\w.,/$£€–-])(?<!No )(?<!July )(?<!June )(\d{1,3}(?:,\d{3})*)(?= [a-z]{3,})(?! (?:to|and|or|in|on)\b)"
BY = rf"(?:written|directed|produced|founded|designed|composed|created|defeated|coached|hosted|built) by ({PERSON})"
PLACE = r"(?= (?:part|end|side|coast|of|bank|edge|shore)\b)"
RULES: Mapping[str, Sequence[tuple[str, str]]] = {
    "polarity": (
        (r"^((?:The|He|She|It|They|[A-Z]\w+)(?: (?!who|which|that|and|or|when|where|as|also)[\w'’-]+){0,4}? (?:was|is|"
         r"were|are)) (?=(?:born|founded|built|located|released|the|a|an|elected|appointed|established|published)\b)"
         r"(?!the only|the first of|a lot)", r"\1 not "),
        (r"\b(was|were|is|are|did|could|does|will) not (?!only|all|just|so |necessarily|even|yet|always|to |.*until)",
         r"\1 "),
    ),
    "antonym": (
        (rf"\b(north|south)(ern|east|west|){PLACE}", "north=south"), (rf"\b(east|west)(ern|){PLACE}", "east=west"),
        (r"\b(largest|smallest)\b(?! (?:and|or))", "largest=smallest"), (r"\b(oldest|youngest)\b", "oldest=youngest"),
        (r"\b(highest|lowest)\b", "highest=lowest"), (r"\b(increased|decreased)\b", "increased=decreased"),
        (r"(?<!less )(?<!more )(?<!most )\b(unsuccessful|successful)\b", "successful=unsuccessful"),
        (r"\b(positive|negative)\b(?= (?:review|response|reception))", "positive=negative"),
        (r"\b(won|lost)\b(?= the (?:match|election|final|game|title|championship|battle|race|series))", "won=lost"),
        (r"\b(accepted|rejected)\b", "accepted=rejected"),
    ),
    "quantifier": (
        (r"\b[Aa]ll of the\b", "almost none of the"), (r"\b[Nn]one of the\b", "all of the"),
        (r"\b[Mm]ost of (?=the|his|her|its|their)", "hardly any of "), (r"(?<!not )\balways\b", "never"),
        (r"\bmajority of\b(?! one)", "minority of"), (r"(?<!and )\bBoth of\b", "neither of"),
    ),
    "comparison": (
        (r"\b(more|less) than (?=[\d£$€])", "more=less"), (r"\bat (least|most) (?=[\d£$€])", "least=most"),
        (r"\b(larger|smaller|higher|lower|older|younger|longer|shorter|earlier|later|faster|slower)(?= than\b)",
         "larger=smaller higher=lower older=younger longer=shorter earlier=later faster=slower"),
    ),
    "order": (
        (r"^(?!.*\b(?:not|never|until|named|look|may)\b).+ (before|after)(?= (?:his|her|its|their|the (?:death|war|"
         r"end|start|arrival|birth|release|opening|match|election|game|fire|battle)|joining|moving|becoming|winning|leaving|"
         r"graduating|returning|retiring|transferring|serving|completing|being (?:released|elected|sold|moved))\b)",
         "before=after"),
    ),
    "unit": (
        (r"(?<=\d )(kilometres|kilometers|km|miles|metres|meters|feet)\b(?!/| per)",
         "kilometres=metres kilometers=meters miles=feet km=cm"),
        (r"(?:\d|\b(?:two|three|four|five|six|seven|eight|nine|ten)) (minutes|hours|days|weeks|months)\b(?! old)",
         "minutes=hours days=years weeks=months"),
        (r"(?<=\d )(million|billion)\b", "million=billion"),
    ),
    "role": (
        (rf"^({NAME})( {VERBS} )({NAME})(?=[,.]| (?:in|as|on|at|and|with|by)\b| \d)", r"\3\2\1"),
        (rf"( {MOVES} )({NAME})( to )({NAME})", r"\1\4\3\2"),
    ),
    "scope": (
        (r"\bnever (?!more|before|to )", ""), (r"\b(was|is|were|are) the only\b", r"\1 not the only"),
        (r"(?<!one of the )\bonly (?=(?:two|three|four|five|six|\d+) )", "more than "),
    ),
}  # fmt: skip
"""Patterns and what takes the match's place: a replacement, or pairs of words of which the first group is exchanged."""


def other_number(sentence: str, pattern: str, passage: str) -> str | None:
    """The only match of a pattern exchanged for the nearest other number of the passage that the pattern fits."""
    found = list(re.finditer(pattern, sentence))
    if len(found) != 1:
        return None
    old, (start, end) = found[0][1], found[0].span(1)
    value = int(old.replace(",", ""))
    others = {other: int(other.replace(",", "")) for other in re.findall(pattern, passage)}
    fit = [text for text, n in others.items() if n and 0.1 < value / n < 10 and not re.search(rf"\b{text}\b", sentence)]
    return sentence[:start] + min(fit, key=lambda text: abs(others[text] - value)) + sentence[end:] if fit else None


def edited(sentence: str, kind: str, passage: str) -> str | None:
    """A false version of a true sentence of a passage; None where no rule of the kind fits."""
    if kind == "number" or (kind == "date" and len(ONCE.findall(sentence)) == 1):
        return other_number(sentence, YEAR if kind == "date" else NUMBER, passage)
    if kind == "name":
        old = found[0] if len(found := re.findall(BY, sentence)) == 1 else ""
        for new in re.findall(PERSON, passage) if old else ():
            if {old.split()[0], new.split()[0]} <= GIVEN and not set(new.split()) & set(re.findall(r"\w+", sentence)):
                return sentence.replace(old, new)
    for pattern, target in RULES.get(kind, ()):
        if len(found := list(re.finditer(pattern, sentence))) != 1:
            continue
        if "=" in target:
            pairs, (start, end) = [pair.split("=") for pair in target.split()], found[0].span(1)
            return sentence[:start] + (dict(pairs) | {b: a for a, b in pairs})[found[0][1]] + sentence[end:]
        changed = re.sub(pattern, target, sentence)
        return changed[0].upper() + changed[1:]
    return None


MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
REWORD = (
    (r" \([^()]*\)", ""), (r"^(?:However|Additionally|Furthermore|Moreover|Subsequently|Also), ", ""),
    (rf"\b({MONTH}) (\d{{1,2}}), (\d{{4}}),?", r"\2 \1 \3"), (r"\bis (?:located|situated) in\b", "lies in"),
    (r"\bapproximately\b", "roughly"), (r"\bin order to\b", "to"), (r"\bdue to\b", "because of"),
    (r"\bpurchased\b", "bought"), (r"\bbegan\b", "started"), (r"\bnumerous\b", "many"), (r"\bprior to\b", "before"),
    (r"\bsubsequently\b", "later"), (r"\bconstructed\b", "built"), (r"(\d)%", r"\1 percent"),
    (r"^((?:In|On|During) [\w ]*\d{4}), ((?:[Hh]e|[Ss]he|[Ii]t|[Tt]hey|[Tt]he|[A-Z]\w+) [^,;]+)\.$",
     lambda m: f"{m[2]} {m[1][0].lower()}{m[1][1:]}."),
)  # fmt: skip


def reworded(sentence: str) -> str:
    """The sentence a little changed in its words, never in its meaning."""
    for pattern, target in REWORD:
        sentence = re.sub(pattern, target, sentence)
    return sentence[0].upper() + sentence[1:]


def wikipedia_pairs(data: Path, limit: int) -> Iterator[Row]:
    """At most two pairs of different kinds from each article, at most ``limit`` of a kind and split."""
    if not (path := data / "documents" / "wikipedia_2024.jsonl").is_file():
        print(f"skipped: data not here (expected {path}; see --data)")
        return
    made: Counter[tuple[str, str]] = Counter()
    for article in read_rows(path):
        sentences = sentences_of(article["text"][:1500])[:-1]
        passage, used = " ".join(sentences), set()
        split = "test" if int(hashlib.sha256(article["id"].encode()).hexdigest(), 16) % 2 else "dev"
        for sentence in sentences:
            if not re.fullmatch(r"[A-Z][^\"“”:;?!\n\[\]…]{40,220}\.", sentence) or len(used) == 2 or ".." in sentence:
                continue
            true = reworded(sentence)
            for kind in sorted({*RULES, "number", "date", "name"}, key=lambda k: made[k, split]):
                if kind in used or made[kind, split] >= limit or not (false := edited(true, kind, passage)):
                    continue
                made[kind, split] += 1
                used.add(kind)
                yield {"passage_id": article["id"], "split": split, "kind": kind, "question": None, "passage": passage,
                       "true": true, "false": false, "kept": None}  # fmt: skip
                break


def overlap(sentence: str, passage: str, language: str) -> float:
    """Share of a sentence's content words that its passage has; of its pairs of characters in Chinese and Japanese."""
    if language in ("zh", "ja"):
        own, known = [sentence[i : i + 2] for i in range(len(sentence) - 2)], passage
    else:
        words, known = words_of(sentence), stem_set(passage)
        own = [stem for stem, content in zip(words.stems, words.content, strict=True) if content]
    return float(np.mean([piece in known for piece in own])) if own else np.nan


def judged(annotator: Annotator, asked: Sequence[Row]) -> tuple[Floats, list[str | None], Floats]:
    """The annotator's support and label, and the overlap of words, of rows with sentence, reference and lang."""
    answers = predictions(annotator, asked)
    words = [overlap(r["sentence"], r["reference"], r["lang"]) for r in asked]
    return supported_score([a.scores for a in answers]), [a.label for a in answers], np.array(words)


def auc_row(what: str, gold: Sequence[str], support: Floats, groups: Sequence[str]) -> Row:
    """AUC of supported against hallucinated sentences, with an interval over passages."""
    area = two_way_statistics(gold, [None] * len(gold), support=support)["auc"]
    return row(what, len(gold), area(np.ones(len(gold))), bootstrap({"auc": area}, groups)["auc"])


def figures(called: str, value: np.ndarray, groups: Sequence[str]) -> list[Row]:
    """Rows of n pairs; ``value`` (figure, sentence, n) holds support, flagged and overlap of true, false and kept."""
    gold = ["supported"] * len(groups) + ["contradictory"] * len(groups)
    (true, false, kept), (true_flagged, false_flagged, _), words = value
    above = np.where(np.isnan(true + false), np.nan, (true > false) + 0.5 * (true == false))
    return [
        auc_row(f"{called}: AUC", gold, value[0, :2].ravel(), [*groups, *groups]),
        auc_row(f"{called}: AUC of word overlap", gold, words[:2].ravel(), [*groups, *groups]),
        mean_row(f"{called}: true above its false", above, groups, "%"),
        mean_row(f"{called}: true flagged", true_flagged, groups, "%"),
        mean_row(f"{called}: false flagged", false_flagged, groups, "%"),
        mean_row(f"{called}: true reworded, mean change of support", abs(kept - true), groups),
        mean_row(f"{called}: true reworded, mean change of word overlap", abs(words[2] - words[0]), groups),
    ]


def pair_rows(name: str, pairs: Sequence[Row], annotator: Annotator) -> tuple[list[Row], list[Row]]:
    """Rows of the page for one source of pairs, and every row by split and kind."""
    keys = ("true", "false", "kept")
    at = [(k, i) for i, pair in enumerate(pairs) for k, key in enumerate(keys) if pair[key]]
    asked = [pairs[i] | {"sentence": pairs[i][keys[k]], "reference": pairs[i]["passage"], "lang": "en"} for k, i in at]
    support, labels, lexical = judged(annotator, asked)
    value = np.full((3, len(keys), len(pairs)), np.nan)
    for (k, i), *measured in zip(at, support, [float(label in HALLUCINATED) for label in labels], lexical, strict=True):
        value[:, k, i] = measured
    shown, everything = [], []
    for split in (splits := sorted({pair["split"] for pair in pairs})):
        for kind in ("all kinds", *sorted({pair["kind"] for pair in pairs})):
            own = [i for i, p in enumerate(pairs) if p["split"] == split and kind in ("all kinds", p["kind"])]
            rows = figures(f"{name}, {split}, {kind}", value[:, :, own], [pairs[i]["passage_id"] for i in own])
            everything += rows
            if split != splits[-1] or kind != "all kinds":
                rows = rows[:1] if kind == "all kinds" or (name == HAND and split == splits[-1]) else []
            shown += [one for one in rows if one["value"] is not None]
    return shown, everything


def language_rows(annotator: Annotator) -> list[Row]:
    """AUC by language of supported against contradictory and unverifiable sentences, word overlap beside it."""
    labels = ("supported", "contradictory", "unverifiable")
    asked = [
        {"sentence": text, "reference": r["passage"], "lang": r["lang"], "label": label, "group": r["passage_id"]}
        for r in read_rows(HERE / "smoke_languages.jsonl") for label in labels for text in r[label]
    ]  # fmt: skip
    support, _, lexical = judged(annotator, asked)
    shown = []
    for language in sorted({r["lang"] for r in asked}):
        at = [i for i, r in enumerate(asked) if r["lang"] == language]
        gold, groups = [asked[i]["label"] for i in at], [asked[i]["group"] for i in at]
        if np.isnan(support[at]).all():  # the annotator does not read it
            continue
        shown += [auc_row(f"language {language}: AUC", gold, support[at], groups),
                  auc_row(f"language {language}: AUC of word overlap", gold, lexical[at], groups)]  # fmt: skip
    return shown


def no_fact_rows(annotator: Annotator) -> list[Row]:
    """Share of sentences that state nothing which are found, and of factual look-alikes called no fact."""
    passages = sorted({p["passage"] for p in pairs_by_hand()})
    asked = [r | {"reference": passages[i % len(passages)]} for i, r in enumerate(read_rows(HERE / "no_fact.jsonl"))]
    support, labels, _ = judged(annotator, asked)
    shown = []
    for (no_fact, what), language in product(((True, "found"), (False, "false alarms")), ("en", "zh")):
        at = [i for i, r in enumerate(asked) if (r["lang"], r["no_fact"]) == (language, no_fact)]
        share = np.array([float(labels[i] == "no_fact") for i in at])
        if share.any() or not np.isnan(support[at]).all():  # else the annotator does not read it
            shown.append(mean_row(f"no fact, {language}: {what}", share, unit="%"))
    return shown


def pairs_by_hand() -> list[Row]:
    """The pairs written by hand, each with its passage, the parts of one document."""
    parts: dict[str, list[str]] = {}
    for r in (r for name in ("train", "held_out") for r in read_rows(ROOT / "examples" / f"documents_{name}.jsonl")):
        parts.setdefault(r["document"], []).append(r["reference"])
    pairs = read_rows(HERE / "minimal_pairs.jsonl")
    return [pair | {"passage": " ".join(parts[pair["passage_id"]])} for pair in pairs]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--annotator", default="embedded")
    made.add_argument("--split", choices=("dev", "test"), help="one half of the pairs (default: both)")
    made.add_argument("--limit", type=int, help="pairs of a source, kind and split (default: all, 20 of the edited)")
    made.add_argument("--languages", action="store_true", help="short texts in six languages too")
    made.add_argument("--no-fact", action="store_true", help="sentences that state nothing too")
    args = made.parse_args()
    annotator, fast, part = load_annotator(args.annotator), load_annotator(FAST), itemgetter("split", "kind")
    written = [p for _, own in groupby(sorted(pairs_by_hand(), key=part), part) for p in islice(own, args.limit)]
    shown, tables = [], {}
    for name, found in ((HAND, written), (PROGRAM, wikipedia_pairs(args.data, args.limit or 20))):
        if pairs := [pair for pair in found if args.split in (None, pair["split"])]:
            rows, tables[name] = pair_rows(name, pairs, annotator)
            shown += rows
            rows, tables[f"{FAST}, {name}"] = pair_rows(f"{FAST}, {name}", pairs, fast)
            shown += [one for one in rows if one["what"].endswith("test, all kinds: AUC")]
    shown += (language_rows(annotator) if args.languages else []) + (no_fact_rows(annotator) if args.no_fact else [])
    about = f"Annotator {annotator.name}, fingerprint {annotator.fingerprint}; {FAST}, {fast.fingerprint}."
    save("minimal_pairs", "minimal_pairs", shown, tables=tables, about=about)


if __name__ == "__main__":
    main()
