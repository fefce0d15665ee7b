from django.urls import path

from . import views

urlpatterns = [
    path("w/<slug:slug>/retention/", views.workspace_retention, name="workspace_retention"),
    path("w/<slug:slug>/purge/", views.workspace_purge, name="workspace_purge"),
    path("s/<uuid:uuid>/purge/", views.session_purge, name="session_purge"),
    path(
        "s/<uuid:uuid>/purge/call-off/", views.session_purge_call_off, name="session_purge_call_off"
    ),
    path("holds/", views.holds, name="holds"),
    path("holds/<int:pk>/release/", views.hold_release, name="hold_release"),
    path("receipts/", views.receipts, name="receipts"),
    path("receipts/<uuid:receipt>/", views.receipt, name="receipt"),
]
