from django.urls import path

from . import views

urlpatterns = [
    path("s/<uuid:uuid>/share/", views.session_share, name="session_share"),
    path(
        "s/<uuid:uuid>/share/<uuid:link>/revoke/",
        views.session_share_revoke,
        name="session_share_revoke",
    ),
    path("shared/<str:share>/", views.shared, name="shared"),
    path("shared/<str:share>/files/<uuid:attachment>/", views.shared_file, name="shared_file"),
    path(
        "shared/<str:share>/files/<uuid:attachment>/thumb/", views.shared_thumb, name="shared_thumb"
    ),
]
