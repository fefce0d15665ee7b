"""Texts that model calls were given beside the turns, kept once by their digest."""

from collections.abc import Iterable, Mapping

from conversations.models import PromptText


def save_prompt_texts(texts: Mapping[str, str]) -> None:
    """Keep these texts, by digest; those that are there already stay."""
    rows = [PromptText(digest=digest, text=text) for digest, text in texts.items()]
    PromptText.objects.bulk_create(rows, ignore_conflicts=True)


def read_prompt_texts(digests: Iterable[str]) -> dict[str, str]:
    """The texts that are known of these, by digest."""
    rows = PromptText.objects.filter(digest__in=list(digests)).order_by("pk")
    return dict(rows.values_list("digest", "text"))
