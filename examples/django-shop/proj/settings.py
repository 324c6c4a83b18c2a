"""The settings of a small shop: SQLite for orders, the embedded broker of dray for tasks."""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only-for-this-example"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "proj.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["dray.contrib.django", "orders"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.sqlite3"}}
TASKS = {
    "default": {
        "BACKEND": "dray.contrib.django.DrayBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"APP": "proj.jobs:app", "TRANSACTION": "on_commit"},
    }
}
