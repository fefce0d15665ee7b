from django.urls import path

from . import installing, views

OWN = "account/notifications/"

urlpatterns = [
    path("manifest.webmanifest", installing.manifest, name="notices_manifest"),
    path("service-worker.js", installing.service_worker, name="notices_worker"),
    path("offline/", installing.offline, name="notices_offline"),
    path(OWN, views.notifications, name="notifications"),
    path(f"{OWN}waiting/", views.waiting, name="notices_waiting"),
    path(f"{OWN}shown/", views.shown, name="notices_shown"),
    path(f"{OWN}subscribe/", views.subscribe, name="notices_subscribe"),
    path(f"{OWN}devices/<uuid:device>/remove/", views.unsubscribe, name="notices_unsubscribe"),
    path(f"{OWN}devices/<uuid:device>/test/", views.test, name="notices_test"),
    path("s/<uuid:uuid>/notifications/mute/", views.mute, name="session_mute"),
    path("s/<uuid:uuid>/notifications/watch/", views.watch, name="session_watch"),
    path("s/<uuid:uuid>/notifications/decide/", views.decide, name="session_decide"),
]
