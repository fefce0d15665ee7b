"""URL patterns of imports and exports."""

from django.urls import path

from . import views

urlpatterns = [
    path("import/", views.imports, name="imports"),
    path("import/<uuid:import_uuid>/", views.import_one, name="import_one"),
    path("import/<uuid:import_uuid>/stop/", views.import_stop, name="import_stop"),
    path("w/<slug:slug>/export/", views.workspace_export, name="workspace_export"),
    path("s/<uuid:uuid>/export/", views.session_export, name="session_export"),
]
