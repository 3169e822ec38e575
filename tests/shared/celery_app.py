"""The program that ``celery -A`` finds."""

from tests.shared.apps import celery

app = celery()
