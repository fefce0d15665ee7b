"""The addresses of the pages and the socket."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.urls import URLPattern, URLResolver, include, path, re_path

from conversations.accounts import joining, members, own_account, people_pages, sign_in
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
    branches,
    bulk,
    call_records,
    changes,
    command_views,
    diagrams,
    feed,
    files,
    health,
    memory,
    model_calls,
    outline,
    pages,
    panel,
    providers,
    tool_rules,
    tool_server_sign_in,
    workspace_settings,
)
from .consumers import NoSessionConsumer, SessionConsumer

decide = call_records.tool_call_decide


def page(route: str, view: Callable[..., Any]) -> URLPattern:
    """Return the path of a view, named after the view."""
    return path(route, view, name=view.__name__)


of_workspace = [
    page("", pages.workspace),
    page("settings/", workspace_settings.workspace_settings),
    page("settings/tools/", tool_rules.workspace_tools),
    page("settings/programs/", workspace_settings.workspace_programs),
    page("members/", members.workspace_members),
    page("members/add/", members.workspace_member_add),
    page("memory/", memory.workspace_memory),
    page("memory/add/", memory.workspace_memory_add),
    page("memory/<uuid:entry>/edit/", memory.workspace_memory_edit),
    page("memory/<uuid:entry>/remove/", memory.workspace_memory_remove),
    page("tool-servers/<str:name>/connect/", tool_rules.workspace_tool_server_connect),
    page("tool-servers/<str:name>/sign-in/", tool_server_sign_in.workspace_tool_server_sign_in),
    page("tool-servers/<str:name>/sign-out/", tool_server_sign_in.workspace_tool_server_sign_out),
    page("permissions/<int:pk>/revoke/", tool_rules.workspace_permission_revoke),
    page("groups/add/", members.workspace_group_add),
    page("groups/<int:pk>/remove/", members.workspace_group_remove),
    page("invite/", members.workspace_invite),
    page("invitations/<int:pk>/revoke/", members.workspace_invitation_revoke),
    page("members/remove/", members.workspace_member_remove),
    page("feed.atom", feed.workspace_feed),
    page("new/", pages.session_create),
    page("sessions/", bulk.workspace_sessions),
    page("paths/", command_views.workspace_paths),
    page("files/", files.workspace_files),
    page("files/preview/", files.workspace_file_preview),
    page("files/download/", files.workspace_file_download),
    page("files/upload/", files.workspace_file_upload),
]

of_session = [
    page("", pages.session),
    page("find/", search.session_find),
    page("t/<int:number>/", pages.turn),
    page("t/<int:number>/source/", pages.turn_source),
    page("t/<int:number>/fork/", branches.session_fork),
    path("tools/<uuid:call>/approve/", decide, {"act": "approve"}, name="tool_call_approve"),
    path("tools/<uuid:call>/deny/", decide, {"act": "deny"}, name="tool_call_deny"),
    path("tools/<uuid:call>/cancel/", decide, {"act": "cancel"}, name="tool_call_cancel"),
    page("tools/<uuid:call>/answer/", call_records.tool_call_answer),
    page("tools/<uuid:call>/file/", files.tool_call_file),
    path("t/<int:number>/output/", call_records.tool_output, name="turn_output"),
    page("tools/<uuid:call>/", call_records.tool_call),
    path("tools/<uuid:call>/output/", call_records.tool_output, name="tool_call_output"),
    page("state/", panel.session_state),
    page("state/edit/", panel.session_state_edit),
    page("state/keep/", panel.session_state_keep),
    page("outline/", outline.session_outline),
    page("branches/", branches.session_branches),
    page("branches/<int:number>/", branches.session_branch),
    page("branches/<int:number>/use/", branches.session_branch_use),
    page("versions/", branches.session_versions),
    page("changes/", changes.session_changes),
    page("changes/revert/", changes.session_changes_revert),
    page("window/", model_calls.session_window),
    page("calls/<int:number>/", model_calls.turn_call),
    page("runs/<uuid:run>/<int:ordinal>/", model_calls.model_call),
    page("runs/<uuid:run>/<int:ordinal>/text/", model_calls.model_call_text),
    page("runs/<uuid:run>/<int:ordinal>/request.json", model_calls.model_call_request),
    page("attachments/", attachments.session_attachments),
    page("attachments/<uuid:attachment>/", attachments.attachment),
    page("attachments/<uuid:attachment>/thumb/", attachments.attachment_thumb),
    page("attachments/<uuid:attachment>/remove/", attachments.attachment_remove),
    page("commands/", command_views.session_commands),
    page("readers/", audit_pages.session_readers),
    page("send/", pages.session_send),
    page("rename/", pages.session_rename),
    page("pin/", pages.session_pin),
    page("archive/", pages.session_archive),
    page("compact/", pages.session_compact),
    page("compactions/<uuid:compaction>/undo/", pages.session_undo_compaction),
    page("turns/<int:number>/include/", pages.session_include),
    page("model/", pages.session_model),
]

of_reviewers = [
    page("", queue_pages.review),
    page("next/", queue_pages.review_next),
    page("sample/", queue_pages.review_sample),
    page("search/", search_pages.review_search),
    page("s/<uuid:uuid>/", transcript_pages.review_session),
    page("s/<uuid:uuid>/t/<int:number>/", transcript_pages.review_turn),
    page("s/<uuid:uuid>/remarks/", queue_pages.review_remark),
    page("s/<uuid:uuid>/mark/", queue_pages.review_mark),
    page("s/<uuid:uuid>/notes/<uuid:note>/withdraw/", queue_pages.review_note_withdraw),
    page("s/<uuid:uuid>/flags/<uuid:flag>/resolve/", queue_pages.review_flag_resolve),
    page("reason/", reason_pages.review_reason),
]

of_providers = [
    page("", providers.providers),
    page("refresh/", providers.providers_refresh),
    page("test/", providers.providers_test),
    page("find/", providers.providers_find),
    page("add/", providers.providers_add),
]

of_people = [
    page("", people_pages.people),
    page("invite/", people_pages.people_invite),
    page("invitations/<int:pk>/revoke/", people_pages.people_invitation_revoke),
    path("<int:pk>/", people_pages.person_page, name="person"),
    page("<int:pk>/roles/", people_pages.person_roles),
    page("<int:pk>/close/", people_pages.person_close),
    page("<int:pk>/open/", people_pages.person_open),
    page("<int:pk>/owner/", people_pages.person_owner),
    page("<int:pk>/sign-out/", people_pages.person_sign_out),
    page("<int:pk>/rank/", people_pages.person_rank),
    page("<int:pk>/unlock/", people_pages.person_unlock),
    page("<int:pk>/reset-password/", people_pages.person_reset_password),
    page("groups/", people_pages.groups),
    page("groups/new/", people_pages.group_create),
    page("groups/<int:pk>/", people_pages.group),
    page("groups/<int:pk>/add/", people_pages.group_add),
    page("groups/<int:pk>/<int:user_pk>/take-out/", people_pages.group_take_out),
    page("groups/<int:pk>/remove/", people_pages.group_remove),
]

of_account = [
    page("", own_account.account),
    page("preferences/", own_account.account_preferences),
    page("devices/", own_account.account_devices),
    page("data/", own_account.account_data),
    page("export/", own_account.account_export),
    page("choose/", own_account.account_choose),
    page("sign-out/", own_account.devices_sign_out),
    page("devices/<int:pk>/sign-out/", own_account.device_sign_out),
    page("tokens/", own_account.tokens),
    page("tokens/<int:pk>/revoke/", own_account.token_revoke),
]

urlpatterns: list[URLPattern | URLResolver] = [
    page("", pages.home),
    page("start/", pages.start),
    page("workspaces/new/", pages.workspace_create),
    path("w/<slug:slug>/", include(of_workspace)),
    path("s/<uuid:uuid>/", include(of_session)),
    path("review/", include(of_reviewers)),
    page("search/", search.search),
    page("audit/", audit_pages.audit),
    page("audit/export/", audit_pages.audit_export),
    page("palette/", command_views.palette),
    page("diagram/", diagrams.diagram),
    path("help/", command_views.help_page, name="help"),
    path("sign-in/", sign_in.SignInView.as_view(), name="sign_in"),
    page("sign-in/link/<str:token>/", sign_in.sign_in_link),
    path("sign-out/", sign_in.SignOutView.as_view(), name="sign_out"),
    path("people/", include(of_people)),
    path("providers/", include(of_providers)),
    page("tool-servers/callback/", tool_server_sign_in.tool_server_callback),
    page("join/<str:token>/", joining.join),
    path("account/", include(of_account)),
    path("password/", sign_in.PasswordView.as_view(), name="password_change"),
    page("password/done/", sign_in.password_change_done),
    page("healthz", health.healthz),
    page("readyz", health.readyz),
    page("metrics", health.metrics),
]

for feature in features():
    urlpatterns += feature.url_patterns()

if settings.LOOM.uses_allauth:
    from conversations.accounts.sso.urls import urlpatterns as sso_patterns

    urlpatterns = [*sso_patterns, *urlpatterns]  # first, because it has its own password page

websocket_urlpatterns = [
    path("ws/s/<uuid:uuid>/", SessionConsumer.as_asgi()),
    re_path("", NoSessionConsumer.as_asgi()),
]
