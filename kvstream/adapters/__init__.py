"""Task frameworks on a store: huey, Celery (kombu), dramatiq, taskiq and APScheduler."""
