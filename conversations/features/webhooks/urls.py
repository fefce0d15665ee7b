from django.urls import path

from . import views

ALL = "w/<slug:slug>/webhooks/"
ONE = ALL + "<uuid:webhook>/"

urlpatterns = [
    path(ALL, views.workspace_webhooks, name="workspace_webhooks"),
    path(ONE, views.workspace_webhook, name="workspace_webhook"),
    path(f"{ONE}test/", views.workspace_webhook_test, name="workspace_webhook_test"),
    path(f"{ONE}rotate/", views.workspace_webhook_rotate, name="workspace_webhook_rotate"),
    path(f"{ONE}remove/", views.workspace_webhook_remove, name="workspace_webhook_remove"),
    path(
        f"{ONE}deliveries/<uuid:delivery>/again/",
        views.workspace_webhook_again,
        name="workspace_webhook_again",
    ),
]
