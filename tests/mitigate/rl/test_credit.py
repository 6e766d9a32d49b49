"""Token credit: offsets against vocabularies read by hand, and the equations against worked values."""

import random
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from annotators.text.sentences import split_sentences
from mitigate.rewards.segments import Segment
from mitigate.rl.credit import (
    Credit,
    anchors,
    cuts_of,
    locate,
    owners,
    returns,
    row_advantages,
    sequence_advantages,
    standardised,
    step_advantages,
    token_spans,
)
from tests.helpers.credit_suite import CHINESE, ENGLISH, MIXED, kinds
from tests.helpers.grpo_common import OWN

KINDS = {kind.name: kind for kind in kinds()}


def wrong(kind, ids):
    """(mis-attributed tokens, tokens)."""
    text, spans = token_spans(kind.core, ids)
    assert text == kind.core.decode(ids)
    cuts = split_sentences(text)
    got = owners(anchors(text, spans), cuts).tolist()
    want = kind.true_owners(ids, text, cuts)
    return sum(g != w for g, w in zip(got, want, strict=True)), len(ids)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_token_is_misattributed(kind):
    rng, total = random.Random(0), 0
    for text in ENGLISH + CHINESE + MIXED:
        ids = kind.core.encode(text, add_special_tokens=False).ids
        variants = [ids, [*ids, kind.special], [kind.special, *ids, kind.special]]
        middle = rng.randrange(len(ids))
        variants.append([*ids[:middle], kind.special, *ids[middle:]])
        variants += [ids[: rng.randrange(1, len(ids))] for _ in range(20)]
        for row in variants:
            bad, n = wrong(kind, row)
            assert bad == 0, (text, row)
            total += n
    assert total > 2000
    if "BPE" in kind.name:  # these split characters
        assert len(kind.core.encode("龘。𠮷", add_special_tokens=False).ids) > 4
    assert token_spans(kind.core, [])[0] == ""
    text, spans = token_spans(kind.core, [kind.special, kind.special])
    assert (text, anchors(text, spans).tolist(), owners(anchors(text, spans), []).tolist()) == ("", [-1, -1], [-1, -1])


def test_token_across_characters_goes_to_the_later():
    # 。 is E3 80 82 and 中 is E4 B8 AD; the middle token holds the last byte of 。 and the first of 中.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entry = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("。中")[0][0]
    vocabulary = {c: i for i, c in enumerate(alphabet)}
    cut = [entry[:2], entry[2:4], entry[4:]]
    vocabulary.update({piece: 256 + k for k, piece in enumerate(cut)})
    core = Tokenizer(models.BPE(vocabulary, []))
    core.decoder = decoders.ByteLevel()
    ids = [vocabulary["A"], 256, 257, 258]
    text, spans = token_spans(core, ids)
    assert text == "A。中"
    assert spans.tolist() == [[0, 1], [1, 2], [1, 3], [2, 3]]
    assert owners(anchors(text, spans), [(0, 2), (2, 3)]).tolist() == [0, 0, 1, 1]


def test_bytes_that_are_no_characters():
    # Random ids, as an untrained model samples them: every token with text has a span inside the text, in order.
    kind, rng = KINDS["byte-level BPE"], random.Random(1)
    for _ in range(50):
        ids = [rng.randrange(1 + max(kind.skipped), kind.core.get_vocab_size()) for _ in range(60)]
        text, spans = token_spans(kind.core, ids)
        assert text == kind.core.decode(ids)
        assert wrong(kind, ids)[0] == 0
        assert (spans[:, 0] < spans[:, 1]).all()
        assert (np.diff(spans[:, 0]) >= 0).all()
        assert (np.diff(spans[:, 1]) >= 0).all()
        assert spans[0, 0] == 0
        assert spans[-1, 1] == len(text)


def test_text_that_the_vocabulary_does_not_know():
    """Unknown tokens are special and decode to nothing; the stream then loses a space that decoding keeps."""
    for kind in KINDS.values():
        for text in ("Arizona\nLas Vegas. Two ☃ ☃\n\n* more. End", "☃☃ Start. ☃ \n☃ New one. ☃"):
            ids = kind.core.encode(text, add_special_tokens=False).ids
            for cut in range(1, len(ids) + 1):
                assert wrong(kind, ids[:cut])[0] == 0, (kind.name, text, cut)


def test_a_decoder_that_joins_tokens_afterwards():
    """Three "." become one "…", which neither the stream nor runs of bytes can know: every prefix is decoded."""
    from tokenizers import Tokenizer, decoders, models

    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["?", "a", ".", "b"])}, unk_token="?"))
    core.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("...", "…")])
    core.add_special_tokens(["<eos>"])
    for row, decoded, spans in (
        ("a...b", "a…b", [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3]]),
        ("a....b", "a….b", [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3], [3, 4]]),
        ("...a", "…a", [[0, 1], [0, 1], [0, 1], [1, 2]]),
        ("a..", "a..", [[0, 1], [1, 2], [2, 3]]),
    ):
        ids = [core.token_to_id(c) for c in row]
        for tail, end in ([], []), ([core.token_to_id("<eos>")], [[len(decoded)] * 2]):
            text, found = token_spans(core, ids + tail)
            assert text == decoded
            assert found.tolist() == spans + end


def test_white_space_goes_with_the_sentence_around_it():
    #        0123456789
    text = "Ab c.\n\nDe."
    spans = np.array([[0, 2], [2, 3], [3, 5], [5, 7], [7, 10], [4, 8]])
    # " " inside the first sentence is its own; "\n\n" between sentences is nobody's; ".\n\nD" ends in D.
    assert anchors(text, spans).tolist() == [1, 2, 4, 6, 9, 7]
    assert owners(anchors(text, spans), [(0, 5), (7, 10)]).tolist() == [0, 0, 0, -1, 1, 1]


def test_locate_finds_judged_text_in_decoded_text():
    parts = [Segment(0, 3), Segment(4, 7)]
    assert locate("Yes. No.", "Yes. No.", parts) == [(0, 3), (4, 7)]
    # The same words in the thinking come first: the answer is the last.
    assert locate("Yes. No.", "Yes. No. </think> Yes. No.\n", parts) == [(18, 21), (22, 25)]
    # Spaces cleaned up: "don't ." was decoded; offsets move with the characters.
    assert locate("I don't.", "I do n't .", [Segment(0, 1), Segment(2, 8)]) == [(0, 1), (2, 10)]
    assert locate("a  b", "a b", [Segment(1, 3), Segment(3, 4)]) == [(0, 0), (2, 3)]
    with pytest.raises(ValueError, match="ends at character 9 of a completion of 4"):
        locate("Yes.", "Yes.", [Segment(0, 9)])
    assert locate("Yes.", "No.", [Segment(0, 4)]) is None
    parts = [([Segment(0, 4, None, 1.0)], 1.0, np.array([1.0]))]
    assert row_advantages("No.", np.array([0, 2]), "Yes.", parts, (0.0, 0.0, 0.0), False, Credit()) is None


def test_standardised_by_hand():
    # Group 1: completions with rewards (1, −1, None) and (1): n 3, mean 1/3, squares 4/9 + 16/9 + 4/9 = 24/9, sample
    # variance 24/18 = 4/3. Group 2: one judged segment: std 0.
    rows = [[1, -1, None], [1], [0.5], [None]]
    found, std = standardised(rows, 2)
    assert std == pytest.approx([(4 / 3) ** 0.5] * 2 + [0, 0])
    assert found[:2] == pytest.approx(np.array([[2 / 3, -4 / 3, 0], [2 / 3, 0, 0]]) / (4 / 3) ** 0.5)
    assert not found[2:].any()
    # By place: first (1 + 1 + 1/3) / 3 = 7/9, second (−1 + 1/3) / 2 = −1/3, of which the mean of all is a part.
    found, _ = standardised(rows, 2, baseline="position")
    assert found[:2] == pytest.approx(np.array([[2 / 9, -2 / 3, 0], [2 / 9, 0, 0]]) / (4 / 3) ** 0.5)
    # "none" divides by 1. "batch": 1, −1, 1, 0.5 have mean 0.375, squares .390625·2 + 1.890625 + .015625 = 2.6875,
    # variance 2.6875/3; means stay the groups' own.
    assert standardised(rows, 2, "none")[0][0].tolist() == pytest.approx([2 / 3, -4 / 3, 0])
    found, std = standardised(rows, 2, "batch")
    assert std == pytest.approx([(2.6875 / 3) ** 0.5] * 4)
    assert found[2].tolist() == [0, 0, 0]
    # 0.1 + 0.2 differs from 0.3 by rounding: equal rewards, no advantage.
    assert not standardised([[0.1 + 0.2], [0.3]], 2)[0].any()
    assert standardised([[], []], 2)[1].tolist() == [0, 0]


def test_returns_by_hand():
    rewards = np.array([1.0, 0.0, -2.0])
    assert returns(rewards, 0).tolist() == [1, 0, -2]
    assert returns(rewards, 1).tolist() == [-1, -2, -2]
    # γ = ½: −2; 0 + ½·−2 = −1; 1 + ½·−1 = ½.
    assert returns(rewards, 0.5).tolist() == [0.5, -1, -2]
    assert returns(np.array([]), 0).tolist() == []


def test_sequence_advantages_by_hand():
    # Two groups of two, one function without an opinion on the last. Sums 2·1 + 0.5 = 2.5 and 0.5: mean 1.5, std √2.
    rewards, weights = np.array([[1, 0.5], [0, 0.5], [3, 1], [np.nan, np.nan]]), np.array([2.0, 1.0])
    ends = 1 / (2**0.5 + 1e-4)
    assert sequence_advantages(rewards, weights, 2) == pytest.approx([ends, -ends, 0, 0])
    assert sequence_advantages(rewards, weights, 2, "none") == pytest.approx([1, -1, 0, 0])
    # "batch": 2.5, 0.5 and 7 have the variance (5/6)² + (17/6)² + (11/3)² over 2 = 133/12
    whole = 1 / ((133 / 12) ** 0.5 + 1e-4)
    assert sequence_advantages(rewards, weights, 2, "batch") == pytest.approx([whole, -whole, 0, 0])
    # Each first: ±1/√2 of the first function, 0 of the second, times 2; then over the three sums √2, −√2, 0: std √2.
    first = 1 / (2**0.5 + 2e-4)
    found = sequence_advantages(rewards, weights, 2, each=True)
    assert found == pytest.approx([2**0.5 * first, -(2**0.5) * first, 0, 0], abs=1e-3)
    assert not sequence_advantages(rewards[:, :0], weights[:0], 2).any()


def test_steps_by_hand():
    """Two groups of two with means 2 and 0.5; the second of the first has no reward of a cut."""
    assert cuts_of(np.array([-1, 0, 0, -1, 1, -1])) == [3, 5]
    assert cuts_of(np.array([0, 0, 2, 2])) == [2]  # the second segment has no token, the last ends the completion
    assert cuts_of(np.array([-1, -1])) == []
    totals, values = np.array([1.0, 3.0, 0.0, 1.0]), [[2.5, 0.5], [np.nan, 2.5], [], [0.75]]
    steps = [[0.5, -2.0, 0.5], [0.0, 0.5, 0.5], [-0.5], [0.25, 0.25]]
    first, second = [2.5, 0.5, 1.0, 2.5, 3.0], [0.0, 0.75, 1.0]
    for scale, over in (
        ("none", [1.0] * 4),
        ("group", [statistics.stdev(first) + 1e-4] * 2 + [statistics.stdev(second) + 1e-4] * 2),
        ("batch", [statistics.stdev(first + second) + 1e-4] * 4),
    ):
        for got, want, std in zip(step_advantages(totals, values, 2, scale), steps, over, strict=True):
            assert got.tolist() == pytest.approx([a / std for a in want])
    missing, alone = step_advantages(np.array([np.nan, 3.0]), [[1.0], [2.0]], 2)  # V_0 = 3; std of 1, 2, 3 is 1
    assert missing.tolist() == [0.0, 0.0]
    assert alone.tolist() == pytest.approx([-1 / 1.0001, 1 / 1.0001])
    # Equal answers: what happens on the way is measured by itself, and no difference at all is no advantage.
    even = step_advantages(np.array([1.0, 1.0]), [[0.5], [1.0]], 2)  # std of 0.5, 1, 1, 1 is 0.25
    assert [row.tolist() for row in even] == [pytest.approx([-0.5 / 0.2501, 0.5 / 0.2501]), [0.0, 0.0]]
    rounded = step_advantages(np.array([1.0, 1.0 + 1e-9]), [[1.0 - 1e-9], []], 2)
    assert [row.tolist() for row in rounded] == [[0.0, 0.0], [0.0]]


def test_advantages_of_a_row_by_hand():
    # "Yes. No." in 4 tokens and <eos>; rewards ±1, mean 0, std 2, weight 3: ±1.5; γ = ½ adds ½ · −1.5 to the first.
    anchors_T = np.array([2, 3, 6, 7, -1])
    parts = [([Segment(0, 4, None, 1.0), Segment(5, 8, None, -1.0)], 3.0, np.array([0.5, -0.5]))]
    for credit, tokens in (
        (OWN, [1.7, 1.7, -1.3, -1.3, 0.2]),  # 0.2: by the functions without segments
        (replace(OWN, gamma=0.5), [0.95, 0.95, -1.3, -1.3, 0.2]),
        (replace(OWN, eos="last"), [1.7, 1.7, -1.3, -1.3, -1.3]),
        (replace(OWN, eos="sequence"), [1.7, 1.7, -1.3, -1.3, 9.0]),
        (replace(OWN, eos="sequence", clip=1.5), [1.5, 1.5, -1.3, -1.3, 1.5]),
        # 0.2 + ¼ · 2 ± ¾ · 1.5, 0.2 + ¼ · 2
        (replace(OWN, sequence_share=0.25), [1.825, 1.825, -0.425, -0.425, 0.7]),
    ):
        found = row_advantages("Yes. No.", anchors_T, "Yes. No.", parts, (0.2, 2.0, 9.0), True, credit)
        assert found is not None
        assert found[0].tolist() == pytest.approx(tokens)
        assert found[1].tolist() == [True] * 4 + [credit.eos == "last"]


def test_thinking_gets_the_sequence():
    # A token of thinking, two of "No.", the end; without any sentence all but the end is thinking.
    parts = [([Segment(2, 5, None, 1.0)], 1.0, np.array([0.5]))]
    thinks = replace(OWN, thinking="sequence")
    for text_parts, tokens in (parts, [9.0, 0.7, 0.7, 0.2]), ([([], 1.0, np.array([0.0]))], [9.0, 9.0, 9.0, 0.2]):
        found = row_advantages("… No.", np.array([0, 3, 4, -1]), "… No.", text_parts, (0.2, 2.0, 9.0), True, thinks)
        assert found is not None
        assert found[0].tolist() == pytest.approx(tokens)
    unjudged = row_advantages("… No.", np.array([0, 3, 4, -1]), "… No.", [], (0.2, 2.0, 9.0), True, thinks)
    assert unjudged is not None
    assert unjudged[0].tolist() == [0.2] * 4  # there is no score to credit


@pytest.mark.parametrize(("options", "text"), [
    ({"gamma": 1.5}, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"sequence_share": 1.5}, "sequence_share: expected"),
    ({"sequence_share": float("nan")}, "sequence_share: expected"),
    ({"eos": "all"}, "eos: expected one of .*'last'.*, got 'all'"),
    ({"thinking": "last"}, "thinking: expected one of .*'sequence'.*, got 'last'"),
    ({"baseline": "mean"}, "baseline: expected one of .*'position'.*, got 'mean'"),
    ({"clip": 0.0}, "clip: expected a number above 0, or None, got 0.0"),
])  # fmt: skip
def test_credit_checks_its_values(options, text):
    with pytest.raises(ValueError, match=text):
        Credit(**options)


def test_core_needs_numpy_and_tokenizers_only():
    """Segments, offsets and credit work where nothing else can be imported."""
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {*sys.stdlib_module_names, "numpy", "tokenizers", "mitigate"}:
            raise ImportError(f"blocked: {name}")
sys.meta_path.insert(0, Block())
from mitigate.rewards.segments import Segment, SentenceScore
from mitigate.rl.credit import Credit, anchors, row_advantages, sequence_advantages, standardised, token_spans
from tokenizers import Tokenizer, models
text, spans = token_spans(Tokenizer(models.WordLevel({"?": 0, "Yes.": 1, "No.": 2}, unk_token="?")), [1, 2])
score = SentenceScore(0.0, {"fact": [Segment(0, 4, None, 1.0), Segment(5, 8, None, -1.0)]})
table, _ = standardised([[1.0, -1.0], [-1.0, -1.0]], 2)
parts = [(score.segments["fact"], 1.0, table[0])]
credit = Credit(0.0, 0.0, baseline="group")
print(row_advantages(text, anchors(text, spans), text, parts, (0.0, 0.0, 0.0), False, credit)[0].round(6).tolist())
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    # Rewards 1, −1, −1, −1: mean −½, squares 2¼ + 3 · ¼ = 3, std 1.
    assert done.stdout == "[1.5, -0.5]\n", done.stderr
