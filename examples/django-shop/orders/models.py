"""An order, and what became of its confirmation."""

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    confirmed_at = models.DateTimeField(null=True)
    task = models.CharField(max_length=64, default="")
