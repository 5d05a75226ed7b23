import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("customer", models.CharField(max_length=100)),
                ("batch", models.CharField(default="", max_length=64)),
            ],
        ),
        migrations.CreateModel(
            "Line",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("number", models.PositiveIntegerField()),
                ("packed", models.BooleanField(default=False)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="lines",
                        to="shop.order",
                    ),
                ),
            ],
        ),
    ]
