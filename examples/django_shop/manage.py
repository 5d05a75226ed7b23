"""A small shop with Django: an order sends its receipts through a batch, after the commit.

export SHOP_QUEUE=redis://127.0.0.1:6379
python manage.py migrate
python manage.py heatsink_worker          # in another shell: python manage.py runserver
curl -d customer=ada -d lines=3 http://127.0.0.1:8000/orders/
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
