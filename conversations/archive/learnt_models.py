"""Facts about models that were learnt from the responses of model servers."""

from collections.abc import Iterable

from django.db import transaction

from conversations.models import LearntModel


def list_learnt_models() -> dict[str, LearntModel]:
    """Return all learnt facts by model id."""
    return {learnt.model: learnt for learnt in LearntModel.objects.all()}


@transaction.atomic
def learn_input_limit(model: str, *, tokens: int, listed: int) -> None:
    """Store the input limit of a model that its server has revealed.

    The server refused a request because of this limit, or reported the limit after loading the
    model. ``listed`` is the limit that the server's model list reported before.
    """
    LearntModel.objects.update_or_create(
        model=model, defaults={"input_tokens": tokens, "listed_tokens": listed}
    )


@transaction.atomic
def learn_capability(model: str, *, capability: str, takes: bool) -> None:
    learnt, _ = LearntModel.objects.get_or_create(model=model)
    if learnt.takes.get(capability) is not takes:
        learnt.takes = {**learnt.takes, capability: takes}
        learnt.save()


def forget_learnt(models: Iterable[str]) -> None:
    """Delete the facts about these models, so that they are learnt again."""
    LearntModel.objects.filter(model__in=list(models)).delete()
