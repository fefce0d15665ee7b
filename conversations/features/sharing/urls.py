from django.urls import path

from . import file_views, views

urlpatterns = [
    path("s/<uuid:uuid>/share/", views.session_share, name="session_share"),
    path(
        "s/<uuid:uuid>/share/<uuid:link>/revoke/",
        views.session_share_revoke,
        name="session_share_revoke",
    ),
    path("w/<slug:slug>/shared-files/", file_views.shared_files, name="shared_files"),
    path("w/<slug:slug>/files/share/", file_views.file_share, name="file_share"),
    path(
        "w/<slug:slug>/files/share/<uuid:file_link>/revoke/",
        file_views.file_share_revoke,
        name="file_share_revoke",
    ),
    path("shared-file/<str:token>/", file_views.shared_one, name="shared_one"),
    path(
        "shared-file/<str:token>/preview/", file_views.shared_one_preview, name="shared_one_preview"
    ),
    path(
        "shared-file/<str:token>/download/",
        file_views.shared_one_download,
        name="shared_one_download",
    ),
    path("shared/<str:share>/", views.shared, name="shared"),
    path("shared/<str:share>/files/<uuid:attachment>/", views.shared_file, name="shared_file"),
    path(
        "shared/<str:share>/files/<uuid:attachment>/thumb/", views.shared_thumb, name="shared_thumb"
    ),
]
