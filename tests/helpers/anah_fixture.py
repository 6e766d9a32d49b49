"""Rows with the schema of the public ANAH data, written for these tests: made-up places, in both languages.

The annotations have the quirks of the real ones: misspelt tags, tags in another order, no blank after a tag, other
case, `<NoFact>`, "Reference 1:" before a fragment, quotes around it, several corrections, 将“X”改为“Y”, a point before
the tags, one annotation too many or too few for the sentences, and corrections that name text of each other's sentence.
"""

from pathlib import Path
from typing import Any

from tests.helpers.jsonl import read_rows, write_rows

write_topics = write_rows
TOPICS = read_rows(Path(__file__).with_name("anah_topics.jsonl"))


def made_topics(n: int) -> list[dict[str, Any]]:
    """Topics whose labels follow a rule a small model can learn: what is said of each thing, with tags to match."""
    topics = []
    for i in range(n):
        name, year = f"Tower {i}", 1500 + 7 * i
        good, bad = f"{name} was built in {year}.", f"{name} was never built in {year + 3}."
        odd, none = "Perhaps a ghost lives there.", "You are welcome!"
        correction = f'"never built in {year + 3}" to "built in {year}"'
        tags = {
            good: f"<Reference> {good}\n<Hallucination> None",
            bad: f"<Reference> {good}\n<Hallucination> Contradictory\n<Correction> {correction}",
            odd: f'<Hallucination> Unverifiable\n<Correction> "{odd}" to ""',
            none: "<No Fact>",
        }
        topic: dict[str, Any] = {"name": name, "documents": [f"{good} It is made of stone."], "language": "en"}
        topic["selected_questions"] = [f"When was {name} built?", f"Who lives in {name}?"]
        answers = {"GPT3.5_answers_D": [[good, none], [good, odd]], "InternLM_answers": [[bad, none], [bad, odd, none]]}
        for column, said in answers.items():
            topic[column] = [" ".join(sentences) for sentences in said]
            topic[f"human_{column}_ann"] = [[tags[sentence] for sentence in sentences] for sentences in said]
        topics.append(topic)
    return topics
