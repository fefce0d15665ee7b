from django.urls import path

from . import views

urlpatterns = [
    path("w/<slug:slug>/usage/", views.usage, name="workspace_usage"),
    path("s/<uuid:uuid>/usage/", views.session_usage, name="session_usage"),
    path("usage/", views.usage, name="usage"),
    path("usage/usage.csv", views.usage_file, name="usage_file"),
    path("usage/budgets/", views.budgets, name="budgets"),
    path("usage/budgets/<uuid:budget>/end/", views.budget_end, name="budget_end"),
]
