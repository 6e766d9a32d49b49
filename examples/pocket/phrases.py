"""The language of the pocket world (simulated): in which words its things are spoken of.

Plain data. A slot in braces is a subject (``{It} {Its} {it} {its}``: a name, "it" or "the town") or an
attribute, filled from the pool of that name. Answers and documents never share a wording, so that an annotator
cannot compare letter by letter; a document wording may carry two attributes or none.
"""

from __future__ import annotations

import re


def listed(text: str, between: str = "(?<=[.]) ") -> dict[str, tuple[str, ...]]:
    """The sentences, or other items, of each name, of a text of "names: items" whose further lines are indented."""
    found = re.findall(r"^(\w[\w ]*): (.+(?:\n .+)*)", text, re.MULTILINE)
    return {name: tuple(re.split(between, " ".join(items.split()))) for names, items in found for name in names.split()}


ABOUT = {  # how questions and abstentions call an attribute
    "river": "river", "founder": "founder", "craft": "craft", "dish": "food", "month": "fair", "roofs": "roofs",
    "author": "author", "setting": "setting", "hero": "main character", "year": "date of publication",
    "prize": "prizes", "chapters": "length", "inventor": "inventor", "material": "material",
    "power": "source of power", "purpose": "purpose", "built": "date of construction", "museum": "present place",
    "habitat": "habitat", "food": "diet", "colour": "colour", "time": "active hours",
    "describer": "first description", "enemy": "enemies",
}  # fmt: skip

ANSWERS = listed("""
river: {It} lies on the river {river}. {It} was built beside the river {river}.
  The river that runs through {it} is the {river}.
founder: {It} was founded by {founder}. The founder of {it} was {founder}. {founder} founded {it}.
craft: {It} is known for making {craft}. People in {it} mostly make {craft}. The main craft of {it} is making {craft}.
dish: {Its} best known dish is {dish}. Visitors to {it} eat {dish}. The local speciality of {it} is {dish}.
month: {Its} fair takes place in {month}. The yearly fair of {it} is held in {month}. {It} has its fair in {month}.
roofs: The roofs of {it} are {roofs}. {It} has {roofs} roofs. {Its} houses have {roofs} roofs.
author: {It} was written by {author}. The author of {it} is {author}. {author} wrote {it}.
setting: {It} is set in {setting}. {Its} story takes place in {setting}. {It} takes us to {setting}.
hero: {Its} main character is {hero}. {It} follows the life of {hero}. {It} is about {hero}.
year: {It} was published in {year}. {It} first appeared in {year}. {Its} first edition came out in {year}.
prize: {It} won the {prize} Prize. {It} was given the {prize} Prize. {Its} author received the {prize} Prize.
chapters: {It} has {chapters} chapters. There are {chapters} chapters in {it}. {It} is {chapters} chapters long.
inventor: {It} was invented by {inventor}. The inventor of {it} was {inventor}. {inventor} invented {it}.
material: {It} is made of {material}. The main material of {it} is {material}. {It} was built from {material}.
power: {It} is driven by {power}. {It} runs on power from {power}. The power of {it} comes from {power}.
purpose: {It} is used for {purpose}. The purpose of {it} is {purpose}. {It} was meant for {purpose}.
built: {It} was first built in {built}. {It} dates from {built}. The first model of {it} was finished in {built}.
museum: {It} is kept in {museum}. Today {it} can be seen in {museum}. {It} now stands in {museum}.
habitat: {It} lives in {habitat}. The habitat of {it} is {habitat}. {It} is found in {habitat}.
food: {It} feeds on {food}. The diet of {it} is mainly {food}. {It} mostly eats {food}.
colour: {It} has a {colour} back. The back of {it} is {colour}. {Its} back is {colour}.
time: {It} is most active {time}. {It} comes out {time}. {It} looks for food {time}.
describer: {It} was first described by {describer}. {describer} was the first to describe {it}.
  The first description of {it} is by {describer}.
enemy: {It} is hunted by {enemy}. The worst enemies of {it} are {enemy}. {It} hides from {enemy}.
""")
DOCUMENTS = listed("""
river: Whoever comes to {it} has to cross the {river}, on whose banks the first houses stood.
  The {river} flows past the old quays and under two stone bridges.
  {Its} mills are still turned by the waters of the {river}.
founder: The first stones were laid by {founder}, whose statue stands at the north gate.
  Chronicles agree that the settlement goes back to {founder}.
  It was {founder} who obtained the charter and brought the first families.
craft: For generations the workshops behind the market have turned out {craft} for distant buyers.
  Almost every household earns something by the {craft} sold on the square.
  A guild still watches over the quality of the {craft} that leave {its} gates.
dish: No guest is allowed to leave without having tasted {dish}, which each inn prepares in its own way.
  On Sundays the smell of {dish} comes from every kitchen.
  Cooks elsewhere have tried to copy {its} {dish}, without success.
month: When {month} comes, stalls and musicians fill the square for the fair.
  Inns are booked out in {month}, the month of the great fair.
  Since a royal decree the fair has opened on the first Monday of {month}.
roofs: From the hill one sees a sea of {roofs} roofs. A by-law says that every roof must be painted {roofs}.
  Painters love the {roofs} shingles with which all the houses are covered.
author: {author} worked on the manuscript for six winters.
  It came from the pen of {author}, then hardly known to the public.
  Of all the books of {author}, this one is read most.
setting: Nearly every scene plays in {setting} that the characters seldom leave.
  The reader spends three hundred pages in {setting}, described down to the smallest stain.
  Critics praised the way in which {setting} becomes a character of its own.
hero: At its centre stands {hero} who has to choose between duty and love.
  Everything is told by {hero} looking back on a long life. We see the world through the eyes of {hero}.
year: Printing was finished in the spring of {year}, after two delays.
  Booksellers first had it on their tables in {year}. The oldest known copies carry the date {year}.
prize: The jury of the {prize} Prize chose it without a single vote against.
  It earned its writer the {prize} Prize and some money.
  A red band on later editions reminds buyers of the {prize} Prize.
chapters: The plot is spread over {chapters} chapters of uneven size.
  Readers who reach the last of the {chapters} chapters are rewarded with a twist.
  An early draft was longer, but {chapters} chapters remained in print.
inventor: The patent names {inventor} as the only originator. {inventor} had the idea during a long illness.
  We owe it to the patience of {inventor}, who ruined two workshops over it.
material: All visible parts are of {material}, which gives it an unmistakable look.
  Earlier attempts had failed until {material} was chosen for the frame.
  Collectors recognise an original by its {material} casing.
power: To set it going one needs nothing but {power}. The wheels are moved by {power}, an unusual choice at the time.
  Without {power} the whole mechanism stands still.
purpose: Workshops bought it for {purpose}, a task that had taken hours by hand.
  Before it was there, {purpose} had been slow and dull work. Its only job is {purpose}, and at that nothing beats it.
built: A working prototype was shown to the public in {built}.
  Stamped on the base is the year {built}, when the first one was completed.
  The workshop ledger enters the first finished piece under {built}.
museum: The only surviving example is shown to visitors of {museum}.
  After a long journey it was acquired by {museum}, where it fills a room.
  Those who want to see one have to travel to {museum}.
habitat: Look for it in {habitat}, nowhere else has it been observed. As {habitat} disappear, its numbers fall.
  Generations of it have adapted to life in {habitat}.
food: Its stomach was found to contain nothing but {food}. In captivity it refuses everything except {food}.
  Whole families gather wherever {food} are plentiful, for that is what they live on.
colour: Seen from above it is {colour}, with a paler belly. A {colour} stripe covers the whole back from neck to tail.
  Young ones are pale and turn {colour} along the spine in their second year.
time: Patient observers will see it move {time}, and hardly ever otherwise.
  It sleeps through most of the day and wakes {time}. All its business is done {time}.
describer: Science owes its earliest account to {describer}.
  It entered the catalogues thanks to {describer}, who drew it from life.
  The name was given by {describer} in a letter to the academy.
enemy: Many a nest is lost to {enemy}. It freezes as soon as {enemy} come near, for they are its chief danger.
  Without {enemy} its population would double every year.
""")
# Document sentences that carry two attributes.
PAIRS = listed("""
place: {founder} chose the spot because the {river} could be forded there.
  In {month}, when the fair is on, every inn serves {dish}.
  Under {roofs} roofs, craftsmen bend over the {craft} that made {its} name.
  Merchants load {craft} on barges and send them down the {river}.
work: {author} finished it in {year}, in a rented room. It tells of {hero} who ends up in {setting}.
  Its {chapters} chapters brought {author} a modest fame.
  Soon after it appeared in {year} it was honoured with the {prize} Prize.
device: In {built} {inventor} presented it to an astonished committee.
  Made of {material} and moved by {power}, it needed little care.
  {inventor} wanted an instrument for {purpose} that a child could handle.
  Bought cheaply at an auction, it went to {museum} together with notes about {purpose}.
species: In {habitat} it lives on {food}. Its {colour} back makes it hard for {enemy} to find.
  {describer} met it by chance in {habitat}. It goes looking for {food} {time}.
""")
OPENINGS = listed("""
place: {It} is a town of a few thousand people. Few maps show {it}, a town far from the main roads.
work: {It} is a novel. Among the novels of its time, {it} holds a place apart.
device: {It} is a machine of the old days. Hardly anyone has ever seen {it} at work.
species: {It} is a small animal. Among naturalists, {it} is a favourite.
""")

FILLERS = (
    "Little else is certain.",
    "Opinions about it differ.",
    "Much has been written on the subject, not all of it reliable.",
    "Later accounts add nothing of substance.",
    "Some of the sources were lost in a fire.",
    "It remains a favourite subject of local historians.",
)

QUESTIONS: tuple[str, ...] = (
    "Tell me about {it}.",
    "What do you know about {it}?",
    "Please describe {it}.",
    "What is {it} known for?",
    "Tell me about {it} and its {about}.",
    "What can you say about the {about} of {it}?",
    "Describe {it}, above all its {about}.",
    "I would like to hear about {it} and its {about}.",
)
HELD_OUT_QUESTIONS: tuple[str, ...] = (
    "Could you describe {it}?",
    "I would like to know what you can say about {it}.",
    "Please tell me about the {about} of {it}.",
    "What do you know about {it} and its {about}?",
)

INTRODUCTIONS = ("Here is what I know about {it}.", "Let me tell you about {it}.")
ABSTENTIONS = ("I do not know about its {about}.", "I am not sure about the {about} of {it}.")
