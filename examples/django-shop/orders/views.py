"""Places orders and shows them."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from orders.models import Order
from orders.tasks import confirm


@csrf_exempt
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(email=request.POST["email"])
    order.task = confirm.enqueue(order.pk).id  # enqueued by the commit; nothing is if the view raises
    order.save(update_fields=["task"])
    return JsonResponse({"number": order.pk, "task": order.task}, status=201)


def order(request: HttpRequest, number: int) -> JsonResponse:
    found = Order.objects.get(pk=number)
    return JsonResponse({"status": confirm.get_result(found.task).status, "confirmed": found.confirmed_at})
