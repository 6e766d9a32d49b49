"""How true the demonstrations are that FEWL would show to a model, and what SmolLM2's answers gain at inference.

    python -m benchmarks.mitigation --data ../shared/data
    make run && python -m benchmarks.mitigation --run out/answers

Demonstrations are the answers that FEWL and the single-reference baseline pick where the two differ; the control is the
same with another question's references. Labels judge choices only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Row, mean_row, parser, row, save
from benchmarks.fewl import THREE, by_model, chale, english_encoder, shuffled, truthfulqa
from fewl.similarity import Encode, cosine
from mitigate.icl import candidate_pool, demonstrations
from mitigate.io import read_rows
from mitigate.recipes.data import Scoring, picks


def icl(data: Path, encode: Encode) -> list[Row]:
    """How true FEWL's demonstrations and the baseline's are, beside the control."""
    official = []
    for r in by_model(truthfulqa(data), THREE):
        answers = [{**a, "label": a["kind"] != "incorrect"} for a in r["answers"] if a["kind"] != "labelled"]
        official.append({k: v for k, v in r.items() if k not in ("co", "iw")} | {"answers": answers})
    gold = [{**r, "id": str(i)} for i, r in enumerate(chale(data))]
    rows = []
    for name, records, single in (("CHALE", gold, "gold 0"), ("TruthfulQA", official, THREE[0])):
        usable = [r for r in records if single in r["reference_answers"]]
        label = {(r["id"], a["text"]): bool(a["label"]) for r in usable for a in reversed(r["answers"])}
        how: Any = {"scoring": Scoring(penalty=False), "baseline": single}
        how |= {"similarity": cosine(encode), "encode": encode}
        for control, asked in (("", usable), (", another question's references", shuffled(usable))):
            where = f"{name} demonstrations, cosine, FEWL without penalty{control}"
            pool = candidate_pool(usable, *(picks(asked, by, **how) for by in ("fewl", "baseline")))
            shown = demonstrations([r["question"] for r in usable], pool, encode, 5)
            true = {
                side: np.array(
                    [np.mean([label[n.example.id, getattr(n.example, side)] for n in s] or np.nan) for s in shown]
                )
                for side in ("fewl", "baseline")
            }
            rows += [
                mean_row(f"{where} (pool {len(pool)}): true", true["fewl"], unit="%"),
                mean_row(f"{where}: minus the baseline's", true["fewl"] - true["baseline"], unit="%"),
            ]
    return rows


def answers_of_run(folder: Path) -> list[Row]:
    """Rows of a complete run of the recipe `inference`."""
    done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
    shown = []
    for stage in ("first", "chosen", "given"):
        one, n = done[stage], done[stage]["answers"]
        name = f"SmolLM2, {stage} answers, hallucinated ({one['hallucinated']}; not sure {one['unsure']})"
        shown.append(row(name, one["factual"], 100 * one["rate"], [100 * end for end in one["interval"]], "%"))
        shown.append(row(f"{stage} answers: supported sentences", n, round(n * one["supported"])))
    for key, what in (("rate", "hallucinated"), ("in_document", "content words in the document")):
        value, *limits = (100 * done["difference"][key][name] for name in ("difference", "low", "high"))
        shown.append(row(f"given − first: {what}", done["questions"], value, limits, "%"))
    return shown


def main() -> None:
    """Measure and write the page."""
    made = parser(__doc__)
    made.add_argument("--run", type=Path, help="folder of a run of inference/example, measured instead")
    args = made.parse_args()
    if args.run:
        judge = next(read_rows(args.run / "results.jsonl"))["annotator"]
        made_at = json.loads((args.run / "versions.json").read_text(encoding="utf-8"))[0]["git"][:7]
        about = f"Annotator {judge['name']}, fingerprint {judge['fingerprint']}; answers of commit {made_at}."
        save("mitigation", "mitigation", answers_of_run(args.run), part="answers", about=about)
        return
    save("mitigation", "mitigation", icl(args.data, english_encoder()), packages=["sentence-transformers"])


if __name__ == "__main__":
    main()
