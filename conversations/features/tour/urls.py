from django.urls import path

from . import views

urlpatterns = [path("w/<slug:slug>/tour/", views.tour_history, name="tour_history")]
