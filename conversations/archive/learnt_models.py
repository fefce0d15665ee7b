"""What model servers have told of their models by refusing a request."""

from django.db import transaction

from conversations.models import LearntModel


def list_learnt_models() -> dict[str, LearntModel]:
    """By the models' ids."""
    return {learnt.model: learnt for learnt in LearntModel.objects.all()}


@transaction.atomic
def learn_input_limit(model: str, *, tokens: int, listed: int) -> None:
    """A request was refused because it had more tokens; ``listed`` is what the server's list
    said."""
    LearntModel.objects.update_or_create(
        model=model, defaults={"input_tokens": tokens, "listed_tokens": listed}
    )


@transaction.atomic
def learn_refusal(model: str, *, capability: str) -> None:
    learnt, _ = LearntModel.objects.get_or_create(model=model)
    if capability not in learnt.refuses:
        learnt.refuses = sorted([*learnt.refuses, capability])
        learnt.save()


def forget_learnt(provider: str) -> int:
    """Forget what was learnt of a provider's models, to ask anew; how many there were."""
    deleted, _ = LearntModel.objects.filter(model__startswith=f"{provider}/").delete()
    return deleted
