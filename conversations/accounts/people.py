"""The people of the installation and their groups, as administrators manage them.

People cannot change their own permissions, and only a superuser can change a superuser. Every
change is recorded in the audit log.
"""

from collections.abc import Collection
from typing import Any

from axes.models import AccessAttempt
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.db.models import Model, Q, QuerySet, Sum

from conversations.archive.audit import AuditEvent, AuditOrigin, lock_log, record
from conversations.archive.rights import ROLE_GROUPS, is_administrator, role_group, roles_of_person
from conversations.archive.workspaces import (
    add_member,
    create_sign_in_link,
    find_user,
    get_workspace,
    workspaces_owned_alone,
)
from conversations.domain.audit import ROLE
from conversations.domain.errors import NotPermitted, Rejected, require_found
from conversations.domain.people import OWNER
from conversations.domain.text import one_line, storable
from conversations.models import Preferences, Workspace

from .devices import sign_out_devices
from .tokens import revoke_tokens

MAX_GROUP_NAME_CHARS = 150
BACKEND = "django.contrib.auth.backends.ModelBackend"


def list_people(
    *, query: str, closed: bool, after: str, limit: int
) -> tuple[list[tuple[User, list[str]]], str]:
    """Return people with their roles, ordered by username, and the cursor of the next page.

    The cursor is the username after which the next page begins, and empty on the last page.
    ``query`` is a part of a name or email address.
    """
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
    people_on_page = rows[:limit]
    roles = _roles_of(people_on_page)
    people_with_roles = [(person, roles[person.pk]) for person in people_on_page]
    return people_with_roles, people_on_page[-1].username if len(rows) > limit else ""


def _roles_of(people: Collection[User]) -> dict[int, list[str]]:
    roles: dict[int, list[str]] = {person.pk: [] for person in people}
    for name, permission in ROLE_GROUPS.items():
        having = User.objects.with_perm(permission, backend=BACKEND).filter(pk__in=roles)
        for pk in having.values_list("pk", flat=True):
            roles[pk].append(name)
    return roles


def read_person(pk: int) -> dict[str, Any]:
    """Return the context of the page of a person. Raise NotFound.

    ``groups`` leaves out the role groups, ``workspaces`` holds (name, slug, role), and
    ``owned_alone`` holds the workspaces without another owner whose account is open.
    """
    user = _find(pk)
    groups = list(user.groups.order_by("name").values_list("pk", "name"))
    # Roles that this page can remove: they come from a role group or a permission of the person.
    removable_roles = {name for _, name in groups if name in ROLE_GROUPS} | _own_roles(user)
    has = _roles_of([user])[pk]
    in_workspaces = roles_of_person(pk)
    workspaces = Workspace.objects.filter(pk__in=in_workspaces).order_by("name", "pk")
    return {
        "person": user,
        "roles": [
            {
                "name": name,
                "is_member": name in removable_roles,
                "has_anyway": name in has and name not in removable_roles,
            }
            for name in ROLE_GROUPS
        ],
        "wrong_attempts": wrong_attempts(user.get_username()),
        "groups": [(key, name) for key, name in groups if name not in ROLE_GROUPS],
        "workspaces": [(row.name, row.slug, in_workspaces[row.pk]) for row in workspaces],
        "owned_alone": list(workspaces_owned_alone(pk)),
    }


def _find(pk: int) -> User:
    return require_found(User.objects.filter(pk=pk).first(), "This person does not exist.")


def _changeable(pk: int, origin: AuditOrigin) -> User:
    # Return the person if the actor may change their permissions. Call this first in a
    # transaction. Its lock keeps all other changes waiting until the transaction ends, so two
    # superusers who demote each other at the same time cannot both succeed.
    lock_log()
    user = _find(pk)
    if origin.user is not None:
        if user == origin.user:
            raise NotPermitted("You cannot change your own permissions; ask another administrator.")
        actor = _find(origin.user.pk)  # read again, because the request may have waited
        if not is_administrator(actor):
            raise NotPermitted("Only an administrator can change permissions.")
        if user.is_superuser and not actor.is_superuser:
            raise NotPermitted("Only a superuser can change a superuser.")
    return user


def _by_superuser(origin: AuditOrigin) -> None:
    # Acts that would let somebody read everything or sign in as another person are reserved for
    # superusers, who may do so already, and for commands on the server.
    if origin.user is not None and not _find(origin.user.pk).is_superuser:
        raise NotPermitted("Only a superuser can do this.")


def _require_other_superuser(user: User) -> None:
    others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    if user.is_superuser and not others.exists():
        raise Rejected("The last superuser cannot be removed.", code="last_superuser")


def set_rank(pk: int, *, is_superuser: bool, is_staff: bool, origin: AuditOrigin) -> None:
    """Set whether the person is a superuser and whether they are staff.

    A superuser may do everything. Staff can look at the tables in the admin that belong to their
    role. The last superuser cannot be demoted. Raise NotFound, NotPermitted or Rejected.
    """
    with transaction.atomic():
        user = _changeable(pk, origin)
        _by_superuser(origin)
        if (user.is_superuser, user.is_staff) == (is_superuser, is_staff):
            return
        if not is_superuser:
            _require_other_superuser(user)
        User.objects.filter(pk=pk).update(is_superuser=is_superuser, is_staff=is_staff)
        names = {"superuser": is_superuser, "staff": is_staff}
        rank = ", ".join(name for name, has in names.items() if has)
        _record(origin, person=user.get_username(), rank=rank)


def reset_password(pk: int, *, origin: AuditOrigin) -> str:
    """Make the password unusable, sign the person out everywhere and revoke their tokens.

    Return the token of a sign-in link with which the person can sign in and choose a new
    password. Raise NotFound, NotPermitted, or Rejected if the account is closed.
    """
    with transaction.atomic():
        user = _changeable(pk, origin)
        _by_superuser(origin)
        if not user.is_active:
            raise Rejected("This account is closed.", code="account_closed")
        user.set_unusable_password()
        user.save(update_fields=["password"])
        _, revoked = _end_access(pk)
        _record(origin, person=user.get_username(), password="reset", **revoked)  # noqa: S106 (a word of the log)
        return create_sign_in_link(user)


def _end_access(pk: int) -> tuple[int, dict[str, str]]:
    """End all browser sessions of the person and revoke their tokens.

    Return the number of ended sessions, and the audit log's metadata about the tokens.
    """
    count, tokens = sign_out_devices(pk), revoke_tokens(pk)
    return count, {"tokens": str(tokens)} if tokens else {}


def wrong_attempts(username: str) -> int:
    """Return how many wrong passwords and codes count against this name, from all addresses."""
    counted = AccessAttempt.objects.filter(username=username)
    return counted.aggregate(sum=Sum("failures_since_start"))["sum"] or 0


def unlock_sign_in(pk: int, *, origin: AuditOrigin) -> None:
    """Delete the counts of wrong passwords and codes. Raise NotFound or NotPermitted."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        if AccessAttempt.objects.filter(username=user.get_username()).delete()[0]:
            _record(origin, person=user.get_username(), sign_in="unlocked")
    if settings.LOOM.two_factor != "off":
        from conversations.accounts.sso.two_factor import forget_wrong_codes

        forget_wrong_codes(pk)


def set_roles(pk: int, *, names: Collection[str], origin: AuditOrigin) -> None:
    """Put the person into exactly these role groups. Raise NotFound or NotPermitted."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        old_roles = set(user.groups.filter(name__in=ROLE_GROUPS).values_list("name", flat=True))
        direct_roles = _own_roles(user)
        roles = set(names) & set(ROLE_GROUPS)
        if roles == old_roles and not direct_roles - roles:
            return
        codenames = [ROLE_GROUPS[name].partition(".")[2] for name in direct_roles - roles]
        user.user_permissions.remove(*user.user_permissions.filter(codename__in=codenames))
        user.groups.remove(*(role_group(name) for name in old_roles - roles))
        user.groups.add(*(role_group(name) for name in roles - old_roles))
        _record(origin, person=user.get_username(), roles=", ".join(sorted(roles)))


def _own_roles(user: User) -> set[str]:
    codenames = set(user.user_permissions.values_list("codename", flat=True))
    return {
        name
        for name, permission in ROLE_GROUPS.items()
        if permission.partition(".")[2] in codenames
    }


def set_active(pk: int, *, is_active: bool, origin: AuditOrigin) -> None:
    """Open or close an account.

    Closing it prevents sign-in, signs the person out everywhere and revokes the tokens for good.
    Everything that the person wrote stays. Raise NotFound, NotPermitted or Rejected.
    """
    with transaction.atomic():
        user = _changeable(pk, origin)
        if not is_active:
            _require_other_superuser(user)
        if User.objects.filter(pk=pk, is_active=not is_active).update(is_active=is_active):
            if not is_active:
                _end_access(pk)
            account = "opened" if is_active else "closed"
            _record(origin, person=user.get_username(), account=account)


def make_owner(pk: int, *, slug: str, username: str, origin: AuditOrigin) -> None:
    """Make somebody else an owner of a workspace of a person whose account is closed.

    This is possible only if no owner can sign in, because then nobody could manage the workspace.
    Raise NotFound, NotPermitted or Rejected.
    """
    with transaction.atomic():
        lock_log()
        person = _find(pk)
        _by_superuser(origin)
        workspace = get_workspace(slug)
        if person.is_active or workspace not in workspaces_owned_alone(pk):
            raise Rejected(
                "%(name)s already has an owner who can sign in, or this person does not own it.",
                name=workspace.name,
                code="has_owner",
            )
        add_member(workspace, user_pk=find_user(username).pk, role=OWNER, origin=origin)


def sign_out_person(pk: int, *, origin: AuditOrigin) -> int:
    """End all browser sessions of the person and revoke their tokens. Return the session count."""
    with transaction.atomic():
        user = _changeable(pk, origin)
        count, revoked = _end_access(pk)
        _record(origin, person=user.get_username(), signed_out=str(count), **revoked)
    return count


def list_groups() -> QuerySet[Group]:
    """Return the groups by name, without groups that have permissions.

    A group with permissions stands for a role in the installation and is changed by assigning
    that role.
    """
    return Group.objects.filter(permissions=None).order_by("name")


def find_group(pk: int) -> Group:
    """Return the group. Raise NotFound."""
    return require_found(list_groups().filter(pk=pk).first(), "This group does not exist.")


def create_group(name: str, *, origin: AuditOrigin) -> Group:
    """Create a group. Raise Rejected if the name is empty or taken."""
    chosen = one_line(storable(name), limit=MAX_GROUP_NAME_CHARS)
    if not chosen:
        raise Rejected("Enter a name for the group.", code="name_empty")
    try:
        with transaction.atomic():
            group = Group.objects.create(name=chosen)
            _record(origin, group=chosen, change="made")
    except IntegrityError as error:
        raise Rejected(
            "A group named “%(name)s” already exists.", name=chosen, code="name_taken"
        ) from error
    return group


def remove_group(group: Group, *, origin: AuditOrigin) -> None:
    """Delete a group. Its people lose the access that they have through it."""
    with transaction.atomic():
        _record(origin, group=group.name, change="removed")
        group.delete()


def add_to_group(group: Group, *, user: User, origin: AuditOrigin) -> None:
    """Add a person to a group. Raise NotPermitted."""
    with transaction.atomic():
        groups = _changeable(user.pk, origin).groups
        if not groups.filter(pk=group.pk).exists():
            groups.add(group)
            _record(origin, group=group.name, person=user.get_username(), change="added")


def remove_from_group(group: Group, *, user_pk: int, origin: AuditOrigin) -> None:
    """Remove a person from a group. Administrators can remove themselves too. Raise NotFound."""
    with transaction.atomic():
        lock_log()
        user = _find(user_pk)
        if user.groups.filter(pk=group.pk).exists():
            user.groups.remove(group)
            _record(origin, group=group.name, person=user.get_username(), change="removed")


def _record(origin: AuditOrigin, **metadata: Any) -> None:
    record(origin, AuditEvent(action=ROLE, metadata=metadata))


def remove_second_factors(user: User, *, origin: AuditOrigin) -> int:
    """Remove the second factors of a person who has lost them.

    At the next sign-in the person needs only the first factor or, if two factors are required,
    sets up a new second one. Return the number of removed factors; recovery codes count as one.
    """
    # The table belongs to django-allauth and exists only if two-factor sign-in is switched on.
    model: type[Model] = apps.get_app_config("mfa").get_model("Authenticator")
    with transaction.atomic():
        removed, _ = model._default_manager.filter(user=user).delete()
        if removed:
            _record(origin, person=user.get_username(), second_factor="removed")
    return removed


def record_provided_account(user: User, *, change: str, origin: AuditOrigin) -> None:
    """Record that a person can, or cannot any more, sign in with the provider.

    Call this in the transaction that makes the change. ``change`` is ``account created``,
    ``connected`` or ``disconnected``.
    """
    _record(origin, person=user.get_username(), sign_in_provider=change)


def set_provided_groups(
    user: User, *, named: Collection[str], offered: Collection[str], origin: AuditOrigin
) -> None:
    """Put the person into the ``named`` groups and remove them from all other ``offered`` groups.

    A named group that does not exist yet is created. Groups that are not offered stay as they are.
    """
    with transaction.atomic():
        current = set(user.groups.filter(name__in=offered).values_list("name", flat=True))
        added, removed = sorted(set(named) - current), sorted(current - set(named))
        if added or removed:
            user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in added))
            user.groups.remove(*Group.objects.filter(name__in=removed))
            _record(origin, person=user.get_username(), joined=added, left=removed)


def follow_email(user: User, email: str, *, origin: AuditOrigin) -> None:
    """Give the person the address that the provider has verified, if no other account has it."""
    if email in ("", user.email):
        return
    if not User.objects.filter(email__iexact=email).exclude(pk=user.pk).exists():
        user.email = email
        with transaction.atomic():
            user.save(update_fields=["email"])
            _record(origin, person=user.get_username(), email="changed")


def read_preferences(user_pk: int | None) -> Preferences:
    """Return the preferences of the person, or the defaults if none are stored."""
    # Every page runs this query. Building it with the ORM would take five times as long.
    rows = Preferences.objects.raw(
        "SELECT * FROM conversations_preferences WHERE user_id = %s", [user_pk]
    )
    return next(iter(rows), None) or Preferences()
