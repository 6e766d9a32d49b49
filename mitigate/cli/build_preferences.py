"""`mitigate build-preferences`: annotated answers to pairs, the best against the worst of each question.

    mitigate annotate --input samples.jsonl --output annotated.jsonl
    mitigate build-preferences --input annotated.jsonl --output pairs.jsonl

Several answers to the same question and reference are compared by hallucination rate; ties make no pair. The
output is what `mitigate.rl.dpo` and TRL's DPO trainer read. Leaves out sampling and annotating.
"""

from __future__ import annotations

from annotators.records import LABELS
from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.io import REJECTED, Problem, Record, check_texts, counted, read_whole, rejected_path, shown, write_lines
from mitigate.rl.preferences import build_pairs, is_judged


def add_parser(subparsers: Subparsers) -> None:
    more = (
        "Take the output of `mitigate annotate` with several answers to each question, and write one pair a question, "
        'JSON Lines: {"prompt", "chosen", "rejected", "reference", "chosen_sentences", "rejected_sentences", '
        '"chosen_item", "rejected_item", "chosen_cut_off", "rejected_cut_off", "chosen_rate", '
        '"rejected_rate"}. Mask-DPO\'s own program reads them too.'
    )
    parser = add_command(subparsers, "build-preferences", "Make preference pairs from annotated answers.", more)
    parser.input("This JSON Lines file holds annotated answers.")
    parser.output()
    text = "The two hallucination rates of a pair differ by at least X, from 0 to 1 (%(default)s)."
    parser.number("--min-gap", text, "a number from 0 to 1", lambda gap: 0 <= gap <= 1, "X", default=0.0)
    text = (
        "The least copied of the best answers and the most copied of the worst make a pair, and only where the better "
        "one's supported sentences are copied by at most X more than the other's hallucinated ones, from -1 to 1."
    )
    parser.number("--copy-gap", text, "a number from -1 to 1", lambda gap: -1 <= gap <= 1, "X")
    parser.set_defaults(run=run)


def check_annotated(record: Record) -> list[Problem]:
    """Problems of an annotated answer: question, reference, answer and its sentences."""
    problems = check_texts(record, question="text", reference="any", answer="text")
    sentences = record.get("sentences")
    if not isinstance(sentences, list):
        return [*problems, Problem.of(record, "sentences", "the list that `mitigate annotate` writes")]
    size = len(record["answer"]) if isinstance(record.get("answer"), str) else 0
    expected = f"start and end inside the answer ({size} characters), label null or one of the four"
    return problems + [
        Problem(f"sentences[{i}]", shown(sentence), expected)
        for i, sentence in enumerate(sentences)
        if not is_judged(sentence, size, LABELS)
    ]


def run(args: Args) -> int:
    args.check_files()
    samples, rejected = read_whole(args.input, check_annotated, args.output)
    pairs = build_pairs(samples, min_gap=args.min_gap, copy_gap=args.copy_gap)
    write_lines(args.output, pairs)
    n = len({(sample["question"], sample["reference"]) for sample in samples})
    if args.json:
        counts = {"answers": len(samples), "questions": n, "pairs": len(pairs), "rejected_lines": rejected}
        print_json({**counts, "output": str(args.output)})
    else:
        print(
            f"{counted(len(samples), 'answer')} to {counted(n, 'question')}, {counted(len(pairs), 'pair')}, "
            f"{counted(n - len(pairs), 'question')} without one\noutput: {args.output}"
        )
        if rejected:
            print(f"rejected: {counted(rejected, 'line')}, {rejected_path(args.output)}")
    return REJECTED if rejected else 0
