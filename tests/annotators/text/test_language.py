"""The language of a text, by script, function words and py3langid."""

import pytest

from annotators.text.language import language_of, language_of_row, stated


@pytest.mark.parametrize(("text", "language"), [
    ("Omar Khayyam was born in Nishapur.", "en"),
    ("奥马尔·海亚姆生于内沙布尔。", "zh"),
    ("奥马尔·海亚姆（Omar Khayyam）生于内沙布尔。", "zh"),
    ("Beijing (北京) is the capital of China.", "en"),
    ("Kyoto (京都, きょうと).", "en"),
    ("λ (m) = 5", "en"),
    ("Η γέφυρα (the bridge) είναι π.", "el"),
    ("宫崎骏（宮崎 駿，みやざき はやお）是动画导演。", "zh"),
    ("“の”是日语中常用的助词。", "zh"),
    ("《The Legend of Zelda: Breath of the Wild》是任天堂的游戏。", "zh"),
    ("(Мост был открыт)", "cyrillic"),
    ("I said “悉尼海港大桥于1932年3月19日通车，有八条车道。”", "zh"),
    ("東京（とうきょう）は日本の首都です", "ja"),
    ("東京は日本の首都です", "ja"),
    ("서울은 한국의 수도이다", "ko"),
    ("Омар Хайям родился в Нишапуре", "cyrillic"),
    ("Omar Jayam nació en Nishapur en 1048 y fue matemático.", "es"),
    ("Omar Khayyam est né à Nichapour en 1048.", "fr"),
    ("Gilbert du Motier, Marquis Lafayette", "en"),
    ("Sure!", "en"),
    ("1048", "none"),
    ("π ≈ 3.14", "none"),
    ("NASA（美国国家航空航天局）。", "zh"),
    ("OK (悉尼海港大桥于1932年3月19日通车，有八条车道) (桥由两家公司建造，长一千米)", "zh"),
    ("", "none"),
    ("OpenAI 发布了 GPT-4。", "zh"),
    ("Le film 我不是药神 est sorti en 2018 et a connu un grand succès en Chine.", "fr"),
    ("Der Roman 三体的 wurde 2008 veröffentlicht und in viele Sprachen übersetzt.", "de"),
    ("用 pip install transformers 就可以了。", "zh"),
    ("Beijing Shanghai (北京的上海)", "en"),
    ("Many people use 了 and 的 in every sentence.", "en"),
    ("Those who study Chinese learn that 我的 means mine.", "en"),
    ("Les étudiants apprennent vite que 了 est une particule.", "fr"),
])  # fmt: skip
def test_language(text: str, language: str) -> None:
    assert language_of(text) == language


def test_stated_language_has_no_region() -> None:
    rows = [{"lang": "ZH"}, {"language": "zh_TW", "lang": "en"}, {"language": None, "lang": "en-US"}, {}]
    assert [stated(row) for row in rows] == ["zh", "zh", "en", None]
    assert [stated({"language": name}) for name in ("English", "eng", " Chinese", "French")] == [
        "en",
        "en",
        "zh",
        "french",
    ]
    assert [language_of_row(row) for row in rows] == ["zh", "zh", "en", "en"]
