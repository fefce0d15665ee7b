"""The pages' and the socket's addresses."""

from django.conf import settings
from django.contrib.auth.views import LogoutView
from django.urls import path, re_path

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
    palette,
    panel,
    tool_rules,
)
from .consumers import NoSessionConsumer, SessionConsumer

urlpatterns = [
    path("", pages.home, name="home"),
    path("start/", pages.start, name="start"),
    path("workspaces/new/", pages.workspace_create, name="workspace_create"),
    path("w/<slug:slug>/", pages.workspace, name="workspace"),
    path("w/<slug:slug>/settings/", pages.workspace_settings, name="workspace_settings"),
    path("w/<slug:slug>/members/add/", pages.workspace_member_add, name="workspace_member_add"),
    path("w/<slug:slug>/tools/", tool_rules.workspace_tools, name="workspace_tools"),
    path(
        "w/<slug:slug>/tool-servers/<str:name>/connect/",
        tool_rules.workspace_tool_server_connect,
        name="workspace_tool_server_connect",
    ),
    path(
        "w/<slug:slug>/permissions/<int:pk>/revoke/",
        tool_rules.workspace_permission_revoke,
        name="workspace_permission_revoke",
    ),
    path("w/<slug:slug>/groups/add/", members.workspace_group_add, name="workspace_group_add"),
    path(
        "w/<slug:slug>/groups/<int:pk>/remove/",
        members.workspace_group_remove,
        name="workspace_group_remove",
    ),
    path("w/<slug:slug>/invite/", members.workspace_invite, name="workspace_invite"),
    path(
        "w/<slug:slug>/invitations/<int:pk>/revoke/",
        members.workspace_invitation_revoke,
        name="workspace_invitation_revoke",
    ),
    path(
        "w/<slug:slug>/members/remove/",
        pages.workspace_member_remove,
        name="workspace_member_remove",
    ),
    path("w/<slug:slug>/feed.atom", feed.workspace_feed, name="workspace_feed"),
    path("w/<slug:slug>/new/", pages.session_create, name="session_create"),
    path("w/<slug:slug>/files/", command_views.workspace_files, name="workspace_files"),
    path("s/<uuid:uuid>/", pages.session, name="session"),
    path("s/<uuid:uuid>/find/", search.session_find, name="session_find"),
    path("s/<uuid:uuid>/t/<int:number>/", pages.turn, name="turn"),
    path("s/<uuid:uuid>/t/<int:number>/source/", pages.turn_source, name="turn_source"),
    path(
        "s/<uuid:uuid>/tools/<uuid:call>/approve/",
        call_records.tool_call_approve,
        name="tool_call_approve",
    ),
    path(
        "s/<uuid:uuid>/tools/<uuid:call>/deny/", call_records.tool_call_deny, name="tool_call_deny"
    ),
    path(
        "s/<uuid:uuid>/tools/<uuid:call>/cancel/",
        call_records.tool_call_cancel,
        name="tool_call_cancel",
    ),
    path("s/<uuid:uuid>/t/<int:number>/output/", call_records.turn_output, name="turn_output"),
    path("s/<uuid:uuid>/tools/<uuid:call>/", call_records.tool_call, name="tool_call"),
    path(
        "s/<uuid:uuid>/tools/<uuid:call>/output/",
        call_records.tool_call_output,
        name="tool_call_output",
    ),
    path("s/<uuid:uuid>/state/", panel.session_state, name="session_state"),
    path("s/<uuid:uuid>/state/edit/", panel.session_state_edit, name="session_state_edit"),
    path("s/<uuid:uuid>/changes/", changes.session_changes, name="session_changes"),
    path(
        "s/<uuid:uuid>/changes/revert/",
        changes.session_changes_revert,
        name="session_changes_revert",
    ),
    path("s/<uuid:uuid>/window/", model_calls.session_window, name="session_window"),
    path("s/<uuid:uuid>/calls/<int:number>/", model_calls.turn_call, name="turn_call"),
    path("s/<uuid:uuid>/runs/<uuid:run>/<int:ordinal>/", model_calls.model_call, name="model_call"),
    path(
        "s/<uuid:uuid>/runs/<uuid:run>/<int:ordinal>/text/",
        model_calls.model_call_text,
        name="model_call_text",
    ),
    path(
        "s/<uuid:uuid>/runs/<uuid:run>/<int:ordinal>/request.json",
        model_calls.model_call_request,
        name="model_call_request",
    ),
    path("s/<uuid:uuid>/attachments/", attachments.session_attachments, name="session_attachments"),
    path("s/<uuid:uuid>/attachments/<uuid:attachment>/", attachments.attachment, name="attachment"),
    path(
        "s/<uuid:uuid>/attachments/<uuid:attachment>/thumb/",
        attachments.attachment_thumb,
        name="attachment_thumb",
    ),
    path(
        "s/<uuid:uuid>/attachments/<uuid:attachment>/remove/",
        attachments.attachment_remove,
        name="attachment_remove",
    ),
    path("s/<uuid:uuid>/commands/", command_views.session_commands, name="session_commands"),
    path("s/<uuid:uuid>/readers/", audit_pages.session_readers, name="session_readers"),
    path("s/<uuid:uuid>/send/", pages.session_send, name="session_send"),
    path("s/<uuid:uuid>/rename/", pages.session_rename, name="session_rename"),
    path("s/<uuid:uuid>/pin/", pages.session_pin, name="session_pin"),
    path("s/<uuid:uuid>/archive/", pages.session_archive, name="session_archive"),
    path("s/<uuid:uuid>/compact/", pages.session_compact, name="session_compact"),
    path(
        "s/<uuid:uuid>/compactions/<uuid:compaction>/undo/",
        pages.session_undo_compaction,
        name="session_undo_compaction",
    ),
    path("s/<uuid:uuid>/model/", pages.session_model, name="session_model"),
    path("review/", queue_pages.review, name="review"),
    path("review/next/", queue_pages.review_next, name="review_next"),
    path("review/sample/", queue_pages.review_sample, name="review_sample"),
    path("review/search/", search_pages.review_search, name="review_search"),
    path("review/s/<uuid:uuid>/", transcript_pages.review_session, name="review_session"),
    path("review/s/<uuid:uuid>/t/<int:number>/", transcript_pages.review_turn, name="review_turn"),
    path("review/s/<uuid:uuid>/remarks/", queue_pages.review_remark, name="review_remark"),
    path("review/s/<uuid:uuid>/mark/", queue_pages.review_mark, name="review_mark"),
    path(
        "review/s/<uuid:uuid>/notes/<uuid:note>/withdraw/",
        queue_pages.review_note_withdraw,
        name="review_note_withdraw",
    ),
    path(
        "review/s/<uuid:uuid>/flags/<uuid:flag>/resolve/",
        queue_pages.review_flag_resolve,
        name="review_flag_resolve",
    ),
    path("search/", search.search, name="search"),
    path("audit/", audit_pages.audit, name="audit"),
    path("audit/export/", audit_pages.audit_export, name="audit_export"),
    path("review/reason/", reason_pages.review_reason, name="review_reason"),
    path("palette/", palette.palette, name="palette"),
    path("help/", command_views.help_page, name="help"),
    path("sign-in/", signing_in.SignIn.as_view(), name="sign_in"),
    path("sign-in/link/<str:token>/", signing_in.sign_in_link, name="sign_in_link"),
    path("sign-out/", LogoutView.as_view(next_page="sign_in"), name="sign_out"),
    path("people/", people_pages.people, name="people"),
    path("people/invite/", people_pages.people_invite, name="people_invite"),
    path(
        "people/invitations/<int:pk>/revoke/",
        people_pages.people_invitation_revoke,
        name="people_invitation_revoke",
    ),
    path("people/<int:pk>/", people_pages.person_page, name="person"),
    path("people/<int:pk>/roles/", people_pages.person_roles, name="person_roles"),
    path("people/<int:pk>/close/", people_pages.person_close, name="person_close"),
    path("people/<int:pk>/open/", people_pages.person_open, name="person_open"),
    path("people/<int:pk>/sign-out/", people_pages.person_sign_out, name="person_sign_out"),
    path("people/<int:pk>/rank/", people_pages.person_rank, name="person_rank"),
    path("people/<int:pk>/unlock/", people_pages.person_unlock, name="person_unlock"),
    path(
        "people/<int:pk>/reset-password/",
        people_pages.person_reset_password,
        name="person_reset_password",
    ),
    path("people/groups/", people_pages.groups, name="groups"),
    path("people/groups/new/", people_pages.group_create, name="group_create"),
    path("people/groups/<int:pk>/", people_pages.group, name="group"),
    path("people/groups/<int:pk>/add/", people_pages.group_add, name="group_add"),
    path(
        "people/groups/<int:pk>/<int:user_pk>/take-out/",
        people_pages.group_take_out,
        name="group_take_out",
    ),
    path("people/groups/<int:pk>/remove/", people_pages.group_remove, name="group_remove"),
    path("join/<str:token>/", joining.join, name="join"),
    path("account/", own_account.account, name="account"),
    path("account/export/", own_account.account_export, name="account_export"),
    path("account/choose/", own_account.account_choose, name="account_choose"),
    path("account/sign-out/", own_account.devices_sign_out, name="devices_sign_out"),
    path("account/devices/<int:pk>/sign-out/", own_account.device_sign_out, name="device_sign_out"),
    path("account/tokens/", own_account.tokens, name="tokens"),
    path("account/tokens/<int:pk>/revoke/", own_account.token_revoke, name="token_revoke"),
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
