"""Idempotency keys: a request that is sent twice has its effect once."""

import sys
from datetime import timedelta
from subprocess import PIPE, Popen
from threading import Barrier, Thread
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models.signals import post_save
from django.test import Client
from django.utils import timezone

from conversations.api import idempotency
from conversations.api.idempotency import LEASE, claim_request
from conversations.archive import session_records
from conversations.archive.audit import AuditOrigin, readings_of
from conversations.archive.purge import PurgeRequest, forget_answers, purge
from conversations.archive.workspaces import add_member
from conversations.models import ApiAnswer, Attachment, Membership, Session, Workspace
from tests.web.conftest import MakePerson, say

from .conftest import caller_of, token_of
from .test_sessions import OF_GARDEN, address_of


def begin(client: Client, key: str, **values: Any) -> Any:
    return client.post(
        OF_GARDEN, values, content_type="application/json", headers={"Idempotency-Key": key}
    )


@pytest.mark.django_db
class TestAgain:
    def test_a_repeated_request_gets_the_first_answer(
        self, workspace: Workspace, owner: Client
    ) -> None:
        first, again = (begin(owner, "k-1", title="Beans") for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()
        assert again["Location"] == first["Location"]
        assert (again["Idempotent-Replayed"], "Idempotent-Replayed" in first) == ("true", False)
        assert begin(owner, "k-2", title="Beans").json() != first.json()
        assert Session.objects.count() == 2

    def test_a_different_request_with_the_same_key_is_refused(
        self, workspace: Workspace, owner: Client
    ) -> None:
        begin(owner, "k-1", title="Beans")
        answer = begin(owner, "k-1", title="Peas")
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
        assert Session.objects.count() == 1

    def test_two_people_can_use_the_same_key(
        self, workspace: Workspace, owner: Client, other_user: User
    ) -> None:
        add_member(workspace, user_pk=other_user.pk, role="member")
        own, others = (begin(client, "k-1") for client in (owner, caller_of(other_user)))
        assert own.json()["uuid"] != others.json()["uuid"]

    def test_a_request_that_was_refused_can_be_sent_again(
        self, workspace: Workspace, owner: Client
    ) -> None:
        assert begin(owner, "k-1", model="unheard-of").status_code == 400
        assert begin(owner, "k-1", title="Beans").status_code == 201
        assert ApiAnswer.objects.count() == 1

    def test_an_invalid_key_is_refused(self, workspace: Workspace, owner: Client) -> None:
        for key in ("", "two words", "x" * 256, "Bohn\xe9"):
            problem = begin(owner, key).json()
            assert (problem["status"], problem["code"]) == (422, "idempotency_key_invalid"), key

    def test_a_form_with_other_files_or_fields_is_a_different_request(
        self, session: Session, owner: Client
    ) -> None:
        def attach(text: bytes, **fields: str) -> Any:
            return owner.post(
                address_of(session, "/attachments"),
                {"files": [SimpleUploadedFile("notes.txt", text)], **fields},
                headers={"Idempotency-Key": "k-1"},
            )

        first, again, other = attach(b"beans"), attach(b"beans"), attach(b"peas!")
        assert first.json() == again.json()
        assert other.json()["code"] == "idempotency_mismatch"
        # The other fields of the form are compared as well.
        assert attach(b"beans", format="claude").json()["code"] == "idempotency_mismatch"
        assert Attachment.objects.count() == 1

    def test_a_form_instead_of_json_is_refused_with_and_without_a_key(
        self, workspace: Workspace, owner: Client
    ) -> None:
        form = {"title": "Beans", "file": SimpleUploadedFile("notes.txt", b"beans")}
        answers = [
            owner.post(OF_GARDEN, form, headers=headers)
            for headers in ({}, {"Idempotency-Key": "k-1"})
        ]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert answers[0].json() == answers[1].json()
        assert not ApiAnswer.objects.exists()

    def test_unauthorised_requests_store_no_answer(self, workspace: Workspace, user: User) -> None:
        assert begin(Client(), "k-1").status_code == 401
        assert begin(caller_of(user, scopes=["read"]), "k-1").status_code == 403
        assert not ApiAnswer.objects.exists()


@pytest.mark.django_db
class TestKeeping:
    def test_a_repeated_request_is_refused_while_the_first_one_runs(
        self, workspace: Workspace, owner: Client, user: User
    ) -> None:
        begin(owner, "k-1")
        ApiAnswer.objects.update(status=None)
        busy = begin(owner, "k-1")
        assert (busy.status_code, busy.json()["code"]) == (409, "idempotency_busy")
        assert busy["Retry-After"] == "1"
        ApiAnswer.objects.update(created_at=timezone.now() - LEASE)  # the lease has expired
        assert begin(owner, "k-1").status_code == 201

    def test_a_running_request_is_not_repeated_after_its_lease(
        self, workspace: Workspace, owner: Client, user: User
    ) -> None:
        answers = []

        def send_again(**_: Any) -> None:
            post_save.disconnect(send_again, Session)
            ApiAnswer.objects.update(created_at=timezone.now() - LEASE - timedelta(seconds=1))
            answers.append(begin(caller_of(user), "k-1").status_code)

        post_save.connect(send_again, Session)
        answers.append(begin(owner, "k-1").status_code)
        assert answers == [409, 201]
        assert Session.objects.count() == 1
        assert begin(owner, "k-1")["Idempotent-Replayed"] == "true"

    def test_a_request_of_a_dead_local_process_is_repeated_at_once(
        self, workspace: Workspace, owner: Client, user: User
    ) -> None:
        begin(owner, "k-1")
        ApiAnswer.objects.update(status=None)
        lock = settings.LOOM.data_dir / "run" / f"answer-{ApiAnswer.objects.get().pk}.lock"
        code = (
            "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
            "print(flush=True); sys.stdin.read()"
        )
        with Popen([sys.executable, "-c", code, lock], stdin=PIPE, stdout=PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            assert begin(owner, "k-1").status_code == 409
            process.kill()
        assert begin(owner, "k-1").status_code == 201
        assert not lock.exists()

    def test_a_late_duplicate_leaves_no_lock_file(
        self, workspace: Workspace, owner: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin(owner, "k-1")
        lock = settings.LOOM.data_dir / "run" / f"answer-{ApiAnswer.objects.get().pk}.lock"
        monkeypatch.setattr(
            idempotency, "claim_request", lambda *_, **__: ApiAnswer(pk=ApiAnswer.objects.get().pk)
        )  # as if the claim had been read before the first request was complete
        assert begin(owner, "k-1").status_code == 409
        assert not lock.exists()

    def test_answers_are_forgotten_after_the_configured_hours(
        self, workspace: Workspace, owner: Client
    ) -> None:
        first = begin(owner, "k-1").json()
        old = timezone.now() - timedelta(hours=settings.LOOM.idempotency_hours, seconds=1)
        ApiAnswer.objects.update(created_at=old)
        assert begin(owner, "k-1").json() != first
        ApiAnswer.objects.update(created_at=old)
        begin(owner, "k-2")
        assert forget_answers(timezone.now()) == 1
        assert ApiAnswer.objects.get().key == "k-2"

    def test_a_stored_answer_contains_no_invitation_token(
        self, workspace: Workspace, owner: Client
    ) -> None:
        address, key = "/api/v1/workspaces/garden/invitations", {"Idempotency-Key": "k-1"}
        first, again = (
            owner.post(address, {}, content_type="application/json", headers=key) for _ in range(2)
        )
        assert first.json() == again.json()
        token = first.json()["link"].rstrip("/").rpartition("/")[2]
        assert token not in repr(ApiAnswer.objects.values().get())

    def test_an_answer_that_cannot_be_decrypted_is_not_given(
        self, workspace: Workspace, owner: Client
    ) -> None:
        first = begin(owner, "k-1", title="Beans")
        ApiAnswer.objects.update(body=first.text)
        again = begin(owner, "k-1", title="Beans")
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert Session.objects.count() == 1

    def test_the_answer_of_a_fork_belongs_to_the_new_session(
        self, session: Session, owner: Client
    ) -> None:
        say(session, "Plant the beans", "In May")
        address, key = address_of(session, "/turns/1/fork"), {"Idempotency-Key": "k-1"}
        first = owner.post(address, headers=key).json()
        assert ApiAnswer.objects.get().session == Session.objects.get(uuid=first["uuid"])

    def test_an_answer_is_deleted_when_its_session_is_purged(
        self, workspace: Workspace, owner: Client
    ) -> None:
        begin(owner, "k-1", title="Beans")
        purge(
            Session.objects.get(),
            order=PurgeRequest(reason="test"),
            origin=AuditOrigin(name="test"),
            now=timezone.now(),
        )
        assert not ApiAnswer.objects.exists()

    def test_a_crash_leaves_neither_session_nor_answer(
        self, workspace: Workspace, user: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(pk: int) -> None:
            raise SystemExit

        token = token_of(user)
        with monkeypatch.context() as patched:
            patched.setattr(session_records, "read_session_record", fail)
            with pytest.raises(SystemExit):
                begin(Client(headers={"Authorization": f"Bearer {token}"}), "k-1")
        assert not Session.objects.exists()
        assert not ApiAnswer.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_simultaneous_requests_with_one_key_create_one_session(
    workspace: Workspace, user: User
) -> None:
    token, answers, together = token_of(user), list[Any](), Barrier(6)

    def send() -> None:
        client = Client(headers={"Authorization": f"Bearer {token}"})
        together.wait()
        answers.append(begin(client, "k-1", title="Beans"))
        connection.close()

    threads = [Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Session.objects.count() == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    made = {answer.json()["uuid"] for answer in answers if answer.status_code == 201}
    assert made == {str(Session.objects.get().uuid)}
    assert claim_request(user, key="k-1", fingerprint=ApiAnswer.objects.get().fingerprint)


@pytest.mark.django_db
class TestWhoIsAnswered:
    """The first answer is repeated only to callers who may get it now."""

    def test_a_former_member_gets_no_stored_answer(
        self, workspace: Workspace, other_user: User
    ) -> None:
        add_member(workspace, user_pk=other_user.pk, role="member")
        program = caller_of(other_user)
        assert begin(program, "k-1", instructions="Keep the peas dry.").status_code == 201
        Membership.objects.filter(user=other_user).update(role="viewer")
        assert begin(program, "k-1", instructions="Keep the peas dry.").status_code == 403
        Membership.objects.filter(user=other_user).delete()
        answer = begin(program, "k-1", instructions="Keep the peas dry.")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    def test_a_token_without_the_scope_gets_no_stored_answer(
        self, workspace: Workspace, owner: Client, user: User
    ) -> None:
        assert begin(owner, "k-1").status_code == 201
        answer = begin(caller_of(user, scopes=["feed"]), "k-1")
        assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")

    def test_a_request_without_csrf_token_gets_no_stored_answer(
        self, workspace: Workspace, owner: Client, user: User
    ) -> None:
        assert begin(owner, "k-1").status_code == 201
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(user)
        answer = begin(browser, "k-1")
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")

    @pytest.mark.parametrize("what", ["notes", "flags"])
    def test_a_repeated_remark_of_a_reviewer_records_no_reading(
        self,
        what: str,
        session: Session,
        make_person: MakePerson,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        say(session, "Plant the beans", "In May")
        monkeypatch.setattr(settings.LOOM, "review_reason", "required")
        reviewer = caller_of(make_person("reviewer"))
        body = {"notes": {"text": "Look here", "turn": 2}, "flags": {"label": "other"}}[what]
        first, again = (
            reviewer.post(
                f"/api/v1/review/sessions/{session.uuid}/{what}",
                body,
                content_type="application/json",
                headers={"Idempotency-Key": "k-1"},
            )
            for _ in range(2)
        )
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()
        assert not readings_of(session.uuid)
