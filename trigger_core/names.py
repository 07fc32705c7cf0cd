"""Names of topics and consumers: each is a folder or a file on any store, so the alphabet is small."""

from __future__ import annotations

import re

from trigger_core.errors import InvalidName

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str, kind: str = "topic") -> str:
    """Returns `name` if it may name a topic or consumer, else raises `InvalidName`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"{kind} name {name!r} is not allowed",
            "use 1 to 128 of A-Z a-z 0-9 . _ - , starting with a letter or digit, without '..'",
            kind=kind,
            name=name,
        )
    return name
