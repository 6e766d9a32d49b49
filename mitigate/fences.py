"""Texts from outside in a prompt: between tags that they can't close."""

from __future__ import annotations

import re


def fenced(text: str, name: str = "data") -> str:
    """Text between tags of a name; such tags in the text get other brackets, all else stays as it is."""
    inner = re.sub(rf"<(\s*/?\s*{re.escape(name)}\s*)>", r"‹\1›", text, flags=re.IGNORECASE)
    return f"<{name}>\n{inner}\n</{name}>"
