"""What an error of the ``openai`` client means for a batch, and what the user can do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer.

    Attributes:
        reason: What happened and what to do.
        fatal: Every other request would meet it too.
        retried: The client tried several times (an overloaded or broken server, not a bad request).
        rejected: The server understood and refused this very request (400, 422).
    """

    reason: str
    fatal: bool = False
    retried: bool = False
    rejected: bool = False


def explain(error: Exception, model: str, base_url: str) -> Failure:
    """Turn a client error into a failure.

    Args:
        error: What ``AsyncOpenAI`` raised after its own retries.
        model: Name of the model asked.
        base_url: Address of the server.
    """
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Failure(
            f"{base_url} did not answer in time; raise timeout, or lower concurrency or max_tokens",
            retried=True,
        )
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__
        if type(cause).__name__ == "ConnectError":  # httpx2 (openai 3) or httpx (openai 2)
            return Failure(
                f"cannot connect to {base_url} ({cause}): is the server running, are host and port right?",
                fatal=True,
            )
        return Failure(f"{base_url} broke the connection off ({cause!r}); see the server's log", retried=True)
    if isinstance(error, openai.APIStatusError):
        return _explain_status(error.status_code, error.code, _said(error), model, base_url)
    return Failure(f"{base_url} sent a reply that cannot be read ({type(error).__name__}: {error})")


def _explain_status(status: int, code: str | None, said: str, model: str, base_url: str) -> Failure:
    heard = f"{base_url} answered {status} ({said})"
    if status == 401:
        return Failure(f"{heard}: the key was refused; set OPENAI_API_KEY to a valid key", fatal=True)
    if status == 402 or code == "insufficient_quota":
        return Failure(f"{heard}: the account has no credit left", fatal=True)
    if status == 404:
        return Failure(
            f"{heard}: is {model!r} a model of this server (see {base_url}/models), and does the base URL "
            "have its path, usually /v1?",
            fatal=True,
        )
    if status == 429:
        return Failure(f"{heard}: rate limit; lower concurrency or raise max_retries", retried=True)
    if status >= 500 or status in (408, 409):
        return Failure(f"{heard}: the server failed; see its log, then run again", retried=True)
    return Failure(f"{heard}: the request was rejected", rejected=status in (400, 422))


def _said(error: Exception) -> str:
    """The server's own words, on one line, at most 300 characters."""
    body = getattr(error, "body", None)
    known = body if isinstance(body, dict) else {}
    message = known.get("message") or known.get("detail")  # OpenAI's form, FastAPI's form
    return re.sub(r"\s+", " ", str(message or error)).strip()[:300]
