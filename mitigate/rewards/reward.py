"""A reward for TRL that judges every sentence: `GRPOTrainer(reward_funcs=SentenceReward("embedded"), …)`.

It reads the reference (and the question) from the data set's columns, cuts each completion into sentences, judges all
sentences of all completions in one batch, and returns for each completion a float that carries its sentences
(`SentenceScore`), or None where nothing could be judged. No torch is loaded before the first call unless an annotator
is named by a string. Leaves out what labels are worth (`aspects.py`), the reading of completions (`inputs.py`) and
token credit (`mitigate/rl/grpo.py`).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Signature, signature
from itertools import islice
from statistics import fmean
from typing import Any

from annotators import load_annotator
from annotators.base import Annotator, Verdict, verdict_of
from annotators.records import LABELS, hallucination_rate
from annotators.text.language import declared_or_found
from mitigate.io import UsageError
from mitigate.recipes.config import check
from mitigate.rewards.aspects import (
    Judged,
    aspect_values,
    check_label_rewards,
    relevance_reward,
    sentence_reward,
    total,
    worth,
)
from mitigate.rewards.config import RewardFile, read_config
from mitigate.rewards.inputs import UNSCORED, Answer, Reader, cannot_tell, judged_sentences
from mitigate.rewards.segments import Segment, SentenceScore

CONFIG_VARIABLE = "MITIGATE_REWARD_CONFIG"


# --- verdicts, asked for once ----------------------------------------------------------------------------------------


def _shown(sentence: Judged) -> str:
    return sentence.label or ("?" if sentence.support is None else f"unsure:{sentence.support:.2f}")


class Verdicts:
    """Judges sentences in one batch, each distinct one once; keeps the last ``size`` verdicts, but no failed ones.

    They are kept by the annotator's fingerprint and every input that the annotator reads, so a changed reference or
    question, or another annotator, is judged anew.
    """

    def __init__(self, annotator: Annotator, size: int) -> None:
        self.annotator, self.size = annotator, size
        self._kept: OrderedDict[bytes, Verdict] = OrderedDict()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Verdict], int]:
        """The verdicts on rows, in order, by one call of the annotator, and how many were known before."""
        inputs = ([self.annotator.fingerprint, *map(row.get, self.annotator.reads)] for row in rows)
        keys = [hashlib.sha256(repr(own).encode()).digest() for own in inputs]
        found = {key: self._kept[key] for key in keys if key in self._kept}
        hits = sum(key in found for key in keys)
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in found}
        fields = [{f: row[f] for f in self.annotator.reads if row.get(f) is not None} for row in new.values()]
        judged = self.annotator.predict(fields) if new else []
        if len(judged) != len(new):
            raise ValueError(f"annotator {self.annotator.name!r}: expected {len(new)} judgements, got {len(judged)}")
        failed = {key for key, sentence in zip(new, judged, strict=True) if sentence.status == "failed"}
        found |= {key: verdict_of(sentence) for key, sentence in zip(new, judged, strict=True)}
        for key, verdict in found.items():
            if key not in failed:
                self._kept[key] = verdict
                self._kept.move_to_end(key)
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)
        return [found[key] for key in keys], hits


def own_device() -> str | None:
    """The GPU of this process in a launched run (LOCAL_RANK), or None: else every process's judge lands on cuda:0."""
    rank = os.environ.get("LOCAL_RANK", "")
    if not rank.isdecimal():
        return None
    import torch

    return f"cuda:{rank}" if int(rank) < torch.cuda.device_count() else None


# --- the reward ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scored:
    """One completion: its judged sentences, the values of its aspects, its score (None: it could not be judged)."""

    sentences: list[Judged]
    values: dict[str, float]
    score: SentenceScore | None
    abstained: bool = False


class SentenceReward:
    """A reward function: completions in, scores with sentences out.

    Args:
        annotator: Judges sentences; a string is loaded by ``load_annotator`` ("embedded", a hub id, "nli:ID",
            "ensemble:min:embedded+nli:ID", …).
        name: What trainers call it in their logs.
        options: The other keys of ``RewardFile``, as in its YAML: ``aspects={"factuality": 1.0}``, …. Those that say
            how to load an annotator are for one named by a string; without a ``device`` it runs on cuda where there is
            one, in each process of a launched run on its own.

    Raises:
        ValueError: An argument is not as described.
    """

    def __init__(self, annotator: Annotator | str = "embedded", *, name: str = "factuality", **options: Any) -> None:
        own = {"annotator": annotator} if isinstance(annotator, str) else {}
        try:
            self.config = config = check(RewardFile, options | own, "SentenceReward")
        except UsageError as error:
            raise ValueError(str(error)) from error
        if isinstance(annotator, str):
            device = config.device or own_device()
            annotator = load_annotator(annotator, device=device, dtype=config.dtype, **config.operating)
        elif config.operating:
            raise ValueError(
                f"calibration: expected an annotator named by a string, got {annotator.name!r}, already loaded; give "
                "the file, or the expected rate, to load_annotator"
            )
        self.annotator = annotator
        self.label_rewards, self.aspects = check_label_rewards(config.label_rewards), config.aspects
        self._read = Reader(config)
        self.__name__ = name
        self._verdicts = Verdicts(annotator, config.cache_size)

    def ended_by(self, eos_token_ids: Sequence[int]) -> None:
        """Take a trainer's tokens that end a completion, which hold where none were given."""
        self._read.ends = [*eos_token_ids]

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise ValueError where a data set or one of its rows can't be used: ``reward.check(dataset[:])``.

        During training such a row gets no score.
        """
        self._read.check(data)

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[SentenceScore | None]:
        """Score completions, as TRL calls it (all by keyword).

        Args:
            completions: Strings, or lists of messages.
            prompts: Likewise; the question where there is no such column.
            completion_ids: Token ids of each completion, unpadded, with EOS; tells which were cut off.
            log_metric: Takes (name, value) to log.
            log_extra: Takes (column, one value per completion) for the table of completions.
            columns: The data set's columns, one value per completion, and what else the trainer passes.

        Returns:
            One score per completion; None where no sentence could be judged, or the row lacks a reference or a
            question, or the answer is in another language; `unscored_…` counts these.

        Raises:
            ValueError: A column is missing or of another length.
            TypeError: A completion is neither text nor messages.
        """
        started = time.perf_counter()
        answers = self._read(completions, prompts, completion_ids, columns)
        scored, hit_share = self._score(answers)
        if log_metric is not None:
            metrics = self._metrics(scored, answers)
            metrics |= {"cache_hit_share": hit_share, "seconds": time.perf_counter() - started}
            for metric, value in metrics.items():
                if value is not None:
                    log_metric(f"{self.__name__}/{metric}", float(value))
        if log_extra is not None:
            log_extra(f"{self.__name__}/labels", [" ".join(map(_shown, one.sentences)) for one in scored])
            shown = [" ".join(f"{name}={value:.2f}" for name, value in one.values.items()) for one in scored]
            log_extra(f"{self.__name__}/aspects", shown)
        return [one.score for one in scored]

    def _score(self, answers: Sequence[Answer]) -> tuple[list[_Scored], float | None]:
        """Judge all whole sentences of all answers in one batch; also the share of verdicts known before."""
        counts = [0 if answer.unscored else len(answer.spans) - answer.last_is_part for answer in answers]
        rows = [
            {"sentence": sentence, "reference": answer.reference, "question": answer.question or None,
             "language": answer.language, "answer": answer.said}
            for answer, count in zip(answers, counts, strict=True)
            for sentence in answer.sentences[:count]
        ]  # fmt: skip
        verdicts, hits = self._verdicts(rows)
        rest, languages, scored = iter(verdicts), self.annotator.languages, list[_Scored]()
        for answer, count in zip(answers, counts, strict=True):
            own = list(islice(rest, count))
            if languages is not None and declared_or_found(answer.language, answer.said) not in (*languages, "none"):
                own = [None] * count  # the annotator may judge copies only there, and a copy would win
            if self.config.abstention is not None:  # what the document leaves out is no claim about what it says
                said = zip(own, answer.sentences, strict=False)
                own = ["no_fact" if label is not None and cannot_tell(answer, text) else label for label, text in said]
            scored.append(self._value(answer, *judged_sentences(answer, own, self.config.copy_share)))
        return scored, hits / len(rows) if rows else None

    def _value(self, answer: Answer, sentences: list[Judged], complete: float) -> _Scored:
        """The score, with one segmentation for each aspect: sentences, or the whole answer."""
        limits = {"target_sentences": self.config.target_sentences, "max_words": self.config.max_words}
        found = aspect_values(sentences, self.label_rewards, complete, **limits)
        drifted = answer.unscored == "other_language" and answer.language is not None
        if drifted:  # the row says which language it wants: the worst of every aspect, or drifting would be free
            lowest = worth(self.label_rewards)[0]
            found = dict.fromkeys(self.aspects, min(lowest, -1.0)) | {"factuality": lowest}
        elif found is None or answer.unscored or (answer.cut_off and not sentences):  # cut off before the answer began
            return _Scored(sentences, {}, None)
        values = {name: found[name] for name in self.aspects}
        by_sentence = {
            "factuality": [sentence_reward(s, self.label_rewards) for s in sentences],
            "relevance": [relevance_reward(s) for s in sentences],
        }
        # Not with anything unjudged beside it, or a claim could hide behind the limit of tokens or of words.
        abstained = self.config.abstention is not None and all(s.label == "no_fact" for s in sentences)
        silent = [abstained and cannot_tell(answer, sentence) for sentence in answer.sentences]
        if self.config.abstention is not None and any(silent):
            worth_it = self._abstaining(answer)
            values = dict.fromkeys(values, worth_it)
            by_sentence = {key: [worth_it if one else None for one in silent] for key in by_sentence}
        segments: dict[str, list[Segment]] = {}
        for name in self.aspects:
            # Where no sentence counts either way, the answer as a whole does: else small talk would cost no token.
            silence = name == "factuality" and all(reward is None for reward in by_sentence[name])
            if name in by_sentence and not silence and not drifted:
                rows = zip(answer.spans, sentences, by_sentence[name], strict=True)
                segments[name] = [Segment(a, b, s.label, reward) for (a, b), s, reward in rows]
            else:
                ends = [(answer.spans[0][0], answer.spans[-1][1])] if sentences else []
                segments[name] = [Segment(a, b, None, values[name]) for a, b in ends]
        weights = {name: weight / sum(self.aspects.values()) for name, weight in self.aspects.items()}
        return _Scored(sentences, values, SentenceScore(total(values, self.aspects), segments, weights), any(silent))

    def _abstaining(self, answer: Answer) -> float:
        """What an abstention would be worth as this answer."""
        paid = self.config.abstention
        assert paid is not None
        if not answer.answerable:
            return paid.unanswerable
        return worth(self.label_rewards)[0] if paid.answerable is None else paid.answerable

    def _metrics(self, scored: Sequence[_Scored], answers: Sequence[Answer]) -> dict[str, float | None]:
        """What is logged, by name; None is a mean over nothing."""

        def mean(values: Iterable[float]) -> float | None:
            return fmean(known) if (known := list(values)) else None

        sentences = [s for one in scored for s in one.sentences]
        judged = [s for s in sentences if s.label is not None or s.support is not None]
        valued = [one.values for one in scored if one.score is not None]
        abstained: dict[str, float | None] = {}
        if self.config.abstention is not None:
            abstained["abstained_share"] = mean(one.abstained for one in scored)
            pairs = zip(answers, scored, strict=True)
            answered = (one.score for one in scored if one.score is not None and not one.abstained)
            abstained["answering"] = mean(map(float, answered))
            abstained["abstaining_always"] = mean(self._abstaining(a) for a, one in pairs if one.score is not None)
        return {
            "sentences": mean(len(one.sentences) for one in scored),
            "judged_share": mean(s.label is not None or s.support is not None for s in sentences),
            "share_unsure": mean(s.support is not None for s in judged),
            "unscored_share": mean(one.score is None for one in scored),
            **{f"unscored_{why}": mean(why == one.unscored for one in answers) for why in UNSCORED},
            **abstained,
            "hallucination_rate": hallucination_rate(s.label for s in judged),
            **{f"share_{label}": mean(s.label == label for s in judged) for label in LABELS},
            "share_repeated": mean(s.repeat for s in judged),
            "value": mean(s.credit for s in judged if s.label == "supported" or s.support is not None),
            "share_copied": mean(s.copied for s in judged),
            "share_off_question": mean(not s.relevant for s in judged),
            **{f"aspect_{name}": mean(values[name] for values in valued) for name in self.aspects},
        }


# `help` and notebooks show the keys of a reward's YAML behind the constructor's own arguments.
_own = [p for p in signature(SentenceReward.__init__).parameters.values() if p.kind is not p.VAR_KEYWORD]
_keys = [p.replace(annotation=p.empty) for p in signature(RewardFile).parameters.values() if p.name != "annotator"]
SentenceReward.__init__.__signature__ = Signature([*_own, *_keys])  # type: ignore[attr-defined]


# --- the plug-in of TRL's command line ------------------------------------------------------------------------------


class LazyReward:
    """A `SentenceReward` that is built, with its annotator, when it is first needed; trainers log it by its name."""

    def __init__(self, name: str, config: RewardFile) -> None:
        self.__name__, self.config = name, config

    @cached_property
    def reward(self) -> SentenceReward:
        return SentenceReward(name=self.__name__, **dict(self.config))

    def ended_by(self, eos_token_ids: Sequence[int]) -> None:
        self.reward.ended_by(eos_token_ids)

    def __call__(self, completions: Sequence[Any], **arguments: Any) -> list[SentenceScore | None]:
        return self.reward(completions, **arguments)


def __getattr__(name: str) -> LazyReward:
    """`factuality`, for ``trl grpo --reward_funcs mitigate.factuality``, made at the first look-up.

    That is before TRL loads a model; UsageError where the YAML that MITIGATE_REWARD_CONFIG names is wrong.
    """
    if name != "factuality":
        raise AttributeError(f"module {__name__!r} has no plugin {name!r}; there is 'factuality'")
    path = os.environ.get(CONFIG_VARIABLE)
    plugin = LazyReward(name, read_config(path) if path else RewardFile())
    globals()[name] = plugin
    return plugin
