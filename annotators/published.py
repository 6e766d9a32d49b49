"""The field's published detectors by their names on the hub: NLI cross-encoders, MiniCheck, HHEM and LettuceDetect.

annotator = load_annotator("nli:MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli")
annotator = load_annotator("lettucedetect:KRLabsOrg/lettucedect-base-modernbert-en-v1")  # marks the words, too

Each reads what its authors' own code gives it. A document beyond a model's limit is read in up to six windows of the
passages that bear most on the sentence (``retrieval.py``); the one that supports it best counts, as in MiniCheck and
SummaC: a fact stands in one place, and a window without it says nothing against it.

Sources: SummaC (Laban et al., TACL 2022); MiniCheck (Tang, Laban & Durrett, EMNLP 2024); LettuceDetect (Kovács & Recski
2025); HHEM-2.1-Open (Vectara 2024).
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from annotators.base import Annotator, Sentence
from annotators.records import LABELS, Fragment, Label, SentenceAnnotation, Span
from annotators.retrieval import Window, index_references, second_pass, words
from annotators.text.normalise import clean_text
from annotators.text.sentences import trimmed
from annotators.text.words import words_of
from annotators.verifier.causal import BATCH_TOKENS, load_tokenizer
from engines.checkpoint import checkpoint_identity, locate
from engines.embedding import batches, placed, tokenize

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BatchEncoding, PreTrainedTokenizerBase

KINDS = ("nli", "lettucedetect", "minicheck", "hhem")
"""What may stand before the ":" of a name."""
VERSION = 1  # raised whenever an input format or a rule below changes, since verdicts depend on it
SHARE = 8  # claims are given room in eighths of the limit, so that those of one document share its windows
HALLUCINATED_AT = 0.5  # P(hallucinated) from which a token is marked: the argmax of two classes
FOUNDATION = "google/flan-t5-base"  # whose configuration and tokenizer HHEM has, unless its config.json names another
HHEM_PROMPT = "<pad> Determine if the hypothesis is true given the premise?\n\nPremise: {text1}\n\nHypothesis: {text2}"
MINICHECK_ANSWERS = ("▁", "▁1")  # where T5 begins to write 0 (not supported) and 1: ids 3 and 209
MEANING: dict[Label, str] = {
    "supported": "entailment entailed entail entails supported supports support consistent",
    "contradictory": "contradiction contradictory contradicted contradicts contradict refuted refutes refute",
    "unverifiable": "neutral unverifiable notentailment nonentailment notentailed notsupported unsupported "
    "notenoughinfo notenoughinformation nei inconsistent",
}
"""What a checkpoint may call its classes, in lower case and letters only."""

Form = Callable[[str, str, str], tuple[str, ...]]
"""(document, claim, question) to the one or two texts that the tokenizer is given."""
Forward = Callable[[Any, Mapping[str, "Tensor"]], "Tensor"]
"""Model and batch to logits, (B, C) or (B, T, C)."""


@dataclass(frozen=True)
class Reading:
    """One window of a claim's document, as tokens, and what the model says: (C,) probabilities, or (T, C) of tokens."""

    window: Window
    encoding: BatchEncoding
    chances: np.ndarray

    def evidence(self, sentence: str) -> tuple[Fragment, ...]:
        """The passage of the window that has most in common with a sentence (BM25); none without a word in common."""
        scores = self.window.index.bm25.scores([words(sentence)])[0]
        best = max(self.window.places, key=lambda place: scores[place])
        passage = self.window.index.passages[best]
        return (Fragment(passage.text, passage.start, passage.end),) if scores[best] > 0 else ()


class PairAnnotator(Annotator):
    """Judges a sentence and a document: an NLI model, MiniCheck or HHEM; made by :func:`load_published`.

    ``order`` are the numbers of the model's classes that mean supported, contradictory and unverifiable (None: it has
    no such class). ``limit`` are the tokens that it reads at most, ``evidence`` those of a window.
    """

    reads: tuple[str, ...] = ("reference", "sentence")
    whole_answers = False

    def __init__(
        self, name: str, fingerprint: str, model: Any, tokenizer: PreTrainedTokenizerBase, *, form: Form,
        forward: Forward, limit: int, evidence: int, order: Sequence[int | None],
    ) -> None:  # fmt: skip
        self.name, self.fingerprint = name, fingerprint
        self.model, self.tokenizer = model, tokenizer
        self.limit, self.evidence, self.order = limit, evidence, tuple(order)
        self._form, self._forward = form, forward
        self._special = [token for token in tokenizer.all_special_tokens if len(token) > 1]
        tokenizer.padding_side = "right"

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """One judgement per sentence, in order; equal questions to the model are asked once."""
        known = [_without_model(sentence) for sentence in sentences]
        whole = self.whole_answers
        keys = [(s.reference, s.answer, s.question) if whole else (s.reference, s.text, "") for s in sentences]
        asked = list(dict.fromkeys(key for key, own in zip(keys, known, strict=True) if own is None))
        readings_of = dict(zip(asked, self._read(asked), strict=True))
        return [
            own or (self._annotation(sentence, readings_of[key]) if readings_of[key] else sentence.judged("too_long"))
            for sentence, key, own in zip(sentences, keys, known, strict=True)
        ]

    def _annotation(self, sentence: Sentence, readings: Sequence[Reading]) -> SentenceAnnotation:
        """From the windows' probabilities; the evidence is of the window that decided."""
        chances_W3 = np.array([[0.0 if c is None else float(r.chances[c]) for c in self.order] for r in readings])
        chances, supporting, contradicting = over_windows(chances_W3)
        label = LABELS[int(chances.argmax())]
        decided = readings[contradicting if label == "contradictory" else supporting]
        return sentence.scored([*chances, 0.0], fragments=decided.evidence(sentence.text))

    def _read(self, asked: Sequence[tuple[str, str, str]]) -> list[list[Reading]]:
        """The readings of each (reference, claim, question); none where claim and question leave too little room."""
        step = max(1, self.limit // SHARE)
        of_room: dict[int, list[int]] = defaultdict(list)
        for n, (_, claim, question) in enumerate(asked):
            fixed = len(self._encode("", claim, question)["input_ids"])
            if fixed <= self.limit // 2:
                of_room[min(self.evidence, self.limit - step * -(-fixed // step))].append(n)
        seen: list[tuple[int, Window, BatchEncoding]] = []
        for room, numbers in of_room.items():
            indexes = index_references([asked[n][0] for n in numbers], partial(tokenize, self.tokenizer), budget=room)
            further = second_pass([(index, asked[n][1]) for n, index in zip(numbers, indexes, strict=True)])
            for n, index, windows in zip(numbers, indexes, further, strict=True):
                for window in windows or [index.all]:
                    seen.append((n, window, self._encode(window.joined("\n"), *asked[n][1:])))
        found: list[list[Reading]] = [[] for _ in asked]
        for (n, window, encoding), chances in zip(seen, self._chances([s[2] for s in seen]), strict=True):
            found[n].append(Reading(window, encoding, chances))
        return found

    def _encode(self, document: str, claim: str, question: str) -> BatchEncoding:
        """Tokens of the model's own input format; a document that still is too long loses its end, never the claim."""
        while True:
            plain = [self._plain(text) for text in (document, claim, question)]
            encoding = self.tokenizer(*self._form(*plain), truncation=False, return_offsets_mapping=True, verbose=False)
            over = len(encoding["input_ids"]) - self.limit
            if over <= 0 or not document.strip():
                return encoding
            offsets_T2 = tokenize(self.tokenizer, [document])[0][1]  # line breaks between passages are tokens of some
            document = document[: int(offsets_T2[-min(over, len(offsets_T2)), 0])]

    def _plain(self, text: str) -> str:
        """The text, as long as it was, with no lone surrogate and no control token of the model spelt out in it."""
        text = text.encode("utf-8", "replace").decode()
        for token in self._special:
            text = text.replace(token, "‹" + token[1:])
        return text

    def _chances(self, rows: Sequence[BatchEncoding]) -> list[np.ndarray]:
        """The model's probabilities for each row, in order; rows of like length are read together."""
        import torch

        device = next(self.model.parameters()).device
        names = [name for name in self.tokenizer.model_input_names if rows and name in rows[0]]
        out: list[np.ndarray] = [np.zeros(0)] * len(rows)
        lengths = [len(row["input_ids"]) for row in rows]
        for numbers, width in batches(lengths, BATCH_TOKENS["cuda" if device.type == "cuda" else "cpu"], self.limit):
            batch = self.tokenizer.pad(
                {name: [rows[n][name] for n in numbers] for name in names},
                padding="max_length", max_length=width, return_tensors="pt", verbose=False,
            )  # fmt: skip
            with torch.inference_mode():
                chances = self._forward(self.model, batch.to(device)).float().softmax(-1).cpu().numpy()
            for n, own in zip(numbers, chances, strict=True):
                out[n] = own
        return out


class SpanAnnotator(PairAnnotator):
    """LettuceDetect: P(hallucinated) of each token of an answer, read with its question and document.

    A sentence is as unverifiable as its worst token. A token counts by the window that supports it best; the package
    takes the worst, which marks all that a window does not happen to hold.
    """

    reads = ("question", "reference", "sentence")
    whole_answers = True

    def _annotation(self, sentence: Sentence, readings: Sequence[Reading]) -> SentenceAnnotation:
        tokens_WT = [[t for t, part in enumerate(r.encoding.sequence_ids(0)) if part == 1] for r in readings]
        p_WT = np.stack([r.chances[tokens, 1] for r, tokens in zip(readings, tokens_WT, strict=True)])
        offsets = readings[0].encoding["offset_mapping"]
        places = [offsets[t] for t in tokens_WT[0]]  # in the answer; the same in every window
        inside = [k for k, (a, b) in enumerate(places) if a < b and a < sentence.end and b > sentence.start]
        if not inside:
            return sentence.judged("failed", problems=("the tokenizer reads no token in this sentence",))
        p_T = p_WT[:, inside].min(0)
        p = float(p_T.max())
        scores = {"supported": 1 - p, "contradictory": 0.0, "unverifiable": p, "no_fact": 0.0}
        decided = readings[int(p_WT[:, inside].max(1).argmin())]
        spans: list[Span] = []
        for flagged, run in groupby(zip(inside, p_T, strict=True), key=lambda pair: pair[1] >= HALLUCINATED_AT):
            tokens = [places[k] for k, _ in run]
            start, end = max(sentence.start, tokens[0][0]), min(sentence.end, tokens[-1][1])
            if flagged:
                pieces = trimmed(sentence.answer[start:end], [0, end - start])
                spans += [Span(start + a, start + b) for a, b in pieces]
        label = "unverifiable" if p >= HALLUCINATED_AT else "supported"
        fragments = decided.evidence(sentence.text)
        return sentence.judged("checked", label, scores, fragments=fragments, spans=tuple(spans))


def _without_model(sentence: Sentence) -> SentenceAnnotation | None:
    """The judgement of a sentence that no model need read: no reference, or no words (dashes, emoji); else None."""
    if not clean_text(sentence.reference).strip():
        return sentence.judged("no_reference")
    if not len(words_of(clean_text(sentence.text))):
        return sentence.scored((0, 0, 0, 1))
    return None


def over_windows(chances_W3: np.ndarray) -> tuple[np.ndarray, int, int]:
    """(3,) probabilities of supported, contradictory and unverifiable from those of W ≥ 1 windows: s = max_w s_w, and
    1 − s is shared as in the window with most contradiction; then the numbers of these two windows.
    """
    supporting, contradicting = (int(chances_W3[:, c].argmax()) for c in (0, 1))
    s = chances_W3[supporting, 0]
    wrong = chances_W3[contradicting, 1:]
    return np.array([s, *(1 - s) * wrong / max(wrong.sum(), 1e-12)]), supporting, contradicting


def class_order(names: Sequence[str], where: str) -> list[int | None]:
    """For supported, contradictory and unverifiable the number of the class of that meaning; ValueError where unclear.

    ``names`` are the classes in the model's order: entailment, neutral and contradiction, or entailment and
    not_entailment (then all that is not entailed is unverifiable), in any order, case and spelling of these.
    """
    plain = ["".join(c for c in name.lower() if c.isalpha()) for name in names]
    found = [next((label for label, said in MEANING.items() if name in said.split()), None) for name in plain]
    if None in found or len(set(found)) != len(found) or "supported" not in found or len(found) < 2:
        raise ValueError(
            f"annotator {where!r}: expected classes named entailment, neutral and contradiction, or entailment and "
            f"not_entailment, got {', '.join(names)[:200]}; say labels=[…], one of these names for each class in its "
            "order, or write the names into id2label of its config.json"
        )
    return [found.index(label) if label in found else None for label in LABELS[:3]]


# --- loading -------------------------------------------------------------------------------------------------------


def load_published(
    name: str, *, device: str | None = None, dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    labels: Sequence[str] | str | None = None,
) -> PairAnnotator:  # fmt: skip
    """The annotator of ``nli:ID``, ``lettucedetect:ID``, ``minicheck:ID`` or ``hhem:ID``, a hub id or a folder.

    ``device`` None takes cuda where there is one; ``dtype`` "auto" is bfloat16 on cuda, float32 elsewhere; ``labels``,
    for nli only, name the classes in order where the checkpoint does not. Weights come from safetensors, no code of a
    repository is run. OSError where there is no such checkpoint or its files can't be read; ValueError where it is no
    model of this kind, or an option is wrong.
    """
    import torch
    import transformers as tf
    from safetensors import SafetensorError

    kind, _, model_id = name.partition(":")
    if kind not in KINDS or not model_id.strip():
        raise ValueError(f"annotator {name!r}: expected {', '.join(f'{k}:ID' for k in KINDS)}, a hub id or a folder")
    if labels is not None and kind != "nli":
        raise ValueError(f"annotator {name!r}: labels: for nli:ID only; the classes of {kind} are known")
    device, numbers = placed(device, dtype)
    numbers = "float32" if dtype == "auto" and not device.startswith("cuda") else numbers
    try:
        base, located = model_id, locate(model_id)
        source = located  # of configuration and tokenizer
        more: dict[str, Any] = {"dtype": getattr(torch, numbers), "use_safetensors": True}
        if kind == "hhem":
            # The repository's own class fails in transformers 5; its weights are T5's with "t5." before their names.
            base = str(tf.PreTrainedConfig.get_config_dict(located)[0].get("foundation") or FOUNDATION)
            source = locate(base)
            config: Any = tf.AutoConfig.from_pretrained(source, num_labels=2, trust_remote_code=False)
            if config.model_type != "t5":
                raise ValueError(f"expected a T5 as foundation, got {base}, a {config.model_type}")
            auto: Any = tf.T5ForTokenClassification
            more["key_mapping"] = {r"^t5\.": ""}
        else:
            config = tf.AutoConfig.from_pretrained(located, trust_remote_code=False)
            if kind == "lettucedetect":
                auto = tf.AutoModelForTokenClassification
            elif kind == "minicheck" and config.is_encoder_decoder:
                auto = tf.AutoModelForSeq2SeqLM
            else:
                auto = tf.AutoModelForSequenceClassification
        tokenizer = load_tokenizer(source)
        model, loading = auto.from_pretrained(located, config=config, output_loading_info=True, **more)
    except (OSError, ValueError, SafetensorError) as error:
        raise OSError(
            f"annotator {name!r}: expected a folder or hub id with config.json, a fast tokenizer and safetensors "
            f"weights (code of a repository is not run): {' '.join(str(error).split())[:400]}"
        ) from error
    found = (config.architectures or ["none"])[0]
    lacking = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
    if lacking or (kind != "hhem" and found.rpartition("For")[2] != type(model).__name__.rpartition("For")[2]):
        but = f"these weights are missing: {', '.join(lacking[:3])}" if lacking else f"config.json says {found}"
        raise ValueError(f"annotator {name!r}: expected a trained {type(model).__name__}, as {kind} is, but {but}")
    setting = _setting(name, kind, model, tokenizer, labels)
    # Only now are the hub's files in its cache, which knows their commits.
    places = {at: checkpoint_identity(one, at) for one, at in [(model_id, located), (base, source)]}
    # A folder is its state, wherever it lies; a hub id itself and its commit.
    state = [[one["state"]] if Path(at).is_dir() else [one["model"], one["state"]] for at, one in places.items()]
    digest = hashlib.sha256(json.dumps([VERSION, kind, state, setting["order"]]).encode()).hexdigest()
    made = SpanAnnotator if kind == "lettucedetect" else PairAnnotator
    return made(name, digest[:16], model.eval().to(device), tokenizer, **setting)


def _setting(name: str, kind: str, model: Any, tokenizer: Any, labels: Sequence[str] | str | None) -> dict[str, Any]:
    """The arguments of :class:`PairAnnotator` for a loaded model: formats, limits, order of classes; ValueError."""
    config = model.config
    n_classes, seq2seq = config.num_labels, bool(config.is_encoder_decoder)
    order: list[int | None] = [1, None, 0]
    form: Form = _pair
    forward: Forward = _logits
    if kind == "nli":
        found = [str(config.id2label[n]) for n in range(n_classes)] if labels is None else labels
        names = [part.strip() for part in found.split(",")] if isinstance(found, str) else [str(one) for one in found]
        if len(names) != n_classes:
            raise ValueError(f"annotator {name!r}: labels: expected {n_classes}, one a class, got {len(names)}")
        order = class_order(names, name)
        limit = evidence = 512  # also where the model reads more: NLI is learnt from short premises (SummaC)
    elif kind == "hhem":
        form, forward, limit, evidence = _hhem, _first_token, 2048, 2048  # it reads any length, at a square cost
    elif kind == "lettucedetect":
        form, limit, evidence = _lettucedetect, 4096, 4096
    else:
        end = tokenizer.eos_token or tokenizer.sep_token
        form, limit, evidence = partial(_minicheck, "predict: " if seq2seq else "", end), 512, 400
        if seq2seq:
            limit, evidence = 2048, 650  # the package cuts documents after 500 words
            answers = tokenizer.convert_tokens_to_ids(list(MINICHECK_ANSWERS))
            if None in answers or tokenizer.unk_token_id in answers:
                raise ValueError(
                    f"annotator {name!r}: expected a tokenizer with the pieces {' and '.join(MINICHECK_ANSWERS)}, by "
                    f"which MiniCheck answers 0 and 1, got the ids {answers}; take a MiniCheck that was made of Flan-T5"
                )
            forward = partial(_first_step, answers)
    if kind in ("minicheck", "lettucedetect") and not seq2seq and n_classes != 2:
        raise ValueError(f"annotator {name!r}: expected a model of two classes, got {n_classes}; is it a {kind} model?")
    if config.model_type != "t5":  # whose positions are relative
        positions = getattr(config, "max_position_embeddings", None) or limit + 2
        limit = min(limit, tokenizer.model_max_length, positions - 2)  # RoBERTa has two that no token takes
    return {"form": form, "forward": forward, "limit": limit, "evidence": min(evidence, limit), "order": order}


# --- input formats and forward passes, as in the authors' code ------------------------------------------------------


def _pair(document: str, claim: str, question: str) -> tuple[str, ...]:
    return document, claim


def _minicheck(prefix: str, end: str, document: str, claim: str, question: str) -> tuple[str, ...]:
    return (f"{prefix}{document}{end}{claim}",)


def _hhem(document: str, claim: str, question: str) -> tuple[str, ...]:
    return (HHEM_PROMPT.format(text1=document, text2=claim),)


def _lettucedetect(document: str, answer: str, question: str) -> tuple[str, ...]:
    """RAGTruth's prompts, with and without a question, on which the models were trained; then the answer."""
    if not question:
        return f"Summarize the following text:\npassage 1: {document}\noutput:", answer
    prompt = (
        f"Briefly answer the following question:\n{question}\nBear in mind that your response should be strictly based "
        f"on the following 1 passages:\npassage 1: {document}\nIn case the passages do not contain the necessary "
        'information to answer the question, please reply with: "Unable to answer based on given passages."\noutput:'
    )
    return prompt, answer


def _logits(model: Any, batch: Mapping[str, Tensor]) -> Any:
    return model(**batch).logits


def _first_token(model: Any, batch: Mapping[str, Tensor]) -> Any:
    """HHEM is a token classifier that is read at its first token."""
    return _logits(model, batch)[:, 0]


def _first_step(answers: Sequence[int], model: Any, batch: Mapping[str, Tensor]) -> Any:
    """The logits of MiniCheck's two answers where its decoder begins."""
    start = batch["input_ids"].new_full((len(batch["input_ids"]), 1), model.config.decoder_start_token_id or 0)
    return _logits(model, {**batch, "decoder_input_ids": start})[:, 0, list(answers)]
