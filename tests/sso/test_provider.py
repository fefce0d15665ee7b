"""Sign-in by the provider: accounts, forged answers, connections, audit entries and groups."""

import logging
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session as BrowserSession
from django.test import Client
from django.urls import reverse

from conversations.archive.audit import AuditEvent, AuditOrigin, record
from conversations.archive.rights import REVIEWERS, is_reviewer
from conversations.domain.text import is_storable
from conversations.models import AuditEntry, AuditHead

from .conftest import (
    PASSWORD,
    come_back,
    confirm,
    go_there,
    is_signed_in,
    sign_in,
    sign_in_there,
    signed_in_name,
)
from .provider import SECRET, Provider, public_jwk

pytestmark = pytest.mark.django_db


def test_new_person_gets_an_account_under_their_name(client: Client, provider: Provider) -> None:
    response = sign_in_there(client)
    assert (response.status_code, response["Location"]) == (302, reverse("home"))
    person = User.objects.get()
    assert (person.username, person.get_full_name()) == ("rosa", "Rosa Field")
    assert person.email == "rosa@example.org"
    assert not person.has_usable_password()
    assert not person.is_staff
    assert is_signed_in(client)


def test_person_gets_the_same_account_at_the_next_sign_in(
    client: Client, provider: Provider
) -> None:
    sign_in_there(Client())
    provider.person |= {"preferred_username": "rosa-field", "email": "other@example.org"}
    sign_in_there(client)
    assert signed_in_name(client) == "rosa"
    assert User.objects.count() == 1


def test_address_follows_the_one_that_the_provider_has_verified(
    client: Client, provider: Provider, user: User
) -> None:
    User.objects.filter(pk=user.pk).update(email="ann@example.org")
    for claims, address in (
        ({}, "rosa@example.org"),
        ({"email": "field@example.org"}, "field@example.org"),
        ({"email": "new@example.org", "email_verified": False}, "field@example.org"),
        ({"email": "Ann@example.org"}, "field@example.org"),
        ({"email": "no address"}, "field@example.org"),
        ({"email": None}, "field@example.org"),
    ):
        provider.reset()
        provider.person |= claims
        sign_in_there(Client())
        assert User.objects.get(username="rosa").email == address, claims
    assert entries()[1:] == [("rosa", '{"person":"rosa","email":"changed"}')]


def test_another_subject_gets_another_account(client: Client, provider: Provider) -> None:
    """Only the subject identifies a person, because names and addresses can be reassigned."""
    sign_in_there(Client())
    provider.person |= {"sub": "person-2", "email": "rosa2@example.org"}
    sign_in_there(client)
    assert signed_in_name(client) not in ("rosa", "")
    assert User.objects.count() == 2


def test_a_subject_may_be_as_long_as_the_standard_allows(
    client: Client, provider: Provider
) -> None:
    for last in ("a", "b", "a"):
        provider.person |= {"sub": "x" * 254 + last, "email": f"{last}@example.org"}
        sign_in_there(Client())
    assert User.objects.count() == 2


def test_taken_username_does_not_open_the_existing_account(
    client: Client, provider: Provider, user: User
) -> None:
    provider.person["preferred_username"] = "ann"
    sign_in_there(client)
    assert signed_in_name(client) not in ("ann", "")


def test_same_subject_at_another_issuer_gets_another_account(
    client: Client, provider: Provider
) -> None:
    sign_in_there(Client())
    SocialAccount.objects.update(provider="https://elsewhere.example")
    User.objects.update(email="")
    sign_in_there(client)
    assert User.objects.count() == 2


def test_sign_in_by_the_provider_redirects_to_next(client: Client, provider: Provider) -> None:
    assert sign_in_there(client, next="/help/")["Location"] == "/help/"


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "/sign-in/"])
def test_next_never_redirects_to_another_site(
    client: Client, provider: Provider, wanted: str
) -> None:
    assert sign_in_there(client, next=wanted)["Location"] in (reverse("home"), "/sign-in/")


def test_new_person_is_refused_unless_the_setting_allows_it(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "oidc_create_people", False)
    response = sign_in_there(client)
    assert response.status_code == 403
    assert "ask an administrator for an account" in response.text
    assert not User.objects.exists()


def test_matching_email_address_alone_does_not_open_an_account(
    client: Client, provider: Provider, user: User
) -> None:
    User.objects.update(email="Rosa@example.org")
    response = sign_in_there(client)
    assert response.status_code == 403
    assert "Another account here already uses this email address" in response.text
    assert User.objects.count() == 1


def test_verified_email_address_opens_an_account_if_allowed(
    client: Client, provider: Provider, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "oidc_link_by_email", True)
    User.objects.update(email="Rosa@example.org")
    sign_in_there(client)
    assert signed_in_name(client) == "ann"


def test_reassigned_email_address_does_not_open_the_old_account(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner has another address by now, and a colleague was given this one."""
    monkeypatch.setattr(settings.LOOM, "oidc_link_by_email", True)
    sign_in_there(Client())
    provider.person["sub"] = "person-2"
    response = sign_in_there(client)
    assert response.status_code == 403
    assert "Another account here already uses this email address" in response.text
    assert not signed_in_name(client)
    assert SocialAccount.objects.count() == 1
    SocialAccount.objects.update(provider="https://elsewhere.example")
    sign_in_there(client)
    assert signed_in_name(client) == "rosa"


def test_unverified_email_address_never_opens_an_account(
    client: Client, provider: Provider, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "oidc_link_by_email", True)
    User.objects.update(email="rosa@example.org")
    provider.person["email_verified"] = False
    sign_in_there(client)
    assert signed_in_name(client) == "rosa"
    assert User.objects.get(username="rosa").email == ""


def test_a_closed_account_stays_closed(client: Client, provider: Provider) -> None:
    sign_in_there(Client())
    User.objects.update(is_active=False)
    response = sign_in_there(client)
    assert response.status_code == 403
    assert "This account is closed" in response.text
    assert not is_signed_in(client)


def test_claims_that_cannot_be_stored_cause_no_error(client: Client, provider: Provider) -> None:
    provider.person |= {
        "preferred_username": "a\x00b",
        "given_name": "R\x00" + "o" * 500,
        "family_name": ["no", "text"],
        "email": {"no": "text"},
        "groups": [1, None, {"a": 1}],
        "amr": ["\x00", "\ud800"],
    }
    assert sign_in_there(client).status_code == 302
    assert is_signed_in(client)
    kept = SocialAccount.objects.get()
    assert is_storable(f"{kept.uid}{kept.extra_data['name']}{''.join(kept.extra_data['amr'])}")


def test_redirect_uri_is_https_behind_a_tls_proxy(provider: Provider, settings: Any) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    there = Client().get(
        reverse("oidc_sign_in"), headers={"X-Forwarded-Proto": "https", "Host": "testserver"}
    )
    assert (
        "redirect_uri=https%3A%2F%2Ftestserver%2Fsign-in%2Foidc%2Fcallback%2F" in there["Location"]
    )


def spoiled(**claims: Any) -> Callable[[Provider], None]:
    def spoil(provider: Provider) -> None:
        provider.spoil = lambda given: {
            key: value for key, value in (given | claims).items() if value is not None
        }

    return spoil


def signed_by_a_stranger(provider: Provider) -> None:
    provider.sign = lambda claims: jwt.encode(
        claims, provider.stranger, "RS256", headers={"kid": "one"}
    )


def signed_by_an_unknown_key(provider: Provider) -> None:
    provider.sign = lambda claims: jwt.encode(
        claims, provider.stranger, "RS256", headers={"kid": "two"}
    )


def signed_by_nobody(provider: Provider) -> None:
    provider.sign = lambda claims: jwt.encode(claims, None, "none", headers={"kid": "one"})


def signed_with_the_public_key(provider: Provider) -> None:
    """Sign with the public key as if it were a shared secret (algorithm confusion)."""
    public = public_jwk(provider.key, "one")["n"]
    provider.sign = lambda claims: jwt.encode(claims, public, "HS256", headers={"kid": "one"})


def no_token(provider: Provider) -> None:
    provider.sign = lambda _: ""


def userinfo_of_somebody_else(provider: Provider) -> None:
    provider.answers["/userinfo"] = (200, {"sub": "person-2", "email": "x@example.org"})


FORGED = {
    "another nonce": spoiled(nonce="x"),
    "no nonce": spoiled(nonce=None),
    "for another client": spoiled(aud="another"),
    "for several, made for another": spoiled(aud=["loom", "another"], azp="another"),
    "for several, made for nobody": spoiled(aud=["loom", "another"]),
    "of another issuer": spoiled(iss="https://evil.example"),
    "too old": spoiled(exp=int(time.time()) - 3600),
    "without an end": spoiled(exp=None),
    "about nobody": spoiled(sub=None),
    "about an empty name": spoiled(sub=""),
    "about a number": spoiled(sub=1),
    "about too long a name": spoiled(sub="x" * 256),
    "signed by a stranger": signed_by_a_stranger,
    "signed by an unknown key": signed_by_an_unknown_key,
    "signed by nobody": signed_by_nobody,
    "signed with the public key": signed_with_the_public_key,
    "no token": no_token,
    "userinfo of somebody else": userinfo_of_somebody_else,
}


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_answer_signs_nobody_in(
    client: Client,
    provider: Provider,
    forge: Callable[[Provider], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    forge(provider)
    response = sign_in_there(client)
    assert response.status_code == 403
    assert "could not be verified" in response.text
    assert not is_signed_in(client)
    assert not User.objects.exists()
    [record] = [one for one in caplog.records if one.message == "sign_in_refused"]
    assert record.fields["reason"] == "not_verified"


def test_the_state_belongs_to_one_browser(client: Client, provider: Provider) -> None:
    """Otherwise a link could sign a person in as somebody else."""
    back = go_there(client, reverse("oidc_sign_in"))
    response = come_back(Client(), back)
    assert response.status_code == 400
    assert "Start again" in response.text


def test_the_state_can_be_used_only_once(client: Client, provider: Provider) -> None:
    back = go_there(client, reverse("oidc_sign_in"))
    come_back(client, back)
    client.logout()
    assert come_back(client, back).status_code == 400


@pytest.mark.parametrize("query", ["", "?state=x&code=y", "?code=y", "?state=%00&code=%00"])
def test_callback_without_a_known_state_is_refused(
    client: Client, provider: Provider, query: str
) -> None:
    assert client.get(reverse("oidc_callback") + query).status_code == 400


def test_a_code_of_another_sign_in_is_refused(client: Client, provider: Provider) -> None:
    """The verifier (PKCE) stays in the browser session that began the sign-in."""
    stolen = go_there(Client(), reverse("oidc_sign_in"))
    own = go_there(client, reverse("oidc_sign_in"))
    code = stolen.partition("code=")[2].partition("&")[0]
    own_code = own.partition("code=")[2].partition("&")[0]
    response = come_back(client, own.replace(own_code, code))
    assert response.status_code == 403
    assert not is_signed_in(client)


def test_sign_in_cancelled_at_the_provider_shows_a_message(
    client: Client, provider: Provider
) -> None:
    back = go_there(client, reverse("oidc_sign_in"))
    state = back.partition("state=")[2]
    response = client.get(reverse("oidc_callback"), {"state": state, "error": "access_denied"})
    assert response.status_code == 400
    assert "was cancelled" in response.text


UNFIT = {
    "broken": {"/.well-known/openid-configuration": (500, {})},
    "no object": {"/.well-known/openid-configuration": (200, ["x"])},
    "another issuer": {"/.well-known/openid-configuration": (200, {"issuer": "https://a.example"})},
    "sends away": {"/.well-known/openid-configuration": (302, "https://a.example")},
}


@pytest.mark.parametrize("answers", UNFIT.values(), ids=UNFIT)
def test_provider_that_does_not_answer_correctly_is_named(
    client: Client, provider: Provider, answers: Any
) -> None:
    provider.answers = answers
    response = client.get(reverse("oidc_sign_in"))
    assert response.status_code == 502
    assert "Example is not responding correctly" in response.text


@pytest.mark.parametrize("answer", [(500, {}), (200, ["x"]), (200, {}), (302, "http://x.example")])
@pytest.mark.parametrize("path", ["/token", "/keys", "/userinfo"])
def test_invalid_answer_signs_nobody_in(
    client: Client, provider: Provider, path: str, answer: Any
) -> None:
    provider.answers[path] = answer
    assert sign_in_there(client).status_code in (403, 502)
    assert not is_signed_in(client)


def test_the_password_still_signs_in(client: Client, provider: Provider, user: User) -> None:
    page = client.get(reverse("sign_in"), {"next": "/help/"}).text
    assert "Sign in with Example" in " ".join(page.split())
    assert f'href="{reverse("oidc_sign_in")}?next=%2Fhelp%2F"' in page
    assert sign_in(client).status_code == 302
    assert is_signed_in(client)


def connect(client: Client) -> Any:
    page = client.get(reverse("sign_in_ways"))
    address = reverse("oidc_connect", args=[page.context["provider"]["connect"]])
    return come_back(client, go_there(client, address))


def test_person_connects_their_account_at_the_provider(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in(client)
    confirm(client)
    assert connect(client)["Location"] == reverse("sign_in_ways")
    assert "Connected to rosa." in client.get(reverse("sign_in_ways")).text
    other = Client()
    sign_in_there(other)
    assert signed_in_name(other) == "ann"


def test_connecting_asks_for_the_password_first(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in(client)
    page = client.get(reverse("sign_in_ways"))
    address = reverse("oidc_connect", args=[page.context["provider"]["connect"]])
    asked = client.get(address)
    assert asked["Location"].startswith(reverse("account_reauthenticate"))
    assert confirm(client, address)["Location"] == address


def test_connect_link_of_another_person_is_refused(
    client: Client, provider: Provider, user: User, other_user: User
) -> None:
    sign_in(client)
    confirm(client)
    theirs = Client()
    sign_in(theirs, "bob", "battery staple")
    token = theirs.get(reverse("sign_in_ways")).context["provider"]["connect"]
    for bad in (token, "x"):
        assert client.get(reverse("oidc_connect", args=[bad])).status_code == 400


def test_account_at_the_provider_belongs_to_one_person_only(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in_there(Client())
    sign_in(client)
    confirm(client)
    response = client.get(connect(client)["Location"])
    assert "connected to another person" in response.text
    assert not SocialAccount.objects.filter(user=user).exists()


def test_person_disconnects_the_account_at_the_provider(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in(client)
    confirm(client)
    connect(client)
    client.post(reverse("oidc_disconnect"))
    assert not SocialAccount.objects.exists()


def entries() -> list[tuple[str, str]]:
    found = AuditEntry.objects.filter(action="role").order_by("number")
    return [(one.actor_name, one.metadata) for one in found]


def test_creation_of_an_account_by_the_provider_is_recorded(
    client: Client, provider: Provider
) -> None:
    sign_in_there(Client())
    sign_in_there(client)
    assert entries() == [("rosa", '{"person":"rosa","sign_in_provider":"account created"}')]
    assert AuditEntry.objects.get(action="role").place == reverse("oidc_callback")


def test_connecting_and_disconnecting_are_recorded(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in(client)
    confirm(client)
    connect(client)
    connect(client)  # it is connected already
    client.post(reverse("oidc_disconnect"))
    assert entries() == [
        ("ann", f'{{"person":"ann","sign_in_provider":"{change}"}}')
        for change in ("connected", "disconnected")
    ]


def test_connection_by_email_address_is_recorded(
    client: Client, provider: Provider, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "oidc_link_by_email", True)
    User.objects.filter(pk=user.pk).update(email=provider.person["email"])
    sign_in_there(client)
    assert entries() == [("ann", '{"person":"ann","sign_in_provider":"connected"}')]


@pytest.mark.parametrize("does_connect", [False, True])
def test_sign_in_fails_if_its_audit_entry_cannot_be_written(
    client: Client, provider: Provider, user: User, *, does_connect: bool
) -> None:
    """The account, the connection and the entry are one transaction."""
    sign_in(client)
    confirm(client)
    record(AuditOrigin(user=user), AuditEvent(action="role"))
    AuditHead.objects.update(number=0)  # the next number is taken, so the entry fails
    browser = client if does_connect else Client()
    browser.raise_request_exception = False
    answer = connect(browser) if does_connect else sign_in_there(browser)
    assert answer.status_code == 500
    assert not SocialAccount.objects.exists()
    assert list(User.objects.all()) == [user]


def test_only_way_to_sign_in_cannot_be_disconnected(client: Client, provider: Provider) -> None:
    sign_in_there(client)
    response = client.post(reverse("oidc_disconnect"), follow=True)
    assert "Set a password first" in response.text
    assert SocialAccount.objects.exists()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"chat-review": "Reading", "chat-admin": "Running"}
    monkeypatch.setattr(settings.LOOM, "oidc_groups", table)


@pytest.mark.usefixtures("groups")
def test_groups_follow_the_claim_at_each_sign_in(client: Client, provider: Provider) -> None:
    Group.objects.create(name="Ours")
    provider.person["groups"] = ["chat-review", "chat-admin", "Ours", "unknown"]
    sign_in_there(Client())
    person = User.objects.get()
    assert set(person.groups.values_list("name", flat=True)) == {"Reading", "Running"}
    person.groups.add(Group.objects.get(name="Ours"))
    provider.person["groups"] = "chat-review"
    sign_in_there(Client())
    assert set(person.groups.values_list("name", flat=True)) == {"Reading", "Ours"}
    assert entries() == [
        ("rosa", '{"person":"rosa","sign_in_provider":"account created"}'),
        ("rosa", '{"person":"rosa","joined":["Reading","Running"],"left":[]}'),
        ("rosa", '{"person":"rosa","joined":[],"left":["Running"]}'),
    ]


def test_group_claim_grants_and_revokes_the_reviewer_role(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "oidc_groups", {"chat-review": REVIEWERS})
    provider.person["groups"] = ["chat-review"]
    sign_in_there(Client())
    assert is_reviewer(User.objects.get())
    provider.person["groups"] = []
    sign_in_there(client)
    assert not is_reviewer(User.objects.get())


def test_groups_of_the_claim_are_ignored_without_a_table(
    client: Client, provider: Provider
) -> None:
    provider.person["groups"] = ["Reviewers"]
    sign_in_there(client)
    assert not User.objects.get().groups.exists()


def test_tokens_and_secrets_are_neither_stored_nor_shown(
    client: Client, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pages = [client.get(reverse("sign_in")).text]
    back = go_there(client, reverse("oidc_sign_in"))
    sessions = [one.get_decoded() for one in BrowserSession.objects.all()]
    pages.append(come_back(client, back).text)
    pages += [client.get(reverse(name)).text for name in ("sign_in_ways", "home")]
    access = [query["authorization"] for path, query in provider.requests if path == "/userinfo"]
    kept = repr([*sessions, *(one.get_decoded() for one in BrowserSession.objects.all())])
    kept += repr(list(SocialAccount.objects.values()))
    for text in (*pages, caplog.text, kept):
        assert SECRET not in text
        assert access[0] not in text
    assert not SocialToken.objects.exists()


def test_only_name_groups_and_amr_of_the_claims_are_stored(
    client: Client, provider: Provider
) -> None:
    provider.person |= {"phone_number": "123", "address": {"street": "x"}}
    sign_in_there(client)
    assert SocialAccount.objects.get().extra_data == {"name": "rosa", "groups": [], "amr": []}


def test_locked_out_person_can_sign_in_by_the_provider(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in(client)
    confirm(client)
    connect(client)
    for _ in range(settings.LOOM.sign_in_attempts):
        sign_in(Client(), password="x")
    assert sign_in(Client(), password=PASSWORD).status_code == 429
    other = Client()
    sign_in_there(other)
    assert signed_in_name(other) == "ann"
