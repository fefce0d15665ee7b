"""The people of the installation and their groups, for those who look after them.

Nobody changes what they may themselves; only a superuser changes another. Every change
is in the audit log.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

from axes.models import AccessAttempt
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.db.models import Count, Model, Q, QuerySet, Sum

from conversations.archive.audit import AuditEvent, AuditOrigin, lock_log, record
from conversations.archive.rights import ROLE_GROUPS, is_administrator, role_group, roles_of_person
from conversations.archive.workspaces import create_sign_in_link
from conversations.domain.audit import ROLE
from conversations.domain.errors import NotFound, NotPermitted, Rejected
from conversations.domain.text import one_line, storable
from conversations.models import Preferences, Workspace

from .devices import sign_out_devices
from .tokens import revoke_tokens

GROUP_NAME = 150
MAX_GROUP_MEMBERS = 500
BACKEND = "django.contrib.auth.backends.ModelBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonItem:
    """``roles`` are the names of role groups whose permission the person has, however
    they came by it; nobody has any with a closed account."""

    pk: int
    username: str
    name: str
    email: str
    is_active: bool
    is_superuser: bool
    is_staff: bool
    joined_at: datetime
    last_sign_in: datetime | None
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeoplePage:
    """``next_cursor`` is empty on the last page."""

    items: list[PersonItem]
    next_cursor: str


def list_people(
    *, query: str = "", closed: bool = False, after: str = "", limit: int
) -> PeoplePage:
    """By name to sign in with, paged by it; ``query`` is a part of a name or address.
    The number of statements does not depend on how many people there are."""
    people = User.objects.filter(is_active=not closed, username__gt=storable(after))
    words = storable(query).strip()
    if words:
        people = people.filter(
            Q(username__icontains=words)
            | Q(first_name__icontains=words)
            | Q(last_name__icontains=words)
            | Q(email__icontains=words)
        )
    rows = list(people.order_by("username")[: limit + 1])
    items = _items(rows[:limit])
    return PeoplePage(items=items, next_cursor=items[-1].username if len(rows) > limit else "")


def _items(people: Collection[User]) -> list[PersonItem]:
    holders = {name: _holders(permission, people) for name, permission in ROLE_GROUPS.items()}
    return [
        PersonItem(
            pk=person.pk,
            username=person.get_username(),
            name=person.get_full_name(),
            email=person.email,
            is_active=person.is_active,
            is_superuser=person.is_superuser,
            is_staff=person.is_staff,
            joined_at=person.date_joined,
            last_sign_in=person.last_login,
            roles=tuple(name for name, pks in holders.items() if person.pk in pks),
        )
        for person in people
    ]


def _holders(permission: str, people: Collection[User]) -> set[int]:
    having = User.objects.with_perm(permission, backend=BACKEND)
    return set(having.filter(pk__in=[one.pk for one in people]).values_list("pk", flat=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """``role_groups`` are the roles by a role group or a permission of their own, which can
    be taken away here; ``groups`` are those that are no roles; ``workspaces`` (name, slug,
    role)."""

    user: User
    item: PersonItem
    role_groups: frozenset[str]
    wrong_attempts: int
    groups: list[tuple[int, str]]
    workspaces: list[tuple[str, str, str]]


def read_person(pk: int) -> Person:
    """Raises NotFound."""
    user = _find(pk)
    groups = list(user.groups.order_by("name").values_list("pk", "name"))
    roles = roles_of_person(pk)
    places = Workspace.objects.filter(pk__in=roles).order_by("name", "pk")
    return Person(
        user=user,
        item=_items([user])[0],
        role_groups=frozenset(name for _, name in groups if name in ROLE_GROUPS) | _own_roles(user),
        wrong_attempts=wrong_attempts(user.get_username()),
        groups=[(key, name) for key, name in groups if name not in ROLE_GROUPS],
        workspaces=[
            (name, slug, roles[key]) for key, name, slug in places.values_list("pk", "name", "slug")
        ],
    )


def _find(pk: int) -> User:
    found = User.objects.filter(pk=pk).first()
    if found is None:
        raise NotFound("There is no such person.")
    return found


def _changeable(pk: int, origin: AuditOrigin) -> User:
    """The person, if whoever asks may change what they may. Call it first in a transaction:
    until that ends, nobody else changes anybody, so of two superusers who take each other's
    rights at once, one is left."""
    lock_log()
    user = _find(pk)
    if origin.user is not None:
        if user == origin.user:
            raise NotPermitted("You cannot change your own permissions; ask another administrator.")
        actor = _find(origin.user.pk)  # as of now: the request may have waited for the lock
        if not is_administrator(actor):
            raise NotPermitted("Only an administrator can change permissions.")
        if user.is_superuser and not actor.is_superuser:
            raise NotPermitted("Only a superuser can change a superuser.")
    return user


def _by_superuser(origin: AuditOrigin) -> None:
    """What lets somebody read everything, or sign in as another person, is for those who
    may do all that already, and for a command on the server."""
    if origin.user is not None and not _find(origin.user.pk).is_superuser:
        raise NotPermitted("Only a superuser can do this.")


def _keep_a_superuser(user: User) -> None:
    others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    if user.is_superuser and not others.exists():
        raise Rejected("The last superuser cannot be removed.", code="last_superuser")


def set_rank(pk: int, *, is_superuser: bool, is_staff: bool, origin: AuditOrigin) -> None:
    """Make the person a superuser, who may do everything, or staff, who look at
    the tables in the admin that their role is about; or neither. The last superuser stays
    one. Raises NotFound, NotPermitted, Rejected."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        _by_superuser(origin)
        if (user.is_superuser, user.is_staff) == (is_superuser, is_staff):
            return
        if not is_superuser:
            _keep_a_superuser(user)
        User.objects.filter(pk=pk).update(is_superuser=is_superuser, is_staff=is_staff)
        names = {"superuser": is_superuser, "staff": is_staff}
        rank = ", ".join(name for name, has in names.items() if has)
        _note(origin, person=user.get_username(), rank=rank)


def reset_password(pk: int, *, origin: AuditOrigin) -> str:
    """The password is of no use any more, and whoever is signed in by it is signed out.
    Returns the token of a sign-in link, by which the person comes in and chooses another
    one. Raises NotFound, NotPermitted."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        _by_superuser(origin)
        if not user.is_active:
            raise Rejected("The account is closed.", code="account_closed")
        user.set_unusable_password()
        user.save(update_fields=["password"])
        sign_out_devices(pk)
        _note(origin, person=user.get_username(), password="reset")  # noqa: S106 (a word of the log)
        return create_sign_in_link(user)


def wrong_attempts(username: str) -> int:
    """How many wrong passwords count against this name, from whichever address."""
    counted = AccessAttempt.objects.filter(username=username)
    return counted.aggregate(sum=Sum("failures_since_start"))["sum"] or 0


def unlock_sign_in(pk: int, *, origin: AuditOrigin) -> None:
    """Wrong passwords typed until now do not count any more. Raises NotFound, NotPermitted."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        if AccessAttempt.objects.filter(username=user.get_username()).delete()[0]:
            _note(origin, person=user.get_username(), sign_in="unlocked")


def set_roles(pk: int, *, names: Collection[str], origin: AuditOrigin) -> None:
    """Put the person into these of the role groups, and into no other one. Raises
    NotFound, NotPermitted."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        before = set(user.groups.filter(name__in=ROLE_GROUPS).values_list("name", flat=True))
        own = _own_roles(user)
        wanted = set(names) & set(ROLE_GROUPS)
        if wanted == before and not own - wanted:
            return
        codenames = [ROLE_GROUPS[name].partition(".")[2] for name in own - wanted]
        user.user_permissions.remove(*user.user_permissions.filter(codename__in=codenames))
        user.groups.remove(*(role_group(name) for name in before - wanted))
        user.groups.add(*(role_group(name) for name in wanted - before))
        _note(origin, person=user.get_username(), roles=", ".join(sorted(wanted)))


def _own_roles(user: User) -> set[str]:
    """Those that somebody has by a permission of their own, as Django's tools give it."""
    own = set(user.user_permissions.values_list("codename", flat=True))
    return {name for name, one in ROLE_GROUPS.items() if one.partition(".")[2] in own}


def close_account(pk: int, *, origin: AuditOrigin) -> None:
    """Nobody signs in with it any more, whoever is signed in is signed out, and its tokens
    are revoked for good. What the person wrote stays. Raises NotFound, NotPermitted."""
    _set_active(pk, to=False, origin=origin)


def open_account(pk: int, *, origin: AuditOrigin) -> None:
    """Undo that."""
    _set_active(pk, to=True, origin=origin)


def _set_active(pk: int, *, to: bool, origin: AuditOrigin) -> None:
    with transaction.atomic():
        user = _changeable(pk, origin)
        if not to:
            _keep_a_superuser(user)
        if User.objects.filter(pk=pk, is_active=not to).update(is_active=to):
            if not to:
                sign_out_devices(pk)
                revoke_tokens(pk)
            _note(origin, person=user.get_username(), account="opened" if to else "closed")


def sign_out_person(pk: int, *, origin: AuditOrigin) -> int:
    """End all sessions of the person's browsers, and revoke the tokens. Returns how many
    sessions there were."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        count, tokens = sign_out_devices(pk), revoke_tokens(pk)
        revoked = {"tokens": str(tokens)} if tokens else {}
        _note(origin, person=user.get_username(), signed_out=str(count), **revoked)
    return count


# --- groups ---


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    pk: int
    name: str
    people: int
    workspaces: int


def _groups() -> QuerySet[Group]:
    """Groups without permissions: the others stand for roles in the installation, and
    are changed by whoever gives those."""
    return Group.objects.filter(permissions=None)


def list_groups() -> list[GroupSummary]:
    rows = (
        _groups()
        .annotate(
            people=Count("user", distinct=True),
            places=Count("workspaces", distinct=True),
        )
        .order_by("name")
        .values_list("pk", "name", "people", "places")
    )
    return [
        GroupSummary(pk=pk, name=name, people=people, workspaces=places)
        for pk, name, people, places in rows
    ]


def find_group(pk: int) -> Group:
    """Raises NotFound."""
    found = _groups().filter(pk=pk).first()
    if found is None:
        raise NotFound("There is no such group.")
    return found


def people_in(group: Group) -> list[tuple[int, str, bool]]:
    """(Key, name, whether the account is open), the first ones by name."""
    people = group.user_set.order_by("username").values_list("pk", "username", "is_active")
    return list(people[:MAX_GROUP_MEMBERS])


def workspaces_with(group: Group) -> list[tuple[str, str]]:
    """(Name, role)."""
    places = group.workspaces.order_by("workspace__name")
    return list(places.values_list("workspace__name", "role"))


def create_group(name: str, *, origin: AuditOrigin) -> Group:
    """Raises Rejected for a name that is empty or taken."""
    chosen = one_line(storable(name), limit=GROUP_NAME)
    if not chosen:
        raise Rejected("A group needs a name.", code="name_empty")
    try:
        with transaction.atomic():
            group = Group.objects.create(name=chosen)
            _note(origin, group=chosen, change="made")
    except IntegrityError as error:
        raise Rejected(f"A group named “{chosen}” already exists.", code="name_taken") from error
    return group


def remove_group(group: Group, *, origin: AuditOrigin) -> None:
    """Its people lose what they have by it."""
    with transaction.atomic():
        _note(origin, group=group.name, change="removed")
        group.delete()


def add_to_group(group: Group, *, user: User, origin: AuditOrigin) -> None:
    """Raises NotPermitted."""
    with transaction.atomic():
        _changeable(user.pk, origin).groups.add(group)
        _note(origin, group=group.name, person=user.get_username(), change="added")


def remove_from_group(group: Group, *, user_pk: int, origin: AuditOrigin) -> None:
    """Anybody may be taken out, oneself too. Raises NotFound."""
    with transaction.atomic():
        user = _find(user_pk)
        user.groups.remove(group)
        _note(origin, group=group.name, person=user.get_username(), change="taken out")


def _note(origin: AuditOrigin, **metadata: str) -> None:
    record(origin, AuditEvent(action=ROLE, metadata=metadata))


# People's second factors, for those who lost them. The tables are django-allauth's, and there
# only where two factors are switched on.


def remove_second_factors(user: User, *, origin: AuditOrigin) -> int:
    """Next time the person signs in by the first factor alone, or sets up a new second
    one; how many are gone, recovery codes counted as one."""
    model: type[Model] = apps.get_app_config("mfa").get_model("Authenticator")
    with transaction.atomic():
        removed, _ = model._default_manager.filter(user=user).delete()
        if removed:
            metadata = {"person": user.get_username(), "second_factor": "removed"}
            record(origin, AuditEvent(action=ROLE, metadata=metadata))
    return removed


# What the provider that people sign in by decides here: accounts, and members of groups.


def note_provided_account(user: User, *, change: str, origin: AuditOrigin) -> None:
    """Enter that a person can, or cannot any more, sign in by the provider. Call it in the
    transaction that changes it. ``change`` is ``account made``, ``connected`` or
    ``disconnected``."""
    metadata = {"person": user.get_username(), "sign_in_provider": change}
    record(origin, AuditEvent(action=ROLE, metadata=metadata))


def set_provided_groups(
    user: User, *, named: Collection[str], offered: Collection[str], origin: AuditOrigin
) -> None:
    """Be in those of the ``offered`` groups that are ``named``, and in no others of them.
    A group that is named and not there yet is made. Every change is in the audit log."""
    with transaction.atomic():
        now = set(user.groups.filter(name__in=offered).values_list("name", flat=True))
        joined, left = sorted(set(named) - now), sorted(now - set(named))
        if not joined and not left:
            return
        user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in joined))
        user.groups.remove(*Group.objects.filter(name__in=left))
        metadata = {"person": user.get_username(), "joined": joined, "left": left}
        record(origin, AuditEvent(action=ROLE, metadata=metadata))


# How people want their pages.


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a person has chosen, or what holds while they have not. The values are those
    of ``domain.people``."""

    theme: str = "auto"
    keys: str = "all"
    enter: str = "send"
    language: str = ""
    clock: str = "h23"
    times: str = "relative"


DEFAULTS = Chosen()


def read_preferences(user_pk: int | None) -> Chosen:
    found = Preferences.objects.filter(user=user_pk).values(*asdict(DEFAULTS)).first()
    return Chosen(**found) if found else DEFAULTS


def write_preferences(user_pk: int, chosen: Chosen) -> None:
    Preferences.objects.update_or_create(user_id=user_pk, defaults=asdict(chosen))
