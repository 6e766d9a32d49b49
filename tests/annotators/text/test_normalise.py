"""Clean text and the way back from it to the text as it came."""

import pytest

from annotators.text.normalise import clean, original_span


def test_clean_drops_what_is_invisible_and_keeps_offsets() -> None:
    text = "In 19\u200b99 ２０ \x00b\u202ead ﬁn"
    cleaned, origin = clean(text)
    assert cleaned == "In 1999 20 bad fin"
    assert [text[i] for i in origin[:7]] == list("In 1999")
    start = cleaned.index("1999")
    assert text[slice(*original_span(text, origin, start, start + 4))] == "19\u200b99"
    other = "the Cafe\u0301 there"  # combining marks are kept
    cut, back = clean(other)
    assert other[slice(*original_span(other, back, cut.index("Café"), cut.index("Café") + 4))] == "Cafe\u0301"


@pytest.mark.parametrize(("text", "cleaned"), [
    ("n\u034fot", "not"),
    ("n\ufe0fot", "not"),
    ("n\u043et", "not"),  # a Cyrillic letter
    ("isn\u02bct isn`t isn\u2032t isn\u2019t", "isn't isn't isn't isn't"),
    ("<b>n</b>ot <p>one</p>two", "not  one two"),
    ("AT&amp;T is&nbsp;not", "AT&T is not"),
    ("13\u2074 metres", "13^4 metres"),
    ("Cafe\u0301 Zu\u0308rich", "Café Zürich"),
    ("s\u0336i\u0336x", "six"),
    ("a\u3164b", "ab"),
    ("5 < 6 and 7 > 6", "5 < 6 and 7 > 6"),
    ("<p class='x' id=3>a<br/>b</p>", " a b "),
    ("<td nowrap>a</td><script async src = x>b</script><summary>c", " a  b  c"),
    ("n<b>ot <i> x</i> so <b>not a <p> b <br> c <div>", "not  x so not a   b   c  "),
    ("First <li> second <td> third, it was <b> not", "First   second   third, it was  not"),
    ("Put it into the <h1> tag or a <P>, as is.", "Put it into the <h1> tag or a <P>, as is."),
    ("A rule <hr> or <b>this</b> and <b> that. <p> New", "A rule   or this and  that.   New"),
    ("a `<p>` and `</td>` or “<BR>”", "a '<p>' and '</td>' or “<BR>”"),
    *((text, text) for text in (
        "Press <Enter>.", "if a<b and c>d", "#include <stdio.h>", "cp <source> <target>", '<city name="Paris"/>',
    )),
    ("2\u00bd hours, \u00be kg", "2 1\u20442 hours,  3\u20444 kg"),  # not 21
    ("Москва", "Москва"),
])  # fmt: skip
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text)[0] == cleaned
    assert len(clean(text)[1]) == len(cleaned)
