"""Words: where Chinese text is cut into them, and lists of English ones that rules and features look up.

The lists are ours, in lower case. jieba's dictionary is read from its package: no log lines, no cache file.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

MONTHS = frozenset(
    """
    april august december february january july june march may november october september
    """.split()
)
NEGATIONS = frozenset(
    """
    ain't aint aren't arent can't cannot cant contrary couldn't couldnt debunked denied denies deny didn't didnt
    doesn't doesnt don't dont fail failed fails fake false falsehood hadn't hadnt hardly hasn't hasnt haven't havent
    hoax incorrect isn't isnt lack lacked lacks lie misconception mustn't mustnt myth needn't neednt neither never
    no nobody none nor not nothing nowhere rarely refuse refused rumor rumour shouldn't shouldnt unable untrue
    untruth wasn't wasnt weren't werent without won't wont wouldn't wouldnt wrong
    """.split()
)
FUNCTION_WORDS = frozenset(
    """
    a about above across after again against all along also although am among an and any are as at be because been
    before being below between both but by can could did do does doing down during each few for from further had has
    have having he he's her here hers him himself his how however i i'm if in into is it it's its itself just may me
    might more most must my myself now of off on once one's only or other our ours ourselves out over own per s same
    shall she she's should so some such t than that that's the their theirs them then there there's these they
    they're this those though through to too toward towards under until up upon very via was we we're were what when
    where which while who whom whose why will with within would yet you your yours
    """.split()
)
PERSONAL = frozenset(
    """
    i i'd i'll i'm i've me mine my myself our ours us we you you'd you're your yours
    """.split()
)
HEDGES = frozenset(
    """
    appear appears could likely may might perhaps possibly probably seem suggest suggested suggests
    """.split()
)
EXTREMES = frozenset(
    """
    all always best completely entire every exclusively first highest largest last least lowest majority most never
    none only smallest solely worst
    """.split()
)
NUMBER_WORDS = dict(
    pair.split("=")
    for pair in """
    zero=0 one=1 two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10 eleven=11 twelve=12 thirteen=13
    fourteen=14 fifteen=15 sixteen=16 seventeen=17 eighteen=18 nineteen=19 twenty=20 thirty=30 forty=40 fifty=50
    sixty=60 seventy=70 eighty=80 ninety=90 hundred=100 thousand=1000 million=1000000 billion=1000000000 first=1
    second=2 third=3 fourth=4 fifth=5 sixth=6 seventh=7 eighth=8 ninth=9 tenth=10 twice=2 double=2 half=0.5
    """.split()
)
"""Numbers, ordinals and a few multiples written as one word → their value as text."""
OPPOSITES = dict(
    pair.split("=")
    for pair in """
    first=last last=first before=after after=before more=fewer less=more fewer=more higher=lower lower=higher
    highest=lowest lowest=highest largest=smallest smallest=largest increase=decrease
    increases=decreases increased=decreased decrease=increase decreases=increases decreased=increased
    older=younger younger=older oldest=youngest youngest=oldest north=south south=north east=west west=east
    northern=southern southern=northern eastern=western western=eastern won=lost lost=won win=lose
    always=never never=always all=none most=few many=few early=late late=early male=female female=male
    brother=sister sister=brother father=mother mother=father son=daughter daughter=son husband=wife wife=husband
    success=failure successful=unsuccessful positive=negative negative=positive rise=fall rises=falls rose=fell
    better=worse worse=better best=worst worst=best longest=shortest shortest=longest longer=shorter shorter=longer
    allowed=forbidden accepted=rejected rejected=accepted began=ended started=ended start=end opened=closed
    above=below below=above inside=outside outside=inside winter=summer summer=winter
    """.split()
)
"""Words whose exchange usually turns a statement false."""


@lru_cache(maxsize=1)
def _jieba() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in its sources, and pkg_resources
        import jieba

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def chinese_words(text: str) -> list[str]:
    """The words of a text, in order, punctuation among them; together they are the text."""
    return list(_jieba().lcut(text))
