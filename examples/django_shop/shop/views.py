from django.db import transaction
from django.http import HttpRequest, HttpResponseBadRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from heatsink.contrib.django import client, submit_on_commit

from .models import Line, Order

LINES_MAX = 100


@csrf_exempt
@require_POST
def create(request: HttpRequest):
    """Store an order and its lines. Workers pack the lines once the transaction has committed."""
    with transaction.atomic():
        order = Order.objects.create(customer=request.POST["customer"])
        lines = range(int(request.POST["lines"]))
        Line.objects.bulk_create(Line(order=order, number=number) for number in lines)
        items = order.lines.values_list("pk", flat=True)
        order.batch = submit_on_commit("pack", items, tenant=order.customer)
        order.save()
        if len(lines) > LINES_MAX:
            transaction.set_rollback(True)  # then no batch is submitted either
    if len(lines) > LINES_MAX:
        return HttpResponseBadRequest("too many lines")
    return JsonResponse({"order": order.pk, "batch": order.batch}, status=201)


def show(request: HttpRequest, order: int):
    found = get_object_or_404(Order, pk=order)
    packed = found.lines.filter(packed=True).count()
    state = client().bulk.status(found.batch).state
    return JsonResponse({"lines": found.lines.count(), "packed": packed, "batch": state})
