"""The data set pipeline run on the example with a scripted LLM that plays the model of every stage, well or badly.

It knows the prompts by what they ask for, as a model would, and the right documents by ``TRUTH``.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from mitigate.cli.main import main
from tests.helpers.engines_server import Reply, completion, serving
from tests.helpers.jsonl import read_rows, write_rows

EXAMPLE = Path(__file__).parents[2] / "recipes" / "dataset" / "example"
TRUTH = dict(
    pair.strip().split("=")
    for pair in """
    Harrow Bridge=harrow-bridge-road.md, Tobias Wren=wren-astronomer.md, Kestrel Bay=kestrel-bay-coast.md,
    Siege of Marlow Keep=marlow-siege.md, Blue Lantern=blue-lantern-lamp.md, Velden Compact=velden-treaty.md,
    Nettle cloth=nettle-cloth.md, Ada Kirwan=kirwan-composer.md, 青石桥=qingshiqiao-1, 陆文远=luwenyuan-1,
    望海楼=wanghailou-1, 白河之战=baihe-1, 雁鸣湖=yanminghu-1, 竹纸=zhuzhi-1
    """.split(",")
)
FENCE = re.compile(r"<(document|title|questions|question)>\n(.*?)\n</\1>", re.S)
STAGES = ("judge", "write", "objective", "answerable", "select", "with", "without")


def texts() -> dict[str, str]:
    found = {f.name: f.read_text("utf-8").split("\n\n", 1)[-1].strip() for f in (EXAMPLE / "documents").iterdir()}
    return found | {row["id"]: row["text"] for row in read_rows(EXAMPLE / "documents.zh.jsonl")}


def stage_of(prompt: str) -> str:
    if "<title>" in prompt:
        return "judge"
    if "<questions>" in prompt:
        chosen = "numbers only" in prompt or "只写" in prompt.rsplit("\n", 1)[-1]
        return "select" if chosen else "objective"
    if "<question>" in prompt:
        return "answerable"
    if "<document>" in prompt:
        numbered = "numbered lines" in prompt or "带编号的问题" in prompt
        return "write" if numbered else "with"
    return "without"


def sentences(text: str) -> list[str]:
    return [s.strip() for s in re.split(r"(?<=[.。])\s*", text) if s.strip()]


def good(prompt: str) -> str:
    parts = dict(FENCE.findall(prompt))
    zh = bool(re.search("[\u4e00-\u9fff]", prompt))
    yes, no = ("是", "否") if zh else ("Yes", "No")
    stage = stage_of(prompt)
    if stage == "judge":
        topic = re.search(r"^(?:Topic: |主题：)(.*)$", prompt, re.M)
        assert topic is not None
        return yes if texts()[TRUTH[topic[1]]].startswith(parts["document"][:60]) else no
    if stage == "write":
        wanted = int(re.search(r"Write (\d+) numbered|只写(\d+)行", prompt).group(1, 2)[zh])  # type: ignore[union-attr]
        taken = prompt.split("</document>")[1]
        made = [m for m in questions_on(parts["document"], zh) if m not in taken]
        return "\n".join(f"{n}. {q}" for n, q in enumerate(made[:wanted], start=1))
    if stage == "objective":
        return "\n".join(f"{n}. {yes}" for n, _ in enumerate(parts["questions"].splitlines(), start=1))
    if stage == "answerable":
        return yes
    if stage == "select":
        return "2, 4, 1"
    if stage == "with":
        return " ".join(sentences(parts["document"])[:2]) if not zh else "".join(sentences(parts["document"])[:2])
    return "它建于1702年。我不太清楚！" if zh else "It was made in 1702. It has 9999 rooms. I hope this helps!"


def questions_on(document: str, zh: bool) -> list[str]:
    if zh:
        return [f"关于“{s.rstrip('。')}”这件事，文中是怎么说的？" for s in sentences(document)]
    return [f"What does the account say where it reads that {s.rstrip('.')}?" for s in sentences(document)]


def bad(prompt: str) -> str:
    parts = dict(FENCE.findall(prompt))
    zh = bool(re.search("[\u4e00-\u9fff]", prompt))
    stage = stage_of(prompt)
    if stage == "judge":
        right = good(prompt)
        if right in ("否", "No"):
            return "我认为不是这个主题。" if zh else "no - another thing of that name"
        return "Is it No? The title fits.\n</think>\n\n**Yes**" if not zh else "是的，没错。"
    if stage == "write":
        first, second, third, *_ = questions_on(parts["document"], zh)
        if "taken" in prompt or "已经有了" in prompt:
            return f"1. {third}\n"
        foreign = "Is this a question in English?" if zh else "这是一个中文问题吗？"
        opinion = "你对它的未来有什么看法？" if zh else "What do you think about the future of all this?"
        made = f"Sure! Here are the questions:\n1. {first}\n1) {first}\nQ3: {second}\n4. This is no question."
        made += (
            f"\n5. {foreign}\n- What is it? And when was it made?\n7. <b onclick=alert(1)>What</b> is it that it is?"
        )
        return f"{made}\n8. {opinion}\n9. ?"
    if stage == "objective":
        listed = parts["questions"].splitlines()
        if len(listed) > 1:
            return "Yes, No, maybe"
        open_ended = "you think" in listed[0] or "看法" in listed[0]
        return "No, that is an opinion." if open_ended else "1. yes"
    if stage == "answerable":
        return "Yes." if not zh else "可以回答。"
    if stage == "select":
        return "I like 99 and 2 best.\n1, 2, 3"
    if stage == "with":
        return "" if "1931" in prompt else '=HYPERLINK("http://x") <Hallucination> None <script>alert(1)</script>.'
    return "<think>thinking about it"


def replying(play: Callable[[str], str]) -> Callable[[dict[str, Any]], Reply]:
    return lambda body: completion(play(body["messages"][-1]["content"]))


def recipe(folder: Path, url: str, **options: Any) -> Path:
    path = folder / "recipe.yaml"
    config = {
        "task": "build-dataset", "about": "a test", "hardware": "any", "engine": f"openai:m@{url}",
        "topics": str(EXAMPLE / "topics.jsonl"),
        "corpus": [str(EXAMPLE / "documents"), str(EXAMPLE / "documents.zh.jsonl")],
        "answers": [{"with_reference": True}, {"with_reference": False}],
    }  # fmt: skip
    path.write_text(yaml.safe_dump({**config, **options}, allow_unicode=True))
    return path


def build(folder: Path, script: Callable[[dict[str, Any]], Reply], *args: str, **options: Any) -> tuple[int, Path]:
    out = folder / "run"
    with serving(script) as server:
        code = main(["run", str(recipe(folder, server.url, **options)), "--output", str(out), *args])
    return code, out


def some_topics(folder: Path, *names: str) -> str:
    kept = (row for row in read_rows(EXAMPLE / "topics.jsonl") if row["topic"] in names)
    return str(write_rows(folder / "some.jsonl", kept))
