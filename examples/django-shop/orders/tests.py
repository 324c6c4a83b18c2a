"""The shop's own test: the task runs in the test's process."""

from django.test import TransactionTestCase
from orders.models import Order
from orders.tasks import confirm
from proj.jobs import app


class Orders(TransactionTestCase):
    def test_an_order_is_confirmed(self) -> None:
        with app.testing() as jobs:
            number = self.client.post("/orders", {"email": "ann@x.org"}).json()["number"]
            jobs.drain()
            result = confirm.get_result(Order.objects.get(pk=number).task)
            self.assertEqual(result.return_value, "mail to ann@x.org")
            self.assertEqual(self.client.get(f"/orders/{number}").json()["status"], "SUCCESSFUL")
