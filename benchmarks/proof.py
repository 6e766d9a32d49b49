"""Does training with sentence rewards make a real language model hallucinate less? SmolLM2 on real articles.

    python -m benchmarks.proof --data ../shared/data --blind  # questions, runs of the arms, figures, sentences to label
    python -m benchmarks.proof --data ../shared/data --page   # once these have a "label", and a "second" by who can

Questions are made by program, about an article's title or what its text tells or not; the text stands in the prompt. An
arm is a run of a recipe with a few keys changed; one that was stopped goes on, one of other keys is refused. Held-out
answers are the likeliest; ``JUDGE``, of another base than ``REWARD``, and lexical measures judge them beside blind
labels: blind-N.jsonl has 200 sentences of new arms in mixed order, key.jsonl whose they are.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from annotators import load_annotator
from annotators.evaluation.metrics import Statistic, bootstrap, minus, share_of, supported_score, two_way_statistics
from annotators.operating import FILE, Calibration
from annotators.records import HALLUCINATED, LABELS
from annotators.text.sentences import split_sentences
from annotators.text.words import stem_set, words_of
from annotators.verifier.annotator import SHIPPED
from annotators.verifier.data import read_rows as verifier_rows
from benchmarks.common import RESULTS, ROOT, Row, command, figure, line, mean_row, parser, row, save
from engines.checkpoint import locate, prompt_ids
from mitigate.io import read_rows, write_lines
from mitigate.rewards.inputs import Answer, cannot_tell, copied, reference_of, specifics

LONGEST, SHORTEST = 600, 300  # characters of a document: the first whole sentences of an article
SAID = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ANSWERABLE = {"open": True, "told": True, "another title": False, "absent": False}  # by kind of question


def questions(data: Path, held_out: int) -> list[Row]:
    """A question to each usable document, in a fixed random order; the first ``held_out`` have other attributes.

    Every wording is asked with and without an answer in the text: none tells by itself that there is none.
    """
    path = data / "documents" / "wikipedia_2024.jsonl"
    if not path.is_file():
        sys.exit(f"skipped: data not here (expected {path}; see --data)")
    found = []
    for article in read_rows(path):
        ends = [end for _, end in split_sentences(article["text"]) if end <= LONGEST]
        text, title = article["text"][: max(ends, default=0)], re.sub(r" \(.*\)$", "", article["title"])
        # A title whose words the text doesn't have may be about something else.
        if len(text) >= SHORTEST and stem_set(title) <= stem_set(text):
            found.append((article["id"], title, text))
    random.Random("proof").shuffle(found)
    rows = []
    for i, (name, title, text) in enumerate(found):
        rng, other = random.Random(f"proof {name}"), found[i - 1][1]
        asked: dict[str, list[str]] = {"open": [q.format(title=title) for q in SAID["open"]], "told": [], "absent": []}
        for attribute, words in SAID["attributes"]["held out" if i < held_out else "training"].items():
            tells, may = (re.search(rf"(?<!\w)({'|'.join(w.split())})", text, re.I) for w in words)
            if tells or not may:
                asked["told" if tells else "absent"].append(SAID["about"].format(attribute=attribute, title=title))
        if specifics(other).keys().isdisjoint(specifics(text)):
            asked["another title"] = [q.format(title=other) for q in SAID["open"]]
        kinds = [kind for kind in SAID["kinds"] if asked.get(kind)]
        kind = rng.choices(kinds, [SAID["kinds"][kind] for kind in kinds])[0]
        question = rng.choice(asked[kind])
        chat = [{"role": "user", "content": SAID["prompt"].format(reference=text, question=question)}]
        one = {"id": name, "kind": kind, "answerable": ANSWERABLE[kind], "question": question}
        rows.append(one | {"reference": text, "prompt": chat})
    return rows


REWARD, JUDGE, MODEL, TOKENS = "embedded", "embedded-fast", "packaged:smollm2", 64  # as in the YAML
ARMS: dict[str, Row] = SAID["arms"]
FINGERPRINTS = {name: Calibration.load(SHIPPED[name] / FILE).annotator for name in (JUDGE, REWARD)}


def run_arm(work: Path, arm: str, seed: int, changed: Sequence[str]) -> Path:
    """The folder of an arm's run, made or gone on with; one that is done is compared with these keys."""
    how, name = ARMS[arm], ARMS[arm].get("run", arm)
    own = [key.replace("{work}", str(work)) for key in [*how["keys"], *how.get("own", [])]]
    missing = [key for key in own if f"{work}/" in key and not Path(key[key.index(f"{work}/") :]).exists()]
    if missing:
        first = missing[0]
        to_label(work) if first.startswith("reward.") else sys.exit(f"{arm}: run its policy's arm first ({first})")
    keys = [f"data={work / how['data']}", f"seed={seed}", *own]
    if how["data"] == "train.jsonl":
        keys += [f"evaluation.data={{held-out: {work / 'held_out.jsonl'}}}", f"evaluation.questions={10**6}"]
        keys += [f"evaluation.annotator={JUDGE}", "evaluation.temperature=0", *changed]
    folder = work / re.sub("[^a-z0-9]+", "-", f"{name} {seed}".lower())
    command("mitigate.cli", "run", how["recipe"], *keys, "--output", str(folder))
    return folder


DRAWS = (("mine/sentences/first.jsonl", "calibrate", 400, 1), ("mine/sentences/more.jsonl", "train further", 800, 3))
THEN = """label {0}/mine/sentences, start again, and make what is missing:
mitigate train annotators/embedded start=embedded data={0}/mine 'sources=[mine]' 'pair_sources=[]' further.texts=0 \
further.epochs=2 --output {0}/tuned
mitigate calibrate --annotator {0}/tuned/annotator --input {0}/mine/held.jsonl --output {0}/calibration-tuned.json"""


def to_label(work: Path) -> None:
    """Write an uncalibrated arm's sentences to label, and folds 0 and 1, which training leaves out; stop with THEN."""
    rows, drawn = list(read_rows(work / "mask-dpo-copying-less-0" / "sampled.jsonl")), set[tuple[str, str]]()
    if not rows:
        sys.exit("run 'Mask-DPO, copying less' first: its samples are labelled")
    for name, seed, most, each in DRAWS:  # each draw after those before it, at most so many sentences a question
        said, count, own = [(r, s["text"]) for r in rows for s in r["sentences"]], Counter[int](), list[Row]()
        random.Random(seed).shuffle(said)
        for n, (r, text) in product(range(each), said):
            if len(own) < most and (r["question"], text) not in drawn and count[r["place"]] <= n:
                count[r["place"]] += 1
                drawn.add((r["question"], text))
                one = {"id": str(len(drawn)), "source": "mine", "lang": "en", "answer": None, "label": None}
                own.append({**one, "question": r["question"], "reference": r["reference"], "sentence": text})
        if not (work / name).is_file():
            write_lines(work / name, own)
    write_lines((mine := work / "mine") / "held.jsonl", [r for r in verifier_rows(mine) if r["fold"] in (0, 1)])
    sys.exit(THEN.format(work))


def answers(folder: Path, arm: str, tokenizer: Any) -> list[Row]:
    """The held-out questions, each with its answer as "given", and as "answer" without a last sentence "cut off"."""
    if (folder / "model").is_dir():
        asked = {r["id"]: r for r in read_rows(folder.parent / "held_out.jsonl")}
        when = "before" if arm == "base" else "after"
        rows = [{**asked[r["id"]], **r} for r in read_rows(folder / "samples.jsonl") if r["when"] == when]
    else:
        rows = [{**r, "answer": r["answer"] or ""} for r in read_rows(folder / "results.jsonl")]
    for r in rows:
        text = r["answer"].rstrip()
        # Tokenised anew, a text may have a few tokens fewer than were written.
        cut = len(tokenizer(text)["input_ids"]) > TOKENS - 4 and not re.search(r"[.!?…][\"'”’)\]*]*$", text)
        ends = [end for _, end in split_sentences(text)][:-1]
        r |= {"answer": text[: max(ends, default=0)] if cut else text, "given": text, "cut off": cut}
    return rows


def counted(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What each answer has; a sentence that says that the text does not tell states nothing, whatever a judge says.

    ``specifics``: distinct numbers, names and dates of the document in sentences that JUDGE finds supported.
    ``copied``: mean density of its sentences, 1 for a copy. ``in document``: share of its content words.
    """
    labels = {name: load_annotator(name).annotate_batch(rows) for name in (JUDGE, REWARD)}
    found: list[dict[str, Any]] = []
    for i, r in enumerate(rows):
        said, reference, kinds = labels[JUDGE][i].sentences, reference_of(r["reference"]), {}
        answer = Answer(r["answer"], (), False, r["reference"], r["question"], None, None)
        silent = [cannot_tell(answer, s.text) for s in said]
        for name, by in labels.items():
            kinds[name] = ["no_fact" if q else s.label for s, q in zip(by[i].sentences, silent, strict=True)]
        own, words = kinds[JUDGE], words_of(r["answer"])
        told = [specifics(s.text) for s, kind in zip(said, own, strict=True) if kind == "supported"]
        known, stems = stem_set(r["reference"]), zip(words.stems, words.content, strict=True)
        content = [stem in known for stem, kept in stems if kept]
        found.append({
            "id": r["id"], "answer": r["answer"], "kind": r["kind"], "labels": own, "sentences": len(said),
            "hallucinated": sum(kind in HALLUCINATED for kind in own), "supported": own.count("supported"),
            "unsure": own.count(None),  # no verdict: neither
            "hallucinated by the reward's annotator": sum(kind in HALLUCINATED for kind in kinds[REWARD]),
            "specifics": len({u for one in told for u, weight in one.items() if weight > 1 and u in reference.all}),
            "copied": copied(labels[JUDGE][i].to_dict()),
            "in document": float(np.mean(content)) if content else None, "words": len(words),
            "abstained": bool(said) and all(silent), "cut off": float(r["cut off"]),
        })  # fmt: skip
    return found


def divergence(folder: Path, rows: Sequence[Row], tokenizer: Any, n: int = 100) -> list[float]:
    """Mean KL(π ‖ π_base) over the places of each of ``n`` answers of π, in nats a token."""
    import torch
    from transformers import AutoModelForCausalLM

    chats = {r["id"]: r["prompt"] for r in read_rows(folder.parent / "held_out.jsonl")}
    load = AutoModelForCausalLM.from_pretrained
    both = [load(path, dtype=torch.float32).eval() for path in (folder / "model", locate(MODEL))]
    found = []
    for r in rows[:n]:
        asked, said = prompt_ids(tokenizer, chats[r["id"]]), tokenizer(r["given"])["input_ids"]
        with torch.inference_mode():
            own_TV, base_TV = (
                model(torch.tensor([asked + said])).logits[0, len(asked) - 1 :].log_softmax(-1) for model in both
            )
            found.append(round(float((own_TV.exp() * (own_TV - base_TV)).sum(-1).mean()), 4))
    return found


def measured(work: Path, arm: str, seed: int, changed: Sequence[str]) -> list[Row]:
    """What is counted in an arm's answers, kept beside its run."""
    from transformers import AutoTokenizer

    folder, tokenizer = run_arm(work, arm, seed, changed), AutoTokenizer.from_pretrained(locate(MODEL))
    kept = folder / f"counted-{arm.replace(' ', '-')}-{'-'.join(one[:8] for one in FINGERPRINTS.values())}.jsonl"
    if not kept.is_file():
        rows = answers(folder, arm, tokenizer)
        trained = arm != "base" and any((folder / "model").glob("*.safetensors"))
        nats = divergence(folder, rows, tokenizer) if trained else []
        write_lines(kept, [r | ({"KL": nats[i]} if i < len(nats) else {}) for i, r in enumerate(counted(rows))])
    return list(read_rows(kept))


def blind(work: Path, found: dict[tuple[str, int], list[Row]], each: int) -> None:
    """Write so many sentences of every run that has none yet to label, in mixed order, and apart whose they are."""
    key = list(read_rows(work / "key.jsonl"))
    new = {run: rows for run, rows in found.items() if run not in {(r["arm"], r.get("seed", 0)) for r in key}}
    rng, texts, drawn = random.Random(f"blind {len(key)}"), {r["id"]: r for r in read_rows(work / "held_out.jsonl")}, []
    for run, rows in new.items():
        all_said = [(run, r, a, b) for r in rows for a, b in split_sentences(r["answer"])]
        drawn += rng.sample(all_said, min(len(all_said), each))
    rng.shuffle(drawn)
    for n, ((arm, seed), r, a, b) in enumerate(drawn, len(key)):
        asked = {name: texts[r["id"]][name] for name in ("reference", "question")}
        said = {"id": r["id"], "before": r["answer"][:a], "sentence": r["answer"][a:b]}
        key.append({**asked, "number": n, "arm": arm, "seed": seed, **said})
    if drawn:
        shown = ({k: v for k, v in r.items() if k not in ("arm", "seed")} for r in key[-len(drawn) :])
        write_lines(path := work / f"blind-{len(key) - len(drawn)}.jsonl", ({**r, "label": None} for r in shown))
        write_lines(work / "key.jsonl", key)
        print(f"to label ({', '.join(LABELS)}): {path}; then --page")


LABELLED = ("number", "arm", "id", "question", "sentence", "label", "specifics", "second", "seed")  # what is kept


def labelled(work: Path) -> list[Row]:
    """Labels with their arms; stops where one is missing, unknown or of another sentence."""
    given = [r for path in sorted(work.glob("blind-*.jsonl")) for r in read_rows(path)]
    key = {r["number"]: r for r in read_rows(work / "key.jsonl")}
    for r in given:
        wrong = [said for said in (r["label"], r.get("second", r["label"])) if said not in LABELS]
        if wrong or r["sentence"] != key.get(r["number"], {}).get("sentence"):
            wanted = f"number {r['number']}: expected one of {', '.join(LABELS)} for the sentence that was drawn"
            sys.exit(f"blind-*.jsonl, {wanted}, got {[*wrong, r['label']][0]!r} for {r['sentence'][:60]!r}")
    if sorted(r["number"] for r in given) != sorted(key):
        sys.exit(f"blind-*.jsonl: expected {len(key)} labels, one of each number, got {len(given)}")
    for r in given:  # distinct numbers, names and dates of the document, not of the question, that the sentence has
        known = reference_of(r["reference"]).all.keys() - specifics(r["question"]).keys()
        r["specifics"] = sum(weight > 1 and u in known for u, weight in specifics(r["sentence"]).items())
    return [{k: v for k, v in {**key[r["number"]], **r}.items() if k in LABELLED} for r in given]


def by_judges(asked: Sequence[Row], labels: Sequence[Row], work: Path) -> list[Row]:
    """Rows of how judges order labelled sentences that no judge chose: all, and those about one question."""
    own = [r for r in labels if r["label"] != "no_fact" and ARMS[r["arm"]]["data"] == "train.jsonl"]
    gold, ids, n = [r["label"] for r in own], [r["id"] for r in own], len(own)
    texts, areas, shown = {r["id"]: r["reference"] for r in asked}, dict[str, Statistic](), list[Row]()
    both = [(i, j) for i, j in permutations(range(n), 2) if ids[i] == ids[j] and gold[i] == "supported" != gold[j]]
    taught = load_annotator(str(work / "tuned" / "annotator"), calibration=work / "calibration-tuned.json")
    for name, judge in {**{name: load_annotator(name) for name in (REWARD, JUDGE)}, "taught": taught}.items():
        said = judge.predict([{**r, "reference": texts[r["id"]]} for r in own])
        support = supported_score([s.scores for s in said])
        areas[name] = two_way_statistics(gold, [s.label for s in said], support=support)["auc"]
        won = np.array([(np.sign(support[i] - support[j]) + 1) / 2 for i, j in both])
        shown.append(mean_row(f"judge {name}: AUC within questions", won, [ids[i] for i, _ in both]))
    areas |= {f"{name} − {REWARD}": minus(areas[name], areas[REWARD]) for name in (JUDGE, "taught")}
    limits = bootstrap(areas, ids)
    return shown + [row(f"judge {name}: AUC", n, area(np.ones(n)), limits[name]) for name, area in areas.items()]


def apart(arm: str, other: str, labels: Sequence[Row]) -> Row:
    """How much more of an arm's factual sentences is hallucinated than of another's, over documents."""
    own = [r for r in labels if r["arm"] in (arm, other) and r["label"] != "no_fact"]
    wrong, ours = (np.array(x) for x in ([r["label"] in HALLUCINATED for r in own], [r["arm"] == arm for r in own]))
    gap = minus(share_of(wrong, ours), share_of(wrong, ~ours))
    limits = [100 * end for end in bootstrap({"": gap}, [r["id"] for r in own])[""] or ()]
    value, what = 100 * (gap(np.ones(len(own))) or 0.0), f"{arm} − {other}: share of hallucinated by blind labels"
    return row(what, len(own), value, limits, "%")


def results(found: dict[str, list[list[Row]]], labels: Sequence[Row]) -> list[Row]:
    """Rows of the page: means over held-out questions, of the mean over seeds."""

    def table(seeds: list[list[Row]], name: str) -> Any:
        read = [[np.nan if r.get(name) is None else r[name] for r in rows] for rows in seeds]
        return np.mean([rows for rows in read if not np.isnan(rows).all()] or read, axis=0)  # KL: with weights

    shown = []
    for arm, seeds in found.items():
        own = [r for r in labels if r["arm"] == arm]
        wrong = np.array([float(r["label"] in HALLUCINATED) for r in own])
        if own:
            stated, ids = [r["label"] != "no_fact" for r in own], [r["id"] for r in own]
            told = {r["id"]: ANSWERABLE[r["kind"]] for rows in seeds for r in rows}
            places = {"": (True, False), ", where the text answers": (True,), ", where it does not answer": (False,)}
            for place, kinds in places.items():
                said = [w if s and told.get(i) in kinds else np.nan for s, i, w in zip(stated, ids, wrong, strict=True)]
                shown.append(mean_row(f"{arm}: hallucinated by blind labels{place}", np.array(said), ids, "%"))
            n = np.mean([r["sentences"] for rows in seeds for r in rows])  # an answer
            shown.append(mean_row(f"{arm}: hallucinated an answer by blind labels", wrong * n, ids))
            true = n * np.array([r["specifics"] * (r["label"] == "supported") for r in own])
            shown.append(mean_row(f"{arm}: true specifics an answer by blind labels", true, ids))
            of = [r.get("seed") or 0 for r in own]
            for seed in sorted({*of}) if len({*of}) > 1 else ():
                some = np.where([s and o == seed for s, o in zip(stated, of, strict=True)], wrong, np.nan)
                shown.append(mean_row(f"{arm}, seed {seed}: hallucinated by blind labels", some, ids, "%"))
            if all("second" in r for r in own):
                other = [float("nan") if r["second"] == "no_fact" else r["second"] in HALLUCINATED for r in own]
                shown.append(mean_row(f"{arm}: hallucinated by a second reader", np.array(other, float), ids, "%"))
                same = [(r["second"] in HALLUCINATED) == (r["label"] in HALLUCINATED) for r in own]
                shown.append(mean_row(f"{arm}: both readers agree", np.array(same, float), ids, "%"))
        for name in [k for k, v in seeds[0][0].items() if not isinstance(v, str | list | bool)]:
            shown.append(mean_row(f"{arm}: {name} {'a token' if name == 'KL' else 'an answer'}", table(seeds, name)))
            if arm != "base" and "base" in found and name != "KL":
                shown.append(mean_row(f"{arm} − base: {name}", table(seeds, name) - table(found["base"], name)))
        for kind, answerable in ANSWERABLE.items():
            if (asked := [[r for r in rows if r["kind"] == kind] for rows in seeds])[0]:
                what = f"{arm}: abstained {'wrongly' if answerable else 'rightly'}, {kind}"
                shown.append(mean_row(what, table(asked, "abstained"), unit="%"))
    read = {r["arm"] for r in labels}
    return shown + [apart(arm, other, labels) for other, arm in combinations(filter(read.__contains__, ARMS), 2)]


COLUMNS = {  # of the page, whose rows are arms: what each shows of an arm, with its interval or without
    "hallucinated": ("hallucinated by blind labels", True),
    "an answer": ("hallucinated an answer by blind labels", True),
    "true specifics": ("true specifics an answer by blind labels", True),
    "copied": ("copied an answer", False),
    "copied − base": ("copied", True),
    "by a second reader": ("hallucinated by a second reader", False),
    "hallucinated, by `embedded-fast`": ("hallucinated an answer", False),
    "supported": ("supported an answer", False),
    "words": ("words an answer", False),
    "KL": ("KL a token", False),
}
ABSTAINED = ("rightly", "wrongly")


def of_arms(rows: Sequence[Row]) -> list[Row]:
    """The rows of the page, one for each arm, with what COLUMNS names and how often it abstained."""
    own = {r["what"]: r for r in rows}
    out = []
    for arm in (arm for arm in ARMS if f"{arm}: hallucinated by blind labels" in own):
        cells = []
        for heading, (name, limits) in COLUMNS.items():
            found = own.get(f"{arm} − base: {name}" if "base" in heading else f"{arm}: {name}")
            cells.append(figure(found, limits=limits) if found else "–")
        for kind in ABSTAINED:
            asked = [r for r in rows if r["what"].startswith(f"{arm}: abstained {kind}, ")]
            share = sum(r["n"] * r["value"] for r in asked) / max(sum(r["n"] for r in asked), 1)
            cells.append(f"{share:.1f}%")
        out.append({"what": arm, "n": own[f"{arm}: hallucinated by blind labels"]["n"], "value": cells})
    return out


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--work", type=Path, default=ROOT / "out" / "proof", help="where runs are kept")
    made.add_argument("--arms", nargs="+", choices=ARMS, default=[a for a in ARMS if "alone" not in ARMS[a]])
    made.add_argument("--seeds", type=int, nargs="+", choices=range(3), default=range(3), help="most arms have 0 only")
    made.add_argument("--held-out", type=int, default=300, help="documents; fewer to try the program")
    made.add_argument("--train", type=int, default=400, help="questions to train on")
    made.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipes that train")
    made.add_argument("--blind", action="store_true", help="draw 200 sentences of each of these arms to label")
    made.add_argument("--page", action="store_true", help="write the page, with the labels")
    args = made.parse_args()
    args.arms = list(dict.fromkeys(["base", *args.arms] if args.page else args.arms))  # others are compared with it
    runs, work = [(a, s) for a in args.arms for s in args.seeds if s < ARMS[a]["seeds"]], args.work.resolve()
    if not runs:
        made.error(f"none of --arms has a run of --seeds {args.seeds}: most have seed 0 only")
    labels = [r for r in labelled(work) if r["arm"] in args.arms] if args.page else []
    old = json.loads((RESULTS / "proof.json").read_text(encoding="utf-8"))["parts"]["proof"]["tables"]
    new, run = [[r.get(name) for name in LABELLED] for r in labels], {*args.arms} - {"base"}  # which any may be beside
    others = [o for o in old["labels"] if args.page and o[1] not in run and o[:5] not in [r[:5] for r in new]]
    labels += [{k: v for k, v in zip(LABELLED, one, strict=True) if v is not None} for one in others]
    asked = questions(args.data, args.held_out)
    if len(asked) < args.held_out + args.train:
        made.error(f"--held-out and --train: expected at most {len(asked)} questions, which --data has, in all")
    for part, made_now in {"held_out": asked[: args.held_out], "train": asked[args.held_out :][: args.train]}.items():
        path = work / f"{part}.jsonl"
        if path.is_file() and list(read_rows(path)) != made_now:
            sys.exit(f"{path}: expected what this --data, --held-out and --train ask, got others: give another --work")
        write_lines(path, made_now)
    counts = {(arm, seed): measured(work, arm, seed, args.set) for arm, seed in runs}
    found = {arm: [rows for run, rows in counts.items() if run[0] == arm] for arm, _ in runs}
    print("\n".join(map(line, rows := results(found, labels))))
    if args.page:
        kept = [r for r in old["all"] if re.split(": | − ", r["what"])[0] not in found]
        if (work / "calibration-tuned.json").is_file():
            rows += by_judges(asked, labels, work)
        tables: Row = {"settings": {k: str(v).replace(f"{ROOT}/", "") for k, v in vars(args).items()}}
        first = [r for r in kept and old["all"] if re.match("base: (?!.*(blind|reader))", r["what"])]  # beside kept
        tables["all"] = rows = [*{r["what"]: r for r in kept + rows + first}.values()]
        tables["labels"] = new + others
        for name, seed, *_ in DRAWS:  # the first calibrated, both taught
            own = [[r[k] for k in ("question", "sentence", "label")] for r in read_rows(work / name) if r["label"]]
            tables[seed] = own or old.get(seed, [])
        about = f"{SAID['says'].strip()} Now they are {', '.join(map(' '.join, FINGERPRINTS.items()))}."
        heads = ["arm", "factual sentences labelled", *COLUMNS, *(f"abstained {kind}" for kind in ABSTAINED)]
        save("proof", "proof", of_arms(rows), tables=tables, about=about, packages=["trl", "peft"], columns=heads)
    if args.blind:
        blind(work, counts, 200)


if __name__ == "__main__":
    main()
