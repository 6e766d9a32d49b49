"""English word lists by which ``annotators/claims.py`` tells talk from claims. Lower case; the lists are ours."""

CHAT = frozenset(
    """
    able absolute another absolutely accurate additional advice advise afraid afternoon agree ah ahead ai aim align
    alright amazing answer answered answers anything anytime apologies apologise apologize apology appreciate
    appreciated ask asked asking assist assistance assistant assure aware away awesome back bad based basis bear
    begin believe best better beyond bit body break brief briefly bring bye call can't cannot care careful cause
    caused certain certainly chat check clarification clarify clear clearer clears close closer comfortable
    comment computer concern concise conclude conclusion confuse confused confusion congratulations consider
    considered consult content context continue conversation cool correct couldn't course curious data day deal
    dear decide decline deeper definite definitely delighted depends depth detail detailed details didn't discuss
    doesn't don't done double doubt doubts earlier easier easy elaborate else end enjoy enough entirely error
    errors especially evening everyone exact exactly example examples excellent exciting exhaustive expert explain
    explained explanation fact facts fair fantastic feedback feel feelings final finally find fine finish first
    focus follow following forgive form forward free friend full fun gave generate get give given glad gladly go
    goes going good goodbye got great greetings guess guide hand handy happens happy hard haven't hear hello help
    helped helpful helping helps hesitate hey hi hmm hold honest honestly hope hopefully i'd i'll i've idea
    important inconvenience incorrect indeed information inquiries inquiry instance instead intend interest
    interested interesting internet introduction issue keep key kind kindly know knowledge lack language last
    later leave let let's like limitations limited list little live long longer look looking love lovely luck madam
    made main make makes many matter mean meant meet mention message mind misread misspoke mistake mistakes
    misunderstanding mix model moment moment's morning move moved moving name near necessary need next nice no
    note notice offer oh ok okay oops open opinion opinions opportunity option order others otherwise overview
    pardon part particular pass patience perfect person personal personally phrase pick place pleasant please
    pleased pleasure point pointed pointing points political possible prefer preferences previous probably problem
    proceed professional program prompt provide provided question questions quick quickly quite rather reach read
    ready real really reason recheck refer regards regret reliable remember repeat rephrase replace reply request
    response response's responses rest review right rude safe said sake say search second see sense senses share
    short shortly show silent simple simplified simply sincere sincerely sir something soon sorry sort sound
    sounds specific specify speculate start started stay step steps stop straight sufficient suggest suit
    summarise summarised summarize summarized summary super support suppose sure tailor take takeaway takeaways
    talk task tell term text thank thanks thing things think third thought thoughts time title today together told
    tomorrow topic totally touch trained translate true try trying turn type understand understanding
    unfortunately unsure update us use useful user verify version view views wait want wanted warm week weekend
    welcome well what's whatever whenever whoops wish won't wonder wonderful wondering word words work worries
    wouldn't wow write writing wrong yeah year's yes you'd you'll you're you've yourself
    """.split()
)
"""Words of talk about the conversation itself; a clause of nothing else claims nothing."""
META_NOUNS = frozenset(
    """
    analysis answer answers background bio biography breakdown bullet bullets comparison conclusion content
    context details draft events example examples explanation explanations fact facts findings highlights idea
    ideas information introduction items key list notes options outline overview paragraph part parts passage
    points quote quotes reasons reply response responses result results review section sentence sentences solution
    steps suggestions summary takeaway takeaways text thoughts timeline tips title topics translation version
    versions ways
    """.split()
)
"""What an announcement ("here is a …") announces."""
FILLERS = frozenset(
    " ".join(phrase.split())
    for phrase in """
    absolutely | actually | additionally | again | ah | all right | alright | also | although | and | anyway | as
    always | as requested | as you asked | at last | because | but | by the way | certainly | dear | definitely |
    finally | first | first of all | firstly | for example | for instance | furthermore | good afternoon | good
    evening | good morning | goodbye | great | greetings | hello | hello there | hey | hi | hi there | hmm |
    however | if | in addition | in any case | in brief | in conclusion | in contrast | in other words | in short
    | in summary | in that case | indeed | last | lastly | let me see | meanwhile | moreover | moving on | my
    apologies | next | no | no problem | no worries | nope | note that | now | of course | oh | ok | okay | on the
    contrary | on the one hand | on the other hand | once again | oops | or | overall | perfect | perhaps | please
    | please note | please note that | regrettably | right | sadly | second | secondly | similarly | since | so |
    sorry | step | step by step | still | sure | sure thing | thank you | thanks | that being said | that said |
    then | third | thirdly | though | thus | to be honest | to begin with | to conclude | to sum up | to summarise
    | to summarize | to the best of my knowledge | ultimately | unfortunately | well | while | with that said |
    wow | yeah | yep | yes | yet | you are right | you're right
    """.split("|")
)
"""Words and phrases that only lead on to what follows."""
PAST_FORMS = frozenset(
    """
    became began born bought brought built came chose died drew drove fell felt flew fought found founded gave got
    grew held joined kept knew led left lost made married met moved ran rose said sang saw sent shot sold spent
    spoke stood swam taught threw told took went won wore worked wrote
    """.split()
)
"""Forms of common verbs that state something; the regular ones are told by their ending."""
