"""What happens after an order was placed."""

from django.utils import timezone
from orders.models import Order

try:
    from django.tasks import task
except ImportError:  # Django before 6
    from django_tasks import task


@task(queue_name="mail", priority=10, retries=5, backoff="fixed:100ms")
def confirm(number: int) -> str:
    """Sends the confirmation of an order."""
    order = Order.objects.get(pk=number)  # committed before this job exists: TRANSACTION is on_commit
    order.confirmed_at = timezone.now()
    order.save(update_fields=["confirmed_at"])
    return f"mail to {order.email}"


@task(takes_context=True)
async def count(context, upto: int) -> dict[str, int]:
    """An async task, which sees its attempt."""
    return {"orders": await Order.objects.filter(pk__lte=upto).acount(), "attempt": context.attempt}
