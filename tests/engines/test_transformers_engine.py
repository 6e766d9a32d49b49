"""The transformers engine on a tiny checkpoint, against plain forward passes without padding or cache."""

import inspect
import json
import math
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from engines import EngineError, Sampling, load_engine
from engines.transformers_engine import CACHE, PIECE, TransformersEngine, decode_quickly, one_query_attention
from engines.usage import METER
from tests.helpers import tiny_models
from tests.helpers.engines_server import user
from tests.helpers.tiny_chat import TEXT, build_tiny_chat

CHATS = [
    user("Is the river longer than the road?"),
    user("no"),
    [{"role": "system", "content": "Pack my box with five dozen jugs. " * 3}, *user("red or blue?")],
    user("The quick brown fox jumps over the lazy dog."),
    user("Which one is older, yes or no"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    return build_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(folder):
    return load_engine(f"transformers:{folder}", device="cpu", dtype="float32")


def prompt(engine, chat):
    """The template by hand: <|role|>content<|end|> for each message, then <|assistant|>."""
    text = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in chat) + "<|assistant|>"
    return engine.tokenizer.encode(text, add_special_tokens=False)


@torch.inference_mode()
def next_logits(engine, ids):
    return engine.model(torch.tensor([ids])).logits[0, -1].float()


def greedy(engine, chat, steps):
    """Arg max by whole forward passes: new ids (with the end token) and their log-probabilities."""
    ids, new, logprobs = prompt(engine, chat), [], []
    for _ in range(steps):
        logprob = torch.log_softmax(next_logits(engine, ids + new), dim=-1)
        token = int(logprob.argmax())
        new.append(token)
        logprobs.append(float(logprob[token]))
        if token == engine.tokenizer.eos_token_id:
            break
    return new, logprobs


def test_code_of_a_checkpoint_runs_only_where_asked(folder, engine, tmp_path, monkeypatch):
    """A folder as InternLM2's: model and configuration are Python files in it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    own = shutil.copytree(folder, tmp_path / "own")
    tiny_models.own_code(own)
    with pytest.raises(ValueError, match=r"read its \.py files, then give --trust-remote-code"):
        load_engine(f"transformers:{own}", device="cpu")
    trusted = load_engine(f"transformers:{own}", device="cpu", trust_remote_code=True)
    assert type(trusted.model).__name__ == "OwnModel"
    assert trusted.chat(CHATS[:1])[0].text == engine.chat(CHATS[:1])[0].text
    (own / "own.py").write_text("import no_such_package\n" + (own / "own.py").read_text())
    with pytest.raises(ImportError, match=r"no_such_package.*hallucination-toolkit\[internlm\]"):
        load_engine(f"transformers:{own}", device="cpu", trust_remote_code=True)


def test_greedy_batch_equals_the_plain_loop(engine):
    told = {}
    results = engine.chat(CHATS, Sampling(max_tokens=24, logprobs=True), on_result=told.__setitem__)
    assert told == dict(enumerate(results))
    assert {result.samples[0].finish_reason for result in results} == {"stop", "length"}
    for chat, result in zip(CHATS, results, strict=True):
        ids, logprobs = greedy(engine, chat, 24)
        sample = result.samples[0]
        assert sample.text == engine.tokenizer.decode(ids, skip_special_tokens=True)
        assert sample.finish_reason == ("stop" if ids[-1] == engine.tokenizer.eos_token_id else "length")
        assert result.prompt_tokens == len(prompt(engine, chat))
        assert result.completion_tokens == len(ids)
        assert [token.text for token in sample.logprobs] == [engine.tokenizer.decode([i]) for i in ids]
        assert [token.logprob for token in sample.logprobs] == pytest.approx(logprobs, abs=1e-4)
        assert result.error is None


def test_stream_joins_to_the_whole_answer(engine, calls, monkeypatch):
    for chat in CHATS:
        for sampling in (Sampling(max_tokens=30), Sampling(max_tokens=30, temperature=1.0, seed=3)):
            assert "".join(engine.stream(chat, sampling)) == engine.chat([chat], sampling)[0].text
    assert len(list(engine.stream(CHATS[0], Sampling(max_tokens=30)))) > 4
    calls.clear()
    METER.begin()
    pieces = engine.stream(CHATS[0], Sampling(max_tokens=400))
    next(pieces)
    pieces.close()
    assert len(calls) == PIECE  # nothing is written on
    assert (METER.requests, METER.reply_tokens) == (1, PIECE)
    assert METER.prompt_tokens == len(prompt(engine, CHATS[0]))
    with pytest.raises(EngineError, match="tokens, the model holds"):
        next(engine.stream(user("long " * 3000)))
    monkeypatch.setattr(engine.model, "forward", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(engine.stream(CHATS[0]))


def test_streamed_pieces_end_with_whole_characters(tmp_path, monkeypatch):
    text = "日本語🙂 ok"  # without merges three or four tokens a character: a piece ends within one
    monkeypatch.setattr("tests.helpers.tiny_chat.TEXT", f"{TEXT}\n{text}")
    file = build_tiny_chat(tmp_path) / "tokenizer.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "model": {**written["model"], "merges": []}}))
    engine = load_engine(f"transformers:{tmp_path}", device="cpu", dtype="float32")
    sampling = Sampling(max_tokens=60, choices=(text,))
    streamed = "".join(engine.stream(user("red"), sampling))
    assert streamed == engine.chat([user("red")], sampling)[0].text == text


def test_text_does_not_depend_on_the_batch(folder, engine):
    alone = TransformersEngine(str(folder), device="cpu", dtype="float32", batch_tokens=1)
    for sampling in (Sampling(max_tokens=24), Sampling(max_tokens=24, temperature=1.0, n=3, seed=11)):
        together = [result.texts for result in engine.chat(CHATS, sampling)]
        assert [result.texts for result in alone.chat(CHATS, sampling)] == together
        assert [result.texts for result in engine.chat(CHATS[::-1], sampling)] == together[::-1]
        assert engine.chat(CHATS[1:2], sampling)[0].texts == together[1]


@pytest.fixture
def calls(engine, monkeypatch):
    """The shapes (rows, tokens) that the engine's model is called with, in order."""
    forward, shapes = type(engine.model).forward, []

    def watched(self, input_ids=None, **options):
        shapes.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(type(engine.model), "forward", watched)
    return shapes


def test_batches_are_bucketed_by_length(folder, engine, calls):
    small = TransformersEngine(str(folder), device="cpu", dtype="float32", batch_tokens=200)
    chats = [user("x " * words) for words in (1, 40, 2, 39, 3, 30, 4, 5)]
    sampling = Sampling(max_tokens=10)
    assert small.chat(chats, sampling) == engine.chat(chats, sampling)
    prompts = [shape for shape in calls[: calls.index((8, max(width for _, width in calls)))] if shape[1] > 1]
    widths = [width for _, width in prompts]
    assert widths == sorted(widths, reverse=True)
    assert sum(rows for rows, _ in prompts) == 8
    assert max(rows for rows, _ in prompts) > 2
    assert all(rows == 1 or rows * (width + 10) <= 200 for rows, width in prompts)


def test_ended_rows_leave_the_batch(folder, engine, calls, monkeypatch):
    alone = TransformersEngine(str(folder), device="cpu", dtype="float32", batch_tokens=1)
    sampling = Sampling(max_tokens=70, temperature=1.0, n=32, seed=1, logprobs=True)
    letters = [i for i in range(len(engine.tokenizer)) if {*engine.tokenizer.decode([i])} & {*"aq"}]
    for one in (engine, alone):  # they end a row, which few do by themselves
        monkeypatch.setattr(one, "_ends", letters)
    together = engine.chat(CHATS[:1], sampling)[0]
    assert calls[0][0] == 1  # samples share the pass over their prompt
    rows = [rows for rows, _ in calls[1:]]
    assert rows[0] == 32
    assert rows == sorted(rows, reverse=True)
    assert 3 <= len(set(rows)) <= len(rows) <= 70
    assert set(rows) <= {32, 16, 8, 4, 2, 1}
    result = alone.chat(CHATS[:1], sampling)[0]
    assert result.texts == together.texts
    for one, other in zip(result.samples, together.samples, strict=True):
        assert one.finish_reason == other.finish_reason
        assert [t.logprob for t in one.logprobs] == pytest.approx([t.logprob for t in other.logprobs], abs=1e-4)


def test_model_without_rows_to_select_runs_whole(tmp_path):
    """Mamba keeps a state instead of keys and values."""
    engines = [
        TransformersEngine(str(_mamba(tmp_path)), device="cpu", dtype="float32", batch_tokens=n) for n in (1, 4096)
    ]
    assert not any(engine._selects for engine in engines)
    sampling = Sampling(max_tokens=24, temperature=1.0, n=3, seed=2)
    alone, together = ([result.texts for result in engine.chat(CHATS, sampling)] for engine in engines)
    assert together == alone
    assert len({text for texts in together for text in texts}) > 10


def _mamba(folder):
    from transformers import MambaConfig, MambaForCausalLM

    tokenizer = TransformersEngine(str(build_tiny_chat(folder)), device="cpu").tokenizer
    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    MambaForCausalLM(config).save_pretrained(folder)
    return folder


def test_draws_differ_where_the_seed_does(engine):
    drawn = [Sampling(max_tokens=24, temperature=1.0, n=3, seed=seed) for seed in (5, 6, None, None)]
    texts = [text for sampling in drawn for result in engine.chat(CHATS, sampling) for text in result.texts]
    long = [text for text in texts if len(text) >= 12]  # shorter ones, as "", are equal by chance now and then
    assert len(set(long)) == len(long) > 30


def test_draws_follow_the_tempered_distribution(engine):
    chat, temperature, n = CHATS[0], 1.5, 3000
    probs = torch.softmax(next_logits(engine, prompt(engine, chat)) / temperature, dim=-1)
    counts = Counter(engine.chat([chat], Sampling(max_tokens=1, temperature=temperature, n=n, seed=1))[0].texts)
    assert len(counts) > 5
    for token in probs.argsort(descending=True)[:20].tolist():
        expected = float(probs[token])
        spread = math.sqrt(expected * (1 - expected) / n)  # standard error of a share
        assert abs(counts[engine.tokenizer.decode([token])] / n - expected) < 4.5 * spread + 1e-6


def test_logprobs_are_the_models_own(engine):
    ids_of = {engine.tokenizer.decode([i]): i for i in range(len(engine.tokenizer))}
    sampling = Sampling(max_tokens=16, temperature=1.7, n=2, seed=3, logprobs=True, top_logprobs=3)
    for chat, result in zip(CHATS, engine.chat(CHATS, sampling), strict=True):
        for sample in result.samples:
            ids = prompt(engine, chat)
            for token in sample.logprobs:
                expected = torch.log_softmax(next_logits(engine, ids), dim=-1)  # before temperature
                assert token.logprob == pytest.approx(float(expected[ids_of[token.text]]), abs=1e-4)
                values, likeliest = expected.topk(3)
                assert [text for text, _ in token.top] == [engine.tokenizer.decode([i]) for i in likeliest.tolist()]
                assert [value for _, value in token.top] == pytest.approx(values.tolist(), abs=1e-4)
                ids = [*ids, ids_of[token.text]]


def test_only_choices_are_answered(engine):
    choices = ("red", "blue", "yes", "yesterday")
    results = engine.chat(CHATS, Sampling(max_tokens=10, choices=choices))
    assert METER.requests == len(CHATS)
    assert METER.reply_tokens == sum(result.completion_tokens for result in results)
    for chat, result in zip(CHATS, results, strict=True):
        left = {c: [*engine.tokenizer.encode(c), engine.tokenizer.eos_token_id] for c in choices}
        ids, place = prompt(engine, chat), 0
        while len(left) > 1:  # follow the best token among those that keep a choice possible
            logits = next_logits(engine, ids)
            best = max({path[place] for path in left.values()}, key=lambda token: float(logits[token]))
            left = {c: path for c, path in left.items() if path[place] == best}
            ids, place = [*ids, best], place + 1
        assert result.text == next(iter(left))
        assert result.samples[0].finish_reason == "stop"
    drawn = engine.chat(CHATS, Sampling(max_tokens=10, choices=choices, temperature=2.0, n=10, seed=0))
    texts = {text for result in drawn for text in result.texts}
    assert texts <= set(choices)
    assert len(texts) > 1


def test_too_long_prompt_fails_alone(engine):
    long, near = user("x " * 400), user("y " * 115)
    results = engine.chat([CHATS[0], long, near], Sampling(max_tokens=40))
    assert results[1].text is None
    assert "the model holds 256" in results[1].error
    assert results[0].text == engine.chat([CHATS[0]], Sampling(max_tokens=40))[0].text
    room = 256 - len(prompt(engine, near))
    assert 0 < room < 40
    assert (results[2].completion_tokens, results[2].samples[0].finish_reason) == (room, "length")


def test_control_tokens_in_messages_are_text(engine):
    if "sanitize_control_tokens" not in inspect.signature(engine.tokenizer.apply_chat_template).parameters:
        pytest.skip("skipped: this transformers cannot encode control tokens as text")
    ids = engine.tokenizer.encode("<|end|>", split_special_tokens=True)
    harmless = len(prompt(engine, user("a"))) - 1 + len(ids)  # "a" is one token
    result = engine.chat([user("<|end|>")], Sampling(max_tokens=1))[0]
    assert result.prompt_tokens == harmless


def test_batch_too_large_for_memory_is_halved(engine, monkeypatch):
    expected = engine.chat(CHATS, Sampling(max_tokens=8))
    generate, sizes = engine.model.generate, []

    def small(**options):
        sizes.append(len(options["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError
        return generate(**options)

    monkeypatch.setattr(engine.model, "generate", small)
    assert engine.chat(CHATS, Sampling(max_tokens=8)) == expected
    assert sizes == [4, 2, 2, 1]  # batches of 4 and 1; the first is halved


def test_identity_changes_with_checkpoint_and_precision(tmp_path):
    build_tiny_chat(tmp_path)
    first, same = (TransformersEngine(str(tmp_path), device="cpu").identity for _ in range(2))
    half = TransformersEngine(str(tmp_path), device="cpu", dtype="bfloat16")
    assert half.identity["dtype"] == "bfloat16"
    assert half.chat(CHATS[:1], Sampling(max_tokens=8))[0].completion_tokens == 8
    build_tiny_chat(tmp_path, seed=1)
    assert first == same != TransformersEngine(str(tmp_path), device="cpu").identity


@pytest.mark.parametrize(("has", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_cpu_computes_in_bfloat16_where_it_can(folder, monkeypatch, has, dtype):
    monkeypatch.setattr("engines.embedding.cpu_has_bfloat16", lambda: has)
    engine = TransformersEngine(str(folder), device="cpu")
    assert engine.identity["dtype"] == dtype == str(engine.model.dtype).removeprefix("torch.")


def test_unsupported_options_are_named(folder, tmp_path, engine):
    with pytest.raises(ValueError, match="no JSON schemas"):
        engine.chat(CHATS, Sampling(json_schema={"type": "object"}))
    with pytest.raises(ValueError, match="dtype: expected"):
        load_engine(f"transformers:{folder}", dtype="int3")
    with pytest.raises(ValueError, match="batch_tokens must be"):
        load_engine(f"transformers:{folder}", batch_tokens=0)
    bare = build_tiny_chat(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        load_engine(f"transformers:{bare}")


def test_chat_refused_by_template_fails_alone(folder):
    engine = TransformersEngine(str(folder), device="cpu")
    engine.tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        + engine.tokenizer.chat_template
    )
    results = engine.chat(CHATS, Sampling(max_tokens=4))
    assert "no system message" in results[2].error
    assert [result.error is None for result in results] == [True, True, False, True, True]


def test_the_chat_template_gets_its_arguments(folder):
    plain, quick = (
        TransformersEngine(str(folder), device="cpu", chat_template_kwargs=more) for more in (None, {"quick": True})
    )
    for engine in (plain, quick):
        engine.tokenizer.chat_template += "{% if quick %}<think></think>{% else %}<think>{% endif %}"
    thinks, hastes = (one.chat(CHATS[:1], Sampling(max_tokens=4))[0].samples[0].text for one in (plain, quick))
    assert thinks.startswith("<think>")
    assert not hastes.startswith("<think>")
    assert {**plain.identity, "chat_template_kwargs": {"quick": True}} == quick.identity


def test_thoughts_that_the_prompt_opens_are_not_said(folder):
    engine, how = TransformersEngine(str(folder), device="cpu"), Sampling(max_tokens=8)
    plain = engine.chat(CHATS[:1], how)[0].samples[0].text
    engine.tokenizer.chat_template += "<think>\n"
    (result,) = engine.chat(CHATS[:1], how)
    text = result.samples[0].text
    assert text.startswith("<think>")
    assert not plain.startswith("<think>")
    assert result.text == ""  # eight tokens, all of them thoughts
    assert "".join(engine.stream(CHATS[0], how)) == text
    assert engine.chat(CHATS[:1], Sampling(max_tokens=8, choices=("yes", "no")))[0].text in ("yes", "no")
    engine.tokenizer.chat_template += "\n</think>\n\n"  # thinking is off: the block is closed
    assert not engine.chat(CHATS[:1], how)[0].samples[0].text.startswith("<think>")


@pytest.mark.parametrize("masked", [False, True])
def test_one_query_equals_the_softmax(masked):
    """Six query heads over two heads of keys, with narrower values, against a loop; row 0 may not read key 0."""
    query, key = torch.randn(2, 6, 1, 8, dtype=torch.float64), torch.randn(2, 2, 5, 8, dtype=torch.float64)
    value, may = torch.randn(2, 2, 5, 6, dtype=torch.float64), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    may[0, ..., 0] = not masked
    got = one_query_attention(None, query, key, value, may if masked else None, scaling=0.3)[0]
    for b in range(2):
        for h in range(6):
            weights = [math.exp(0.3 * float(query[b, h, 0] @ key[b, h // 3, t])) * may[b, 0, 0, t] for t in range(5)]
            want = sum(w * value[b, h // 3, t] for t, w in enumerate(weights)) / sum(weights)
            torch.testing.assert_close(got[b, 0, h], want, rtol=1e-5, atol=1e-6)


def test_added_masks_are_left_to_torch():
    """A bias of each head, as of Doge's layers, is added and not taken for a ban."""
    query, key, value = (torch.randn(2, heads, n, 8) for heads, n in ((4, 1), (2, 5), (2, 5)))
    module, bias = SimpleNamespace(num_key_value_groups=2), torch.randn(2, 4, 1, 5)
    got = one_query_attention(module, query, key, value, bias)[0]
    weights = (query @ key.repeat_interleave(2, 1).mT / 8**0.5 + bias).softmax(-1)
    torch.testing.assert_close(got, (weights @ value.repeat_interleave(2, 1)).transpose(1, 2))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "olmo2"])
def test_quick_decoding_has_the_same_logits(kind):
    """The last token of two padded rows, read after the others, as in one pass of sdpa."""
    model = tiny_models.decoder(kind).bfloat16().eval()
    ids, mask = torch.randint(2, 400, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    with torch.no_grad():
        want = model(input_ids=ids, attention_mask=mask).logits[:, -1]
        cache = model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1])[CACHE]
        decode_quickly(model)
        assert model.config._attn_implementation == "one_query"
        got = model(input_ids=ids[:, -1:], attention_mask=mask, **{CACHE: cache}).logits[:, -1]
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.01)
    whole = tiny_models.decoder(kind)
    decode_quickly(whole)
    assert whole.config._attn_implementation == "sdpa"  # float32 has no slow kernel
