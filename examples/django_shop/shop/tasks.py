from heatsink.bulk import Actions, Context, Fail

from .models import Line

actions = Actions()


@actions.action("pack", max_attempts=3)
def pack(item: int, context: Context) -> None:
    """Pack one line of an order. A plain function runs in a thread, so it may use the ORM."""
    if not Line.objects.filter(pk=item).update(packed=True):
        raise Fail(f"there is no line {item}")
