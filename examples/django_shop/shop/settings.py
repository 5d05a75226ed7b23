import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", Path.cwd()))
SECRET_KEY = "only for this example"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
INSTALLED_APPS = ["heatsink.contrib.django", "shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "shop.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
HEATSINK = {
    "queue": os.environ.get("SHOP_QUEUE", "redis://127.0.0.1:6379"),
    "actions": "shop.tasks:actions",
}
