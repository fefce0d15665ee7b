"""What model servers have told of their models by what they refused and took."""

from collections.abc import Iterable

from django.db import transaction

from conversations.models import LearntModel


def list_learnt_models() -> dict[str, LearntModel]:
    """By the models' ids."""
    return {learnt.model: learnt for learnt in LearntModel.objects.all()}


@transaction.atomic
def learn_input_limit(model: str, *, tokens: int, listed: int) -> None:
    """A request was refused because it had more tokens, or the server has said so since it has
    loaded the model; ``listed`` is what its list said before."""
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
    """Forget what was learnt of these, to learn it anew."""
    LearntModel.objects.filter(model__in=list(models)).delete()
