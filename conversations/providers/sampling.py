"""Which models take ``temperature``, ``top_p`` and ``top_k``."""

import re

_TAKING = re.compile(
    r"claude-(?:instant|2|3)|claude-(?:opus|sonnet|haiku)-4(?:-[0-6])?(?:-\d{8}|-latest)?$"
)


def takes_sampling(model: str) -> bool:
    """Claude models do up to the generation 4.6; later ones refuse a request that has any
    (platform.claude.com, "What's new in Claude Opus 4.7"). What is no Claude model is
    asked."""
    return not model.startswith("claude-") or _TAKING.match(model) is not None
