"""Sets up Django in the process that imports this module."""

import django

django.setup()
