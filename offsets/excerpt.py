"""What an error may quote of a value it refuses: short, and never failing itself."""

from __future__ import annotations

EXCERPT_CHARS_MAX = 80


def excerpt(value: object) -> str:
    """The value as Python writes it, cut to `EXCERPT_CHARS_MAX`; its type's name where Python can't write it."""
    if isinstance(value, str):
        value = value[:EXCERPT_CHARS_MAX]
    try:
        text = repr(value)
    except ValueError:  # an integer of over 4,300 digits has no repr
        text = f"<unprintable {type(value).__name__}>"
    return text if len(text) <= EXCERPT_CHARS_MAX else text[: EXCERPT_CHARS_MAX - 1] + "…"
