from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100)
    batch = models.CharField(max_length=64, default="")


class Line(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField()
    packed = models.BooleanField(default=False)
