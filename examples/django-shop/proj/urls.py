"""The addresses of the shop."""

from django.urls import path
from orders.views import order, place

urlpatterns = [path("orders", place), path("orders/<int:number>", order)]
