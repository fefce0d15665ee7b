"""The addresses of webhooks."""

from django.urls import path

from . import views

urlpatterns = [
    path("w/<slug:slug>/webhooks/", views.workspace_webhooks, name="workspace_webhooks"),
    path(
        "w/<slug:slug>/webhooks/<uuid:webhook>/",
        views.workspace_webhook,
        name="workspace_webhook",
    ),
    path(
        "w/<slug:slug>/webhooks/<uuid:webhook>/test/",
        views.workspace_webhook_test,
        name="workspace_webhook_test",
    ),
    path(
        "w/<slug:slug>/webhooks/<uuid:webhook>/rotate/",
        views.workspace_webhook_rotate,
        name="workspace_webhook_rotate",
    ),
    path(
        "w/<slug:slug>/webhooks/<uuid:webhook>/remove/",
        views.workspace_webhook_remove,
        name="workspace_webhook_remove",
    ),
    path(
        "w/<slug:slug>/webhooks/<uuid:webhook>/deliveries/<uuid:delivery>/again/",
        views.workspace_webhook_again,
        name="workspace_webhook_again",
    ),
]
