"""The pages' and the socket's addresses."""

from django.conf import settings
from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, include, path, re_path

from conversations.accounts import joining, members, own_account, people_pages, signing_in
from conversations.feature import features
from conversations.review import (
    audit_pages,
    queue_pages,
    reason_pages,
    search_pages,
    transcript_pages,
)
from conversations.search import pages as search

from . import (
    attachments,
    call_records,
    changes,
    command_views,
    feed,
    health,
    model_calls,
    pages,
    panel,
    tool_rules,
)
from .consumers import NoSessionConsumer, SessionConsumer

decide = call_records.tool_call_decide

of_workspace = [
    path("", pages.workspace, name="workspace"),
    path("settings/", pages.workspace_settings, name="workspace_settings"),
    path("members/add/", pages.workspace_member_add, name="workspace_member_add"),
    path("tools/", tool_rules.workspace_tools, name="workspace_tools"),
    path(
        "tool-servers/<str:name>/connect/",
        tool_rules.workspace_tool_server_connect,
        name="workspace_tool_server_connect",
    ),
    path(
        "permissions/<int:pk>/revoke/",
        tool_rules.workspace_permission_revoke,
        name="workspace_permission_revoke",
    ),
    path("groups/add/", members.workspace_group_add, name="workspace_group_add"),
    path("groups/<int:pk>/remove/", members.workspace_group_remove, name="workspace_group_remove"),
    path("invite/", members.workspace_invite, name="workspace_invite"),
    path(
        "invitations/<int:pk>/revoke/",
        members.workspace_invitation_revoke,
        name="workspace_invitation_revoke",
    ),
    path("members/remove/", pages.workspace_member_remove, name="workspace_member_remove"),
    path("feed.atom", feed.workspace_feed, name="workspace_feed"),
    path("new/", pages.session_create, name="session_create"),
    path("files/", command_views.workspace_files, name="workspace_files"),
]

of_session = [
    path("", pages.session, name="session"),
    path("find/", search.session_find, name="session_find"),
    path("t/<int:number>/", pages.turn, name="turn"),
    path("t/<int:number>/source/", pages.turn_source, name="turn_source"),
    path("tools/<uuid:call>/approve/", decide, {"act": "approve"}, name="tool_call_approve"),
    path("tools/<uuid:call>/deny/", decide, {"act": "deny"}, name="tool_call_deny"),
    path("tools/<uuid:call>/cancel/", decide, {"act": "cancel"}, name="tool_call_cancel"),
    path("t/<int:number>/output/", call_records.tool_output, name="turn_output"),
    path("tools/<uuid:call>/", call_records.tool_call, name="tool_call"),
    path("tools/<uuid:call>/output/", call_records.tool_output, name="tool_call_output"),
    path("state/", panel.session_state, name="session_state"),
    path("state/edit/", panel.session_state_edit, name="session_state_edit"),
    path("changes/", changes.session_changes, name="session_changes"),
    path("changes/revert/", changes.session_changes_revert, name="session_changes_revert"),
    path("window/", model_calls.session_window, name="session_window"),
    path("calls/<int:number>/", model_calls.turn_call, name="turn_call"),
    path("runs/<uuid:run>/<int:ordinal>/", model_calls.model_call, name="model_call"),
    path(
        "runs/<uuid:run>/<int:ordinal>/text/", model_calls.model_call_text, name="model_call_text"
    ),
    path(
        "runs/<uuid:run>/<int:ordinal>/request.json",
        model_calls.model_call_request,
        name="model_call_request",
    ),
    path("attachments/", attachments.session_attachments, name="session_attachments"),
    path("attachments/<uuid:attachment>/", attachments.attachment, name="attachment"),
    path(
        "attachments/<uuid:attachment>/thumb/",
        attachments.attachment_thumb,
        name="attachment_thumb",
    ),
    path(
        "attachments/<uuid:attachment>/remove/",
        attachments.attachment_remove,
        name="attachment_remove",
    ),
    path("commands/", command_views.session_commands, name="session_commands"),
    path("readers/", audit_pages.session_readers, name="session_readers"),
    path("send/", pages.session_send, name="session_send"),
    path("rename/", pages.session_rename, name="session_rename"),
    path("pin/", pages.session_pin, name="session_pin"),
    path("archive/", pages.session_archive, name="session_archive"),
    path("compact/", pages.session_compact, name="session_compact"),
    path(
        "compactions/<uuid:compaction>/undo/",
        pages.session_undo_compaction,
        name="session_undo_compaction",
    ),
    path("model/", pages.session_model, name="session_model"),
]

of_reviewers = [
    path("", queue_pages.review, name="review"),
    path("next/", queue_pages.review_next, name="review_next"),
    path("sample/", queue_pages.review_sample, name="review_sample"),
    path("search/", search_pages.review_search, name="review_search"),
    path("s/<uuid:uuid>/", transcript_pages.review_session, name="review_session"),
    path("s/<uuid:uuid>/t/<int:number>/", transcript_pages.review_turn, name="review_turn"),
    path("s/<uuid:uuid>/remarks/", queue_pages.review_remark, name="review_remark"),
    path("s/<uuid:uuid>/mark/", queue_pages.review_mark, name="review_mark"),
    path(
        "s/<uuid:uuid>/notes/<uuid:note>/withdraw/",
        queue_pages.review_note_withdraw,
        name="review_note_withdraw",
    ),
    path(
        "s/<uuid:uuid>/flags/<uuid:flag>/resolve/",
        queue_pages.review_flag_resolve,
        name="review_flag_resolve",
    ),
    path("reason/", reason_pages.review_reason, name="review_reason"),
]

of_people = [
    path("", people_pages.people, name="people"),
    path("invite/", people_pages.people_invite, name="people_invite"),
    path(
        "invitations/<int:pk>/revoke/",
        people_pages.people_invitation_revoke,
        name="people_invitation_revoke",
    ),
    path("<int:pk>/", people_pages.person_page, name="person"),
    path("<int:pk>/roles/", people_pages.person_roles, name="person_roles"),
    path("<int:pk>/close/", people_pages.person_close, name="person_close"),
    path("<int:pk>/open/", people_pages.person_open, name="person_open"),
    path("<int:pk>/sign-out/", people_pages.person_sign_out, name="person_sign_out"),
    path("<int:pk>/rank/", people_pages.person_rank, name="person_rank"),
    path("<int:pk>/unlock/", people_pages.person_unlock, name="person_unlock"),
    path(
        "<int:pk>/reset-password/", people_pages.person_reset_password, name="person_reset_password"
    ),
    path("groups/", people_pages.groups, name="groups"),
    path("groups/new/", people_pages.group_create, name="group_create"),
    path("groups/<int:pk>/", people_pages.group, name="group"),
    path("groups/<int:pk>/add/", people_pages.group_add, name="group_add"),
    path(
        "groups/<int:pk>/<int:user_pk>/take-out/",
        people_pages.group_take_out,
        name="group_take_out",
    ),
    path("groups/<int:pk>/remove/", people_pages.group_remove, name="group_remove"),
]

of_account = [
    path("", own_account.account, name="account"),
    path("export/", own_account.account_export, name="account_export"),
    path("choose/", own_account.account_choose, name="account_choose"),
    path("sign-out/", own_account.devices_sign_out, name="devices_sign_out"),
    path("devices/<int:pk>/sign-out/", own_account.device_sign_out, name="device_sign_out"),
    path("tokens/", own_account.tokens, name="tokens"),
    path("tokens/<int:pk>/revoke/", own_account.token_revoke, name="token_revoke"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", pages.home, name="home"),
    path("start/", pages.start, name="start"),
    path("workspaces/new/", pages.workspace_create, name="workspace_create"),
    path("w/<slug:slug>/", include(of_workspace)),
    path("s/<uuid:uuid>/", include(of_session)),
    path("review/", include(of_reviewers)),
    path("search/", search.search, name="search"),
    path("audit/", audit_pages.audit, name="audit"),
    path("audit/export/", audit_pages.audit_export, name="audit_export"),
    path("palette/", command_views.palette, name="palette"),
    path("help/", command_views.help_page, name="help"),
    path("sign-in/", signing_in.SignIn.as_view(), name="sign_in"),
    path("sign-in/link/<str:token>/", signing_in.sign_in_link, name="sign_in_link"),
    path("sign-out/", LogoutView.as_view(next_page="sign_in"), name="sign_out"),
    path("people/", include(of_people)),
    path("join/<str:token>/", joining.join, name="join"),
    path("account/", include(of_account)),
    path("password/", signing_in.PasswordChange.as_view(), name="password_change"),
    path("password/done/", signing_in.password_change_done, name="password_change_done"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
]

for feature in features():
    urlpatterns += feature.url_patterns()

if settings.LOOM.uses_allauth:
    from conversations.accounts.sso.urls import urlpatterns as sso_patterns

    urlpatterns += sso_patterns

websocket_urlpatterns = [
    path("ws/s/<uuid:uuid>/", SessionConsumer.as_asgi()),
    re_path("", NoSessionConsumer.as_asgi()),
]
