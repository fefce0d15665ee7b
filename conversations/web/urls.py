"""The pages' and the socket's addresses."""

from django.conf import settings
from django.contrib.auth.views import LogoutView
from django.urls import path, re_path

from . import (
    accounts,
    approvals,
    attachments,
    call_records,
    calls,
    changes,
    command_views,
    exports,
    health,
    keys,
    own_account,
    pages,
    palette,
    panel,
    reason_pages,
    review_queue,
    review_remarks,
    review_transcript,
    search,
    sharing,
    start,
    tool_rules,
    tool_servers,
)
from .consumers import NoSessionConsumer, SessionConsumer

urlpatterns = [
    path("", pages.home, name="home"),
    path("start/", start.start, name="start"),
    path("workspaces/new/", pages.workspace_create, name="workspace_create"),
    path("w/<slug:slug>/", pages.workspace, name="workspace"),
    path("w/<slug:slug>/settings/", pages.workspace_settings, name="workspace_settings"),
    path("w/<slug:slug>/members/add/", pages.workspace_member_add, name="workspace_member_add"),
    path("w/<slug:slug>/tools/", tool_rules.workspace_tools, name="workspace_tools"),
    path(
        "w/<slug:slug>/tool-servers/<str:name>/connect/",
        tool_servers.workspace_tool_server_connect,
        name="workspace_tool_server_connect",
    ),
    path(
        "w/<slug:slug>/permissions/<int:pk>/revoke/",
        tool_rules.workspace_permission_revoke,
        name="workspace_permission_revoke",
    ),
    path(
        "w/<slug:slug>/members/remove/",
        pages.workspace_member_remove,
        name="workspace_member_remove",
    ),
    path("w/<slug:slug>/new/", pages.session_create, name="session_create"),
    path("w/<slug:slug>/files/", command_views.workspace_files, name="workspace_files"),
    path("s/<uuid:uuid>/", pages.session, name="session"),
    path("s/<uuid:uuid>/find/", search.session_find, name="session_find"),
    path("s/<uuid:uuid>/t/<int:number>/", pages.turn, name="turn"),
    path("s/<uuid:uuid>/t/<int:number>/source/", pages.turn_source, name="turn_source"),
    path(
        "s/<uuid:uuid>/tools/<uuid:call>/approve/",
        approvals.tool_call_approve,
        name="tool_call_approve",
    ),
    path("s/<uuid:uuid>/tools/<uuid:call>/deny/", approvals.tool_call_deny, name="tool_call_deny"),
    path(
        "s/<uuid:uuid>/tools/<uuid:call>/cancel/",
        approvals.tool_call_cancel,
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
    path("s/<uuid:uuid>/window/", calls.session_window, name="session_window"),
    path("s/<uuid:uuid>/calls/<int:number>/", calls.turn_call, name="turn_call"),
    path(
        "s/<uuid:uuid>/runs/<uuid:run>/<int:ordinal>/",
        calls.model_call,
        name="model_call",
    ),
    path(
        "s/<uuid:uuid>/runs/<uuid:run>/<int:ordinal>/text/",
        calls.model_call_text,
        name="model_call_text",
    ),
    path(
        "s/<uuid:uuid>/runs/<uuid:run>/<int:ordinal>/request.json",
        calls.model_call_request,
        name="model_call_request",
    ),
    path(
        "s/<uuid:uuid>/attachments/",
        attachments.session_attachments,
        name="session_attachments",
    ),
    path(
        "s/<uuid:uuid>/attachments/<uuid:attachment>/",
        attachments.attachment,
        name="attachment",
    ),
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
    path("s/<uuid:uuid>/export/", exports.session_export, name="session_export"),
    path("s/<uuid:uuid>/share/", sharing.session_share, name="session_share"),
    path(
        "s/<uuid:uuid>/share/<uuid:link>/revoke/",
        sharing.session_share_revoke,
        name="session_share_revoke",
    ),
    path("shared/<str:share>/", sharing.shared, name="shared"),
    path("shared/<str:share>/files/<uuid:attachment>/", sharing.shared_file, name="shared_file"),
    path(
        "shared/<str:share>/files/<uuid:attachment>/thumb/",
        sharing.shared_thumb,
        name="shared_thumb",
    ),
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
    path("review/", review_queue.review, name="review"),
    path("review/next/", review_queue.review_next, name="review_next"),
    path("review/sample/", review_queue.review_sample, name="review_sample"),
    path("review/s/<uuid:uuid>/", review_transcript.review_session, name="review_session"),
    path("review/s/<uuid:uuid>/t/<int:number>/", review_transcript.review_turn, name="review_turn"),
    path("review/s/<uuid:uuid>/remarks/", review_remarks.review_remark, name="review_remark"),
    path("review/s/<uuid:uuid>/mark/", review_remarks.review_mark, name="review_mark"),
    path(
        "review/s/<uuid:uuid>/notes/<uuid:note>/withdraw/",
        review_remarks.review_note_withdraw,
        name="review_note_withdraw",
    ),
    path(
        "review/s/<uuid:uuid>/flags/<uuid:flag>/resolve/",
        review_remarks.review_flag_resolve,
        name="review_flag_resolve",
    ),
    path("search/", search.search, name="search"),
    path("review/reason/", reason_pages.review_reason, name="review_reason"),
    path("palette/", palette.palette, name="palette"),
    path("help/", keys.help_page, name="help"),
    path("sign-in/", accounts.SignIn.as_view(), name="sign_in"),
    path("sign-in/link/<str:token>/", accounts.sign_in_link, name="sign_in_link"),
    path("sign-out/", LogoutView.as_view(next_page="sign_in"), name="sign_out"),
    path("account/", own_account.account, name="account"),
    path("account/choose/", own_account.account_choose, name="account_choose"),
    path("account/sign-out/", own_account.devices_sign_out, name="devices_sign_out"),
    path("account/devices/<int:pk>/sign-out/", own_account.device_sign_out, name="device_sign_out"),
    path("password/", accounts.PasswordChange.as_view(), name="password_change"),
    path("password/done/", accounts.password_change_done, name="password_change_done"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
]

if settings.LOOM.uses_allauth:
    from .sso.urls import urlpatterns as sso_patterns

    urlpatterns += sso_patterns

websocket_urlpatterns = [
    path("ws/s/<uuid:uuid>/", SessionConsumer.as_asgi()),
    re_path("", NoSessionConsumer.as_asgi()),
]
