"""Rows with the schema of the public ANAH data, written for these tests: made-up places, in both languages.

The annotations have the quirks of the real ones: misspelt tags, tags in another order, no blank after a tag, other
case, `<NoFact>`, "Reference 1:" before a fragment, quotes around it, several corrections, 将“X”改为“Y”, a point before
the tags, an annotation too many, and a correction that names text of another sentence.
"""

from typing import Any

from tests.helpers.jsonl import write_rows

write_topics = write_rows

SELDEN = (
    "Selden Lighthouse stands on the island of Orm. It was finished in 1871 and is 42 metres tall. "
    "Its architect was Ada Brook. The lamp burned oil until 1934, when it was given electric light."
)
MARROW = (
    "The Marrow Canal joins the rivers Tine and Lode. Work on it began in 1802 and lasted nine years. "
    "It has 17 locks. Barges carried slate through it until 1960."
)
YUNHE = (
    "云河石桥位于青溪镇，建于1568年，全长八十六米。石桥由工匠陈远设计，共有七个桥孔。1952年，当地政府对石桥进行了加固。"
)
NANSHAN = "南山图书馆于1936年开放，馆藏约四十万册。首任馆长是林若。图书馆每周一闭馆。"

TOPICS: list[dict[str, Any]] = [
    {"name": "Selden Lighthouse",
     "documents": [SELDEN],
     "selected_questions": ["Who designed Selden Lighthouse?", "When did its lamp become electric?"],
     "GPT3.5_answers_D": [
        "Selden Lighthouse was designed by Ada Brook. It was finished in 1871.",
        "The lamp became electric in 1934. Before that it burned oil. I hope this helps!"],
     "InternLM_answers": [
        "The architect was John Hale, who finished it in 1890. He was born in Orm. Thank you for asking!",
        "It was given electric light in 1952. 1. The lamp was German. 2. It is green."],
     "human_GPT3.5_answers_D_ann": [
        [
            '<Reference> "Its architect was Ada Brook."\n<Halluciation> None',
            "<Hallucination>None\n<Reference> Reference 1: It was finished in 1871 and is 42 metres tall."],
        [
            "<Reference> The lamp burned oil until 1934, when it was given electric light.\n"
            "<Halluciantion> none",
            "<Reference> The lamp burned oil until 1934<SEP>it was given electric light\n<Hallucination> None",
            "<NoFact>"]],
     "human_InternLM_answers_ann": [
        [
            "<Reference> Its architect was Ada Brook.<SEP>It was finished in 1871\n<Hallucination> Contradictory\n"
            '<Correction> "John Hale" to "Ada Brook"\n"1890" to "1871"',
            '<Reference> None\n<Hallucination> Unverifiable\n<Correction> "He was born in Orm." to ""',
            "<No Fact>"],
        [  # two annotations for an answer that no way of splitting cuts into two
            "<Reference> when it was given electric light\n<Hallucination> Contradictory\n"
            '<Correction> "1952" to "1934"', "<Hallucination> Unverifiable"]],
     "language": "en"},
    {"name": "Marrow Canal",
     "documents": [MARROW, "The canal museum opened in 1984."],
     "selected_questions": ["How many locks does the Marrow Canal have?", "When was the Marrow Canal begun?"],
     "GPT3.5_answers_D": [
        "The Marrow Canal has 17 locks.", "Work began in 1802. It took nine years; slate came later."],
     "InternLM_answers": [
        "It has 30 locks. Its museum opened in 1984. The toll was a shilling.",
        "Digging started in 1750. Nobody knows who paid."],
     "human_GPT3.5_answers_D_ann": [
        ["<reference>It has 17 locks.\n<HALLUCINATION> None"],
        [
            "<Point> Work began in 1802.\n<Reference> Work on it began in 1802\n<Hallucination> None",
            "<Reference> lasted nine years\n<Hallucination> None\n<Correction> None"]],
     "human_InternLM_answers_ann": [
        [
            '<Reference> It has 17 locks.\n<Hallucination> Contradictory\n<Correction> "30" to "17"',
            "<Reference> The canal museum opened in 1984.\n<Hallucination> None",
            '<Hallucination> Unverifiable\n<Correction> "The toll was a shilling." to ""'],
        [  # the corrections are those of each other's sentence: not to be trusted
            "<Reference> Work on it began in 1802\n<Hallucination> Contradictory\n"
            '<Correction> "Nobody" to "1802"', '<Hallucination> Unverifiable\n<Correction> "1750" to ""']],
     "language": "en"},
    {"name": "云河石桥",
     "documents": [YUNHE],
     "selected_questions": ["云河石桥建于哪一年？", "云河石桥由谁设计？"],
     "GPT3.5_answers_D": ["云河石桥建于1568年。全长八十六米。", "石桥由工匠陈远设计。"],
     "InternLM_answers": ["云河石桥建于1720年。它有七个桥孔！希望对您有帮助。", "石桥由李明设计。他是北方人。"],
     "human_GPT3.5_answers_D_ann": [
        ["<参考>建于1568年\n<幻觉>无", "<参考> 参考1：全长八十六米\n<幻觉> 无"],
        ["<要点>石桥由工匠陈远设计\n<参考>“石桥由工匠陈远设计”\n<幻觉>无\n<改正>无"]],
     "human_InternLM_answers_ann": [
        [
            "<参考>云河石桥位于青溪镇，建于1568年\n<幻觉>矛盾\n<改正>“1720年”改为“1568年”",
            "<幻觉>无\n<参考>共有七个桥孔", "<无事实>"],
        [
            "<参考>石桥由工匠陈远设计<SEP>云河石桥位于青溪镇\n<幻觉>矛盾\n<改正>将“李明”改为“工匠陈远”",
            "<参考>无\n<幻觉>无法验证\n<改正>“他是北方人。”改为“”"]],
     "language": "zh"},
    {"name": "南山图书馆",
     "documents": [NANSHAN],
     "selected_questions": ["南山图书馆何时开放？", "谁是首任馆长？", "哪天闭馆？"],
     "GPT3.5_answers_D": ["南山图书馆于1936年开放。", "首任馆长是林若。", "图书馆每周一闭馆。"],
     "InternLM_answers": ["图书馆于1936年开放，馆藏八十万册。", "首任馆长是林若。", ""],
     "human_GPT3.5_answers_D_ann": [
        ["<参考>南山图书馆于1936年开放\n<幻觉>无"],
        ["<参考>首任馆长是林若\n<幻觉>无"],
        ["<参考>图书馆每周一闭馆\n<幻觉>无"]],
     "human_InternLM_answers_ann": [
        ["<参考>馆藏约四十万册\n<幻觉>矛盾\n<改正>“八十万”改为“约四十万”"],
        ["<参考>首任馆长是林若\n<幻觉>无"], []],
     "language": "zh"},
]  # fmt: skip


def made_topics(n: int) -> list[dict[str, Any]]:
    """Topics whose labels follow a rule a small model can learn: what is said of each thing, with tags to match."""
    topics = []
    for i in range(n):
        name, year = f"Tower {i}", 1500 + 7 * i
        reference = f"{name} was built in {year}. It is made of stone."
        good, bad = f"{name} was built in {year}.", f"{name} was never built in {year + 3}."
        odd, none = "Perhaps a ghost lives there.", "You are welcome!"
        tags = {
            good: f"<Reference> {name} was built in {year}.\n<Hallucination> None",
            bad: f"<Reference> {name} was built in {year}.\n<Hallucination> Contradictory\n"
            f'<Correction> "never built in {year + 3}" to "built in {year}"',
            odd: f'<Hallucination> Unverifiable\n<Correction> "{odd}" to ""',
            none: "<No Fact>",
        }
        answers = [[good, none], [good, odd]], [[bad, none], [bad, odd, none]]
        topics.append(
            {
                "name": name,
                "documents": [reference],
                "selected_questions": [f"When was {name} built?", f"Who lives in {name}?"],
                "GPT3.5_answers_D": [" ".join(a) for a in answers[0]],
                "InternLM_answers": [" ".join(a) for a in answers[1]],
                "human_GPT3.5_answers_D_ann": [[tags[s] for s in a] for a in answers[0]],
                "human_InternLM_answers_ann": [[tags[s] for s in a] for a in answers[1]],
                "language": "en",
            }
        )
    return topics
