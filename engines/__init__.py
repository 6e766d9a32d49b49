"""Ground floor: language-model engines, the embedding engine and the response cache."""

from engines.cache import CachedEngine, CacheError, ResponseCache
from engines.chat import EngineSpec, load_engine, parse_engine
from engines.types import NOT_ASKED, Chat, ChatResult, Engine, EngineError, Sample, Sampling, Token

__all__ = [
    "NOT_ASKED", "CacheError", "CachedEngine", "Chat", "ChatResult", "Engine", "EngineError", "EngineSpec",
    "ResponseCache", "Sample", "Sampling", "Token", "load_engine", "parse_engine",
]  # fmt: skip
