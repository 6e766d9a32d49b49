"""Word lists and character classes that :mod:`annotators.sentences` decides with; lower case, without the last stop."""

from __future__ import annotations

# Inside character classes of regular expressions.
NL = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"  # what ends a line
BLANK = rf"[^\S{NL}]"  # white space within a line
HAN = r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
HAN_STOPS = "。！？｡．"
STOPS = ".!?…‼⁇⁈⁉" + HAN_STOPS
QUOTE_ENDS = "\"'”’」』"
ITEM_DOTS = ".．、"
BULLETS = "•●▪■◦‣⁃➢➤"


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


# Never the end of a sentence, whatever follows.
NEVER = _words(
    "mr mrs ms mx messrs mme mlle dr prof vs v cf viz e.g i.e eg ie approx ca esp incl excl op p.s n.b a.k.a w.r.t"
)
# The same when written with a capital: titles that stand before a name.
TITLES = _words(
    "gen col capt cmdr cpt cpl sgt lt maj pvt adm sen rep gov pres rev hon supt det insp amb fr br msgr mgr",
    "atty gens sens reps profs drs",
)
# Not the end before a number ("No. 5", "Fig. IV", "Jan. 3").
NUMBERED = _words(
    "no nos n° fig figs eq eqs vol vols p pp ch chap sec sect art arts para ex tab pt pts ver cl app"
)
DATES = _words("jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun")
DATE_WORDS = _words("mar sat sun")  # dates only when written with a capital
# The end only before a word that opens sentences ("Acme Inc. The shares fell").
LATE = _words(
    "inc corp ltd co llc plc jr sr bros al esq mt ave blvd rd hwy dept assn assoc univ natl intl govt ed eds",
    "resp spp",
)
PLACES = _words(
    "st ste ft ala ariz ark calif colo conn del fla ill ind kan ky la mass md mich minn miss mo mont neb nev okla",
    "ore pa penn tenn tex va vt wash wis wyo ont que",
)
# The end before a capital, never before lower case.
UNITS = _words(
    "etc lb lbs hr hrs min mins secs oz km cm mm kg mg ml mi sq cu yd yds ft gal qt tsp tbsp mph yr yrs mo mos wk",
    "wks temp deg avg max asst dir wt ht lat cal kcal alt freq abbr pron adj adv obs syn ref refs sp lit est",
)
TIMES = _words("a.m p.m am pm")
ERAS = _words("b.c a.d b.c.e c.e")
# Before "2. Then": a number that is counted, not a list marker.
COUNTED = _words(
    "a an the of in on at to by for from with and or nor than is was are were be as about only over under",
    "chapter page part section step room level grade stage phase day week month year version volume number no",
    "figure table type class group unit act scene game round season episode book article rule question line track",
    "route highway platform gate floor point war world least most times equals plus minus exactly nearly almost",
    "between",
)
SUBJECTS = _words(
    "i i'm i've i'd i'll it it's he he's she she's they they're we we're you you're that's there's what what's how",
    "why who when where yes no there this these those did do does can could would should let's",
)
STARTERS = SUBJECTS | _words(
    "the a an that here its his her their our your my which whose whether is are was were will may might must has",
    "have had be if in on at by for from with without within after before during since until while although though",
    "because as so but and or nor yet however therefore moreover furthermore meanwhile then thus hence instead",
    "finally first second third next last also additionally another other others some many most all both each every",
    "any not none nobody nothing neither either such same one two three few several under over about between",
    "through despite unlike once even only just please today now later soon early eventually overall according to",
    "it'll he'll they'll don't didn't doesn't isn't wasn't can't of more much nevertheless nonetheless similarly",
    "likewise consequently subsequently otherwise indeed perhaps maybe everyone someone anyone everything something",
    "people",
)
# A line that ends with one of these goes on in the next.
HANGING = _words(
    "a an the of in on at to by for from with and or nor but than is was are were be been as into onto over under",
    "between through that which who whose this these those its his her their our your my will would can could has",
    "have had not also about after before during mr mrs ms dr prof gen st e.g i.e vs",
)
# Names that carry a mark: "Yahoo! bought it".
MARKED_NAMES = _words("yahoo jeopardy mia rouge oklahoma panic joomla yum")
